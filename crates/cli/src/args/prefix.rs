//! Ids by their beginning, as people type them.

use std::fmt::Display;

use stockade_core::{Error, ErrorCode, Result};

/// How many ids a message lists.
const MAX_LISTED: usize = 8;

/// The one that is meant: this very id, or the only one that begins so. Nothing where none does.
pub fn by_prefix<T: Display>(
    what: &str,
    given: &str,
    ids: impl IntoIterator<Item = T>,
    operation: &'static str,
) -> Result<Option<T>> {
    let mut meant: Vec<(String, T)> = Vec::new();
    for id in ids {
        let text = id.to_string();
        if text == given {
            return Ok(Some(id));
        }
        if text.starts_with(given) && !meant.iter().any(|(known, _)| *known == text) {
            meant.push((text, id));
        }
    }
    if meant.len() < 2 {
        return Ok(meant.pop().map(|(_, id)| id));
    }
    let mut listed: Vec<_> = meant.iter().take(MAX_LISTED).map(|(text, _)| text.as_str()).collect();
    if meant.len() > MAX_LISTED {
        listed.push("…");
    }
    let message = format!("{} {what} begin with `{given}`: {}", meant.len(), listed.join(", "));
    Err(Error::new(ErrorCode::Invalid, operation, message).remedy("give more of the id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(given: &str, ids: &[&'static str]) -> Result<Option<&'static str>> {
        by_prefix("things", given, ids.iter().copied(), "test")
    }

    #[test]
    fn a_whole_id_or_a_beginning_that_only_one_has_is_enough() {
        assert_eq!(found("ab", &["abc", "xyz"]).unwrap(), Some("abc"));
        assert_eq!(found("ab", &["abc", "ab"]).unwrap(), Some("ab"));
        assert_eq!(found("ab", &["abc", "abc"]).unwrap(), Some("abc"));
        assert_eq!(found("q", &["abc", "xyz"]).unwrap(), None);
    }

    #[test]
    fn several_that_begin_so_are_listed() {
        let error = found("a", &["abc", "abd", "xyz"]).unwrap_err();
        assert!(error.message().contains("2 things begin with `a`: abc, abd"), "{error}");
        let many = ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"];
        assert!(found("a", &many).unwrap_err().message().ends_with("a7, …"));
    }
}
