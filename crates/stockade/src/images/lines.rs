//! What programs write while an image is built, as lines that a terminal may show.

use stockade_core::is_unsafe_to_show;

/// The longest line that is shown whole.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Takes the whole lines out of what was written, cleaned. The rest waits for its end, unless it is too long.
pub(super) fn drain_lines(pending: &mut Vec<u8>) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let end = pending.iter().position(|byte| *byte == b'\n');
        let end = end.or((pending.len() > MAX_LINE_BYTES).then_some(MAX_LINE_BYTES));
        let Some(end) = end else { return lines };
        let line: Vec<u8> = pending.drain(..=end).collect();
        lines.push(clean_line(&line));
    }
}

/// A line without its end, and without what a terminal would obey.
pub(super) fn clean_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\n', '\r']).replace('\t', "    ");
    text.replace(is_unsafe_to_show, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_bounded_and_clean() {
        let mut pending = b"one\r\n\ttwo\x1b[1m\nrest".to_vec();
        assert_eq!(drain_lines(&mut pending), ["one", "    two\u{fffd}[1m"]);
        assert_eq!(pending, b"rest");
        let mut long = vec![b'x'; MAX_LINE_BYTES + 2];
        assert_eq!(drain_lines(&mut long).len(), 1);
        assert_eq!(long.len(), 1);
    }
}
