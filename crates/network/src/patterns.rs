//! Texts that are looked for in what passes: replaced by others, or a reason to stop it. In a stream no more is
//! held back than could be the beginning of one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem::Finder;

use crate::secret_mask::SecretMask;

/// The most bytes that one piece may become: a value can be far longer than what it stands for.
const MAX_REWRITTEN_BYTES: usize = 512 * 1024;
/// What is held back for the sake of secret texts is a multiple of this: it must not tell their length.
const HELD_STEP_BYTES: usize = 256;

/// What happens where a text is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternAction {
    /// This is put in its place.
    Replace(Vec<u8>),
    /// Nothing passes, for this reason.
    Block(String),
}

struct Pattern {
    finder: Finder<'static>,
    action: PatternAction,
    /// Whether it was found, and something else put in its place.
    replaced: AtomicBool,
}

impl Pattern {
    fn new(text: &[u8], action: PatternAction) -> Self {
        let finder = Finder::new(text).into_owned();
        Self { finder, action, replaced: AtomicBool::new(false) }
    }
}

/// Texts, and what happens where each is found.
pub struct Patterns {
    list: Vec<Pattern>,
    longest: usize,
    /// The receiver of the stream must not learn from what is held back how one of the texts begins.
    are_secret: bool,
}

impl Patterns {
    /// None of the texts is empty.
    pub fn new(texts: impl IntoIterator<Item = (Vec<u8>, PatternAction)>) -> Self {
        let build = |(text, action): (Vec<u8>, PatternAction)| {
            (!text.is_empty()).then(|| Pattern::new(&text, action))
        };
        let mut list: Vec<_> = texts.into_iter().filter_map(build).collect();
        // Of two that begin at the same place the longer one is meant.
        list.sort_by_key(|pattern| std::cmp::Reverse(pattern.finder.needle().len()));
        let longest = list.first().map_or(0, |pattern| pattern.finder.needle().len());
        Self { list, longest, are_secret: false }
    }

    /// Like [`Patterns::new`], of texts that the receiver of a stream must not learn. They have no control characters.
    pub fn of_secrets(texts: impl IntoIterator<Item = (Vec<u8>, PatternAction)>) -> Self {
        Self { are_secret: true, ..Self::new(texts) }
    }

    /// Whether this text was found, and something else put in its place.
    pub fn has_replaced(&self, text: &[u8]) -> bool {
        let is_meant = |pattern: &&Pattern| pattern.finder.needle() == text;
        let found = self.list.iter().find(is_meant);
        found.is_some_and(|pattern| pattern.replaced.load(Ordering::Relaxed))
    }

    /// The text with everything replaced; nothing if it stays as it is; an error if it must not pass.
    pub fn apply(&self, text: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut out = Vec::new();
        match self.rewrite(text, &mut out)? {
            0 => Ok(None),
            end => {
                out.extend_from_slice(&text[end..]);
                Ok(Some(out))
            }
        }
    }

    /// Writes the text up to the end of the last find, and says where that is. Each text is searched for once
    /// over the whole length, however often others are found.
    fn rewrite(&self, text: &[u8], out: &mut Vec<u8>) -> Result<usize, String> {
        let find = |pattern: &Pattern, from: usize| {
            pattern.finder.find(&text[from..]).map(|offset| from + offset)
        };
        let mut next: Vec<_> = self.list.iter().map(|pattern| find(pattern, 0)).collect();
        let mut cursor = 0;
        loop {
            let starts = next.iter().enumerate();
            let first = starts.filter_map(|(index, at)| at.map(|at| (at, index))).min();
            let Some((at, index)) = first else { return Ok(cursor) };
            let pattern = &self.list[index];
            match &pattern.action {
                PatternAction::Block(reason) => return Err(reason.clone()),
                PatternAction::Replace(with) => {
                    out.extend_from_slice(&text[cursor..at]);
                    out.extend_from_slice(with);
                    pattern.replaced.store(true, Ordering::Relaxed);
                }
            }
            if out.len() > MAX_REWRITTEN_BYTES {
                return Err("a secret stands in it too often".into());
            }
            cursor = at + pattern.finder.needle().len();
            for (pattern, at) in self.list.iter().zip(&mut next) {
                if at.is_some_and(|at| at < cursor) {
                    *at = find(pattern, cursor);
                }
            }
        }
    }

    /// How many bytes at the end could be the beginning of a text.
    fn count_undecided(&self, tail: &[u8]) -> usize {
        if self.are_secret {
            // Everything that any value could hold, whether or not it begins this one.
            let most = self.longest.next_multiple_of(HELD_STEP_BYTES);
            let could_be_secret = |byte: &&u8| !byte.is_ascii_control();
            return tail.iter().rev().take(most).take_while(could_be_secret).count();
        }
        let most = tail.len().min(self.longest.saturating_sub(1));
        let begins = |length: &usize| {
            let end = &tail[tail.len() - length..];
            self.list.iter().any(|pattern| pattern.finder.needle().starts_with(end))
        };
        (1..=most).rev().find(begins).unwrap_or(0)
    }
}

/// Where the patterns for a stream come from.
#[derive(Clone)]
pub enum PatternSource {
    /// The same for the whole stream.
    Fixed(Arc<Patterns>),
    /// Those of the values that are known at each moment.
    Mask(Arc<SecretMask>),
}

impl PatternSource {
    /// Those that are applied now.
    pub fn current(&self) -> Arc<Patterns> {
        match self {
            Self::Fixed(patterns) => Arc::clone(patterns),
            Self::Mask(mask) => mask.current().texts,
        }
    }
}

impl From<Arc<Patterns>> for PatternSource {
    fn from(patterns: Arc<Patterns>) -> Self {
        Self::Fixed(patterns)
    }
}

impl From<Arc<SecretMask>> for PatternSource {
    fn from(mask: Arc<SecretMask>) -> Self {
        Self::Mask(mask)
    }
}

/// Applies patterns to a stream.
pub struct StreamFilter {
    patterns: PatternSource,
    held: Vec<u8>,
}

impl StreamFilter {
    /// For a stream from its beginning.
    pub fn new(patterns: impl Into<PatternSource>) -> Self {
        Self { patterns: patterns.into(), held: Vec::new() }
    }

    /// What may go on now that this has come; an error if nothing may any more.
    pub fn push(&mut self, data: &[u8]) -> Result<Vec<u8>, String> {
        self.held.extend_from_slice(data);
        let (mut out, patterns) = (Vec::new(), self.patterns.current());
        let decided = patterns.rewrite(&self.held, &mut out)?;
        let end = self.held.len() - patterns.count_undecided(&self.held[decided..]);
        out.extend_from_slice(&self.held[decided..end]);
        self.held.drain(..end);
        Ok(out)
    }

    /// What was held back, when nothing more comes.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// Looks for texts in a stream that passes as it is, however it is cut.
pub struct StreamWatch {
    patterns: Arc<Patterns>,
    /// What passed last: a text may have begun in it.
    tail: Vec<u8>,
}

impl StreamWatch {
    /// For a stream from its beginning.
    pub fn new(patterns: Arc<Patterns>) -> Self {
        Self { patterns, tail: Vec::new() }
    }

    /// Whether this may pass after all that did; an error if it would complete what must not.
    pub fn check(&mut self, data: &[u8]) -> Result<(), String> {
        self.tail.extend_from_slice(data);
        self.patterns.apply(&self.tail)?;
        let kept = self.tail.len().min(self.patterns.longest.saturating_sub(1));
        self.tail.drain(..self.tail.len() - kept);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacing(pairs: &[(&str, &str)]) -> Arc<Patterns> {
        let action = |to: &str| PatternAction::Replace(to.into());
        let texts = pairs.iter().map(|(from, to)| (from.as_bytes().to_vec(), action(to)));
        Arc::new(Patterns::new(texts))
    }

    fn stream(patterns: &Arc<Patterns>, chunks: &[&str]) -> String {
        let mut filter = StreamFilter::new(Arc::clone(patterns));
        let mut out = Vec::new();
        for chunk in chunks {
            out.extend(filter.push(chunk.as_bytes()).unwrap());
        }
        out.extend(filter.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_text_is_found_wherever_a_stream_is_cut() {
        let patterns = replacing(&[("needle", "<N>"), ("pin", "<P>")]);
        let text = "a needle, a pin, two needles, and nee";
        let expected = "a <N>, a <P>, two <N>s, and nee";
        for at in 0..text.len() {
            assert_eq!(stream(&patterns, &[&text[..at], &text[at..]]), expected, "{at}");
        }
        let bytes: Vec<_> = (0..text.len()).map(|at| &text[at..=at]).collect();
        assert_eq!(stream(&patterns, &bytes), expected);
    }

    #[test]
    fn no_more_is_held_back_than_could_begin_a_text() {
        let mut filter = StreamFilter::new(replacing(&[("needle", "")]));
        assert_eq!(filter.push(b"hay need").unwrap(), b"hay ");
        assert_eq!(filter.push(b"s").unwrap(), b"needs");
        assert!(filter.is_empty());
    }

    #[test]
    fn what_is_held_back_does_not_tell_how_a_secret_begins() {
        let held = |guess: &[u8]| {
            let action = PatternAction::Replace(b"***".to_vec());
            let secrets = Patterns::of_secrets([(b"correct-horse".to_vec(), action)]);
            let mut filter = StreamFilter::new(Arc::new(secrets));
            let passed = filter.push(guess).unwrap();
            (passed.len(), filter.finish().len())
        };
        assert_eq!(held(b"one\ncorrect"), held(b"one\nxyzxyzx"));
        assert_eq!(held(b"one\ncorrect"), (4, 7));
        // A line that is complete is not held back.
        assert_eq!(held(b"data: x\n"), (8, 0));
        let long = [&b"x".repeat(5000)[..], b"correct"].concat();
        assert_eq!(held(&long), held(&b"x".repeat(5007)));
    }

    #[test]
    fn a_secret_is_replaced_wherever_a_stream_is_cut() {
        let text = "a correct-horse, and a correct\n-horse";
        for at in 0..text.len() {
            let action = PatternAction::Replace(b"***".to_vec());
            let secrets = Arc::new(Patterns::of_secrets([(b"correct-horse".to_vec(), action)]));
            let passed = stream(&secrets, &[&text[..at], &text[at..]]);
            assert_eq!(passed, "a ***, and a correct\n-horse", "{at}");
        }
    }

    #[test]
    fn what_is_blocked_stops_before_any_of_it_has_passed() {
        let block = PatternAction::Block("no".into());
        let mut filter = StreamFilter::new(Arc::new(Patterns::new([(b"secret".to_vec(), block)])));
        assert_eq!(filter.push(b"a sec").unwrap(), b"a ");
        assert_eq!(filter.push(b"ret b"), Err("no".to_owned()));
    }

    #[test]
    fn a_watched_stream_stops_before_a_text_is_complete() {
        let block = PatternAction::Block("no".into());
        let patterns = Arc::new(Patterns::new([(b"secret".to_vec(), block)]));
        for cut in 1..6 {
            let mut watch = StreamWatch::new(Arc::clone(&patterns));
            let (first, second) = b"secret".split_at(cut);
            assert_eq!(watch.check(b"se secre"), Ok(()));
            assert_eq!(watch.check(first), Ok(()));
            assert_eq!(watch.check(second), Err("no".to_owned()), "{cut}");
        }
    }

    #[test]
    fn a_piece_grows_within_bounds() {
        let patterns = replacing(&[("k", &"v".repeat(4096))]);
        assert!(patterns.apply("k".repeat(64).as_bytes()).is_ok());
        assert!(patterns.apply("k".repeat(4096).as_bytes()).is_err());
        assert_eq!(patterns.apply(b"nothing"), Ok(None));
    }

    proptest::proptest! {
        #[test]
        fn cutting_a_stream_never_changes_what_passes(
            text in "[abk]{0,60}",
            cut in 0usize..60,
        ) {
            let patterns = replacing(&[("abk", "1"), ("kk", "22")]);
            let cut = cut.min(text.len());
            let whole = patterns.apply(text.as_bytes()).unwrap();
            let whole = whole.unwrap_or_else(|| text.clone().into_bytes());
            let cut = stream(&patterns, &[&text[..cut], &text[cut..]]);
            proptest::prop_assert_eq!(cut.into_bytes(), whole);
        }
    }
}
