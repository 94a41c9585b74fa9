//! Text in files, line by line.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use globset::GlobMatcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish,
    SinkMatch,
};
use ignore::{DirEntry, WalkState};
use stockade_finder::{Answer, FinderFailure, FinderRequest, What};

use crate::Refused;
use crate::kept::KeptResults;
use crate::names::glob;
use crate::reading::{FileReader, open};
use crate::root::{SearchRoot, SearchStart};
use crate::walk::{self, Problems, inner};

/// The longest line that is looked at, and the most of one that is told.
const MAX_LINE_BYTES: usize = 16 << 20;
const MAX_TOLD_CHARS: usize = 500;
/// The most that is told of all of them: escaped, it may be several times as much.
const MAX_ANSWER_BYTES: usize = 2 << 20;

pub fn find(request: &FinderRequest, root: &SearchRoot) -> Result<Vec<Answer>, Refused> {
    let search = Search::new(request)?;
    let (kept, problems) = (Mutex::new(KeptResults::new(request.limit)), Problems::default());
    match &root.start {
        SearchStart::File(file) => {
            let size = file.metadata().map_or(u64::MAX, |found| found.len());
            let found = search
                .search_file(&mut search.build_reader(), file, size, &|| request.path.clone());
            add_results(&kept, request.path.as_bytes().to_vec(), found, &problems);
        }
        SearchStart::Directory(start) => walk::over(request, root, start)?.run(|| {
            let mut reader = search.build_reader();
            let (search, kept, problems) = (&search, &kept, &problems);
            Box::new(move |entry| {
                match entry {
                    Ok(entry) => search.search_entry(&mut reader, &entry, kept, problems),
                    Err(error) => problems.add(error.to_string()),
                }
                WalkState::Continue
            })
        }),
    }
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(build_answers(kept, request.limit as usize, problems))
}

type Results = KeptResults<Vec<Answer>>;

fn add_results(
    kept: &Mutex<Results>,
    path: Vec<u8>,
    found: io::Result<Vec<Answer>>,
    problems: &Problems,
) {
    match found {
        Ok(found) if found.is_empty() => {}
        Ok(found) => {
            let hits = found.iter().filter(|answer| is_hit(answer)).count();
            kept.lock().unwrap_or_else(PoisonError::into_inner).add(path, hits, found);
        }
        Err(error) => {
            problems.add(format!("`{}`: {error}", stockade_finder::shown(&path)));
        }
    }
}

fn is_hit(answer: &Answer) -> bool {
    matches!(answer, Answer::File(_) | Answer::Line { hit: true, .. })
}

/// As many hits as were asked for, in order of path and line.
fn build_answers(mut kept: Results, limit: usize, problems: Problems) -> Vec<Answer> {
    let mut more = std::mem::take(&mut kept.more);
    let (mut hits, mut bytes) = (0, 0);
    let mut answers = Vec::new();
    for answer in kept.into_results().flatten() {
        hits += usize::from(is_hit(&answer));
        bytes += estimate_answer_size(&answer);
        if hits > limit || bytes > MAX_ANSWER_BYTES {
            more = true;
            break;
        }
        answers.push(answer);
    }
    answers.push(Answer::End { more, problems: problems.told() });
    answers
}

/// About what it takes to tell.
fn estimate_answer_size(answer: &Answer) -> usize {
    match answer {
        Answer::File(path) => path.len(),
        Answer::Line { path, text, .. } => path.len() + text.len() + 64,
        Answer::End { .. } | Answer::Failed { .. } => 0,
    }
}

struct Search {
    matcher: RegexMatcher,
    glob: Option<(GlobMatcher, bool)>,
    context: usize,
    files_only: bool,
    limit: usize,
}

impl Search {
    fn new(request: &FinderRequest) -> Result<Self, Refused> {
        let What::Lines { pattern, glob: only, ignore_case, fixed, context, files_only } =
            &request.what
        else {
            return Err(Refused(FinderFailure::Pattern, "no pattern was given".into()));
        };
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(*ignore_case)
            .fixed_strings(*fixed)
            .multi_line(true)
            .line_terminator(Some(b'\n'))
            .build(pattern)
            .map_err(|error| Refused(FinderFailure::Pattern, error.to_string()))?;
        let whole = |pattern: &String| pattern.contains('/');
        let only = only.as_ref().map(|text| Ok((glob(text)?, whole(text)))).transpose()?;
        let (context, limit) = (*context as usize, request.limit as usize);
        Ok(Self { matcher, glob: only, context, files_only: *files_only, limit })
    }

    fn build_reader(&self) -> FileReader {
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            // A file that shrinks while it is mapped kills who reads it.
            .memory_map(MmapChoice::never())
            .heap_limit(Some(MAX_LINE_BYTES))
            .line_number(!self.files_only)
            .before_context(self.context)
            .after_context(self.context)
            .build();
        FileReader::new(searcher)
    }

    fn search_entry(
        &self,
        reader: &mut FileReader,
        entry: &DirEntry,
        kept: &Mutex<Results>,
        problems: &Problems,
    ) {
        let path = inner(entry.path());
        if !entry.file_type().is_some_and(|kind| kind.is_file()) || !self.is_wanted(path) {
            return;
        }
        let bytes = path.as_os_str().as_bytes();
        if !kept.lock().unwrap_or_else(PoisonError::into_inner).wants(bytes) {
            // Hits in this file sort after those that fill the limit; whether more exist is not known yet.
            return self.note_more(reader, entry, kept);
        }
        let found = open(entry.path()).and_then(|file| match file {
            Some((file, size)) => self.search_file(reader, &file, size, &|| walk::name(path)),
            None => Ok(Vec::new()),
        });
        add_results(kept, bytes.to_vec(), found, problems);
    }

    /// Looks for one hit beyond the limit, unless it is known that there is one.
    fn note_more(&self, reader: &mut FileReader, entry: &DirEntry, kept: &Mutex<Results>) {
        if kept.lock().unwrap_or_else(PoisonError::into_inner).more {
            return;
        }
        let Ok(Some((file, size))) = open(entry.path()) else { return };
        let found = self.search_file(reader, &file, size, &String::new).unwrap_or_default();
        if !found.is_empty() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).more = true;
        }
    }

    fn is_wanted(&self, path: &Path) -> bool {
        match &self.glob {
            None => true,
            Some((glob, true)) => glob.is_match(path),
            Some((glob, false)) => path.file_name().is_some_and(|name| glob.is_match(name)),
        }
    }

    fn search_file(
        &self,
        reader: &mut FileReader,
        file: &File,
        size: u64,
        name: &dyn Fn() -> String,
    ) -> io::Result<Vec<Answer>> {
        let mut sink = MatchSink { search: self, name, found: Vec::new(), hits: 0, binary: false };
        let binary = reader.search(&self.matcher, file, size, &mut sink)?;
        Ok(if binary || sink.binary { Vec::new() } else { sink.found })
    }
}

struct MatchSink<'a> {
    search: &'a Search,
    name: &'a dyn Fn() -> String,
    found: Vec<Answer>,
    hits: usize,
    binary: bool,
}

impl MatchSink<'_> {
    fn push_line(&mut self, number: Option<u64>, bytes: &[u8], hit: bool) {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * MAX_TOLD_CHARS)]);
        let end = text.char_indices().nth(MAX_TOLD_CHARS).map_or(text.len(), |(at, _)| at);
        let cut = end < text.len() || line.len() > 4 * MAX_TOLD_CHARS;
        let text = if cut { format!("{} …", &text[..end]) } else { text.into_owned() };
        let (path, number) = ((self.name)(), number.unwrap_or(0));
        self.found.push(Answer::Line { path, number, text, hit });
    }
}

impl Sink for MatchSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.hits += 1;
        if self.search.files_only {
            self.found.push(Answer::File((self.name)()));
            return Ok(false);
        }
        self.push_line(found.line_number(), found.bytes(), true);
        Ok(self.hits <= self.search.limit)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        self.push_line(context.line_number(), context.bytes(), false);
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}
