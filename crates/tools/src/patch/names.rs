//! The names of files in diffs: prefixes, quotes and timestamps.

/// The path after `--- ` or `+++ `, without a timestamp; nothing for `/dev/null`.
pub(super) fn header_path(rest: &str) -> Option<Result<String, String>> {
    let rest = rest.strip_suffix('\r').unwrap_or(rest);
    if rest.starts_with('"') {
        return Some(unquote_name(rest));
    }
    // A tab ends the name where a date follows; names that hold one are quoted.
    let name = rest.split('\t').next().unwrap_or(rest);
    (name != "/dev/null").then(|| Ok(name.to_owned()))
}

/// A name as git writes it: in quotes with escapes where it holds something unusual.
pub(super) fn unquote_name(given: &str) -> Result<String, String> {
    let Some(inner) = given.strip_prefix('"') else {
        return Ok(given.to_owned());
    };
    let mut bytes = Vec::new();
    let mut rest = inner.bytes();
    loop {
        match rest.next() {
            None => return Err("the quoted name does not end".into()),
            Some(b'"') => break,
            Some(b'\\') => bytes.push(parse_escape(&mut rest)?),
            Some(byte) => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "the name is not UTF-8".into())
}

fn parse_escape(rest: &mut std::str::Bytes<'_>) -> Result<u8, String> {
    let digit = |byte: Option<u8>| byte.filter(|b| (b'0'..=b'7').contains(b)).map(|b| b - b'0');
    match rest.next() {
        Some(b'n') => Ok(b'\n'),
        Some(b't') => Ok(b'\t'),
        Some(b'r') => Ok(b'\r'),
        Some(b'a') => Ok(7),
        Some(b'b') => Ok(8),
        Some(b'v') => Ok(11),
        Some(b'f') => Ok(12),
        Some(byte @ (b'"' | b'\\')) => Ok(byte),
        Some(high @ b'0'..=b'3') => match (digit(rest.next()), digit(rest.next())) {
            (Some(middle), Some(low)) => Ok((high - b'0') << 6 | middle << 3 | low),
            _ => Err("an escape in the quoted name is not complete".into()),
        },
        _ => Err("the quoted name has an unknown escape".into()),
    }
}

/// Takes git's `a/` and `b/` away, where both sides have them.
pub(super) fn strip_git_prefixes(
    old: Option<String>,
    new: Option<String>,
) -> (Option<String>, Option<String>) {
    let bare = |name: &Option<String>, prefix: &str| {
        name.as_ref().is_none_or(|name| name.starts_with(prefix))
    };
    if bare(&old, "a/") && bare(&new, "b/") {
        let cut = |name: String| name[2..].to_owned();
        return (old.map(cut), new.map(cut));
    }
    (old, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_git_writes_them() {
        assert_eq!(unquote_name(r#""a\tb\303\244\"""#).unwrap(), "a\tbä\"");
        assert!(unquote_name(r#""a"#).is_err() && unquote_name(r#""\9""#).is_err());
        assert_eq!(header_path("a/x\t2020-01-01"), Some(Ok("a/x".into())));
        assert_eq!(header_path("/dev/null"), None);
    }

    #[test]
    fn prefixes_go_only_where_both_sides_have_them() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(strip_git_prefixes(some("a/x"), some("b/x")), (some("x"), some("x")));
        assert_eq!(strip_git_prefixes(None, some("b/x")), (None, some("x")));
        assert_eq!(strip_git_prefixes(some("a/x"), some("a/x")), (some("a/x"), some("a/x")));
    }
}
