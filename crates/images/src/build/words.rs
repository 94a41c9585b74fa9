//! Words of an instruction: parted at spaces outside of quotes, then expanded and unquoted.

/// Upper bound of an expanded word.
const MAX_WORD_BYTES: usize = 256 << 10;

/// The words of a text, with their quotes and variables as they stand.
pub(super) fn split_words(text: &str, escape: char) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (letter, None) if letter.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            _ => {}
        }
        word.push(letter);
        if letter == escape && quote != Some('\'') {
            word.extend(letters.next());
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// A word without its quotes, with the values of its variables: `$X`, `${X}`, `${X:-default}` and `${X:+other}`. A
/// variable without a value is empty.
pub fn expand_word(
    word: &str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, &'static str> {
    let (mut expanded, mut quote) = (String::new(), None);
    let mut rest = word;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match (letter, quote) {
            ('\'' | '"', None) => quote = Some(letter),
            (letter, Some(open)) if letter == open => quote = None,
            ('$', None | Some('"')) => rest = expand_variable(rest, escape, lookup, &mut expanded)?,
            (letter, None | Some('"')) if letter == escape => {
                let next = rest.chars().next();
                // Within quotes only what would mean something is escaped.
                if quote.is_some()
                    && !next.is_some_and(|next| matches!(next, '"' | '$') || next == escape)
                {
                    expanded.push(letter);
                }
                expanded.extend(next);
                rest = &rest[next.map_or(0, char::len_utf8)..];
            }
            (letter, _) => expanded.push(letter),
        }
        if expanded.len() > MAX_WORD_BYTES {
            return Err("a word is longer than 256 KiB");
        }
    }
    Ok(expanded)
}

/// Expands what follows a `$`, and answers with the rest.
fn expand_variable<'w>(
    text: &'w str,
    escape: char,
    lookup: &dyn Fn(&str) -> Option<String>,
    into: &mut String,
) -> Result<&'w str, &'static str> {
    let Some(inner) = text.strip_prefix('{') else {
        let end = name_end(text);
        match end {
            0 => into.push('$'),
            _ => into.extend(lookup(&text[..end])),
        }
        return Ok(&text[end..]);
    };
    let end = name_end(inner);
    let (name, rest) = inner.split_at(end);
    if name.is_empty() {
        return Err("a variable has no name");
    }
    if let Some(rest) = rest.strip_prefix('}') {
        into.extend(lookup(name));
        return Ok(rest);
    }
    let (modifier, rest) = rest.split_at_checked(2).ok_or("a variable is not closed by `}`")?;
    let close = matching_brace(rest).ok_or("a variable is not closed by `}`")?;
    let (word, rest) = (&rest[..close], &rest[close + 1..]);
    let value = lookup(name).filter(|value| !value.is_empty());
    match (modifier, value) {
        (":-", Some(value)) => into.push_str(&value),
        (":-", None) => into.push_str(&expand_word(word, escape, lookup)?),
        (":+", Some(_)) => into.push_str(&expand_word(word, escape, lookup)?),
        (":+", None) => {}
        _ => return Err("only `${NAME:-word}` and `${NAME:+word}` are known"),
    }
    Ok(rest)
}

fn name_end(text: &str) -> usize {
    let is_letter = |at: usize, byte: u8| {
        byte == b'_' || byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit())
    };
    text.bytes().enumerate().take_while(|(at, byte)| is_letter(*at, *byte)).count()
}

/// Where the brace is that closes this text.
fn matching_brace(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(word: &str) -> Result<String, &'static str> {
        let lookup = |name: &str| match name {
            "A" => Some("one two".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        expand_word(word, '\\', &lookup)
    }

    #[test]
    fn words_are_parted_outside_of_quotes() {
        let words = split_words(r#"a "b c"  d\ e 'f "g'"#, '\\').unwrap();
        assert_eq!(words, ["a", "\"b c\"", "d\\ e", "'f \"g'"]);
        assert!(split_words("a \"b", '\\').is_err());
    }

    #[test]
    fn variables_are_expanded_but_not_within_single_quotes() {
        for (word, expected) in [
            ("x$A", "xone two"),
            ("\"${A}y\"", "one twoy"),
            ("'$A'", "$A"),
            ("\\$A", "$A"),
            ("$NONE-", "-"),
            ("${NONE:-d$A}", "done two"),
            ("${EMPTY:-d}", "d"),
            ("${A:+yes}${NONE:+no}", "yes"),
            ("$", "$"),
            ("a$1", "a$1"),
            ("\"a\\nb\"", "a\\nb"),
        ] {
            assert_eq!(expand(word).as_deref(), Ok(expected), "{word}");
        }
        for bad in ["${A", "${}", "${A:?x}", "${A-x}"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
