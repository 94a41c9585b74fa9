//! Counts words.

/// Number of words in a text.
///
/// ```
/// assert_eq!(counting::words("one two"), 2);
/// ```
pub fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

#[cfg(test)]
mod tests {
    #[test]
    fn empty_text_has_no_words() {
        assert_eq!(super::words(" \n"), 0);
    }
}
