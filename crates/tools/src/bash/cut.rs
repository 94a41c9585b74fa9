//! Long output, cut in the middle: its beginning and its end tell most.

use std::fmt::Write as _;

use stockade_core::StreamId;

use crate::ToolError;
use crate::place::ToolJob;

/// Most bytes of one stream in an answer.
pub(super) const MAX_STREAM_BYTES: u64 = 30_000;

/// A stream as text, in whole or with its middle left out and the place marked.
pub(super) fn cut_output(job: &ToolJob, stream: StreamId) -> Result<(String, bool), ToolError> {
    let total = job.kept(stream);
    if total <= MAX_STREAM_BYTES {
        let whole = job.read(stream, 0, MAX_STREAM_BYTES)?;
        return Ok((String::from_utf8_lossy(&whole.data).into_owned(), false));
    }
    let head = job.read(stream, 0, MAX_STREAM_BYTES / 2)?.data;
    let tail = job.read(stream, total - MAX_STREAM_BYTES / 2, MAX_STREAM_BYTES / 2)?.data;
    let (head, tail) = (whole_head(&head), whole_tail(&tail));
    let left_out = total - (head.len() + tail.len()) as u64;
    let mut text = String::from_utf8_lossy(head).into_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n… {left_out} bytes left out; `bash` with action `logs`, job_id `{}`, stream `{}`, \
         offset {} has them …\n",
        job.watcher.job(),
        stream_name(stream),
        head.len(),
    );
    text.push_str(&String::from_utf8_lossy(tail));
    Ok((text, true))
}

pub(super) fn stream_name(stream: StreamId) -> &'static str {
    match stream {
        StreamId::Stdout => "stdout",
        StreamId::Stderr => "stderr",
    }
}

/// Without a character that was cut at the end.
fn whole_head(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        // Only what could still become a character is left out; what is no text stays.
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        Ok(_) | Err(_) => bytes,
    }
}

/// Without the rest of a character that was cut at the start.
fn whole_tail(bytes: &[u8]) -> &[u8] {
    let continues = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let rest = bytes.iter().take(3).take_while(|byte| continues(byte)).count();
    &bytes[rest..]
}

/// The last line of what was written, short and printable, for people who wait.
pub(super) fn last_line(newest: &[u8]) -> String {
    let text = String::from_utf8_lossy(&newest[newest.len().saturating_sub(2000)..]);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let printable: String = line.chars().filter(|c| !c.is_control()).collect();
    printable[..printable.floor_char_boundary(200)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_cut_in_two() {
        let text = "ä€😀".repeat(100);
        for at in 0..text.len() {
            let (head, tail) = text.as_bytes().split_at(at);
            assert!(std::str::from_utf8(whole_head(head)).is_ok());
            assert!(std::str::from_utf8(whole_tail(tail)).is_ok());
        }
        assert_eq!(whole_head(b"\xff\xff"), b"\xff\xff");
    }

    #[test]
    fn the_last_line_is_short_and_printable() {
        assert_eq!(last_line(b"one\ntwo\x1b[0m\n\n"), "two[0m");
        assert_eq!(last_line(&[b'x'; 5000]).len(), 200);
        assert_eq!(last_line(b""), "");
    }
}
