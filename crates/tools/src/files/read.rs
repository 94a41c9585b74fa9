//! `read_file`: lines of text, with numbers, in bounded pieces.

use std::fmt::Write as _;

use serde::Serialize;
use stockade_core::{ErrorCode, Files, SandboxPath};

use super::{approve_files, escape_path, is_binary, media, unless_cancelled};
use crate::arguments::ReadFile;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Chunk size of reads.
const READ_CHUNK_BYTES: u32 = 1 << 20;
/// Lines of one answer, and bytes of them.
const DEFAULT_LINES: u64 = 2000;
const MAX_LINES: u64 = 20_000;
const MAX_TEXT_BYTES: usize = 256 << 10;
/// How much of a single line.
const MAX_LINE_CHARS: usize = 2000;
/// How far into a file lines are counted.
const MAX_SCANNED_BYTES: u64 = 256 << 20;

/// What was read.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct LineWindow {
    path: String,
    /// The number of the first line in `content`.
    first_line: u64,
    /// How many lines there are in it.
    lines: u64,
    /// Where to go on; absent at the end of the file.
    next_offset: Option<u64>,
    /// The text, without numbers.
    content: String,
    /// Whether lines were cut for their length.
    long_lines_cut: bool,
}

pub(crate) async fn read_file(
    session: &ToolSession,
    args: ReadFile,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let files = approve_files(session, &place, "read_file", &[&args.path], call).await?;
    unless_cancelled(call, read_or_describe(files, &args)).await
}

async fn read_or_describe(files: &dyn Files, args: &ReadFile) -> Result<ToolAnswer, ToolError> {
    let start = files.read(&args.path, 0, READ_CHUNK_BYTES).await?;
    if is_binary(&start) {
        return describe_binary(files, &args.path, &start).await;
    }
    let first = args.offset.unwrap_or(1).max(1);
    let most = args.limit.unwrap_or(DEFAULT_LINES).clamp(1, MAX_LINES);
    let mut reader = LineReader::new(&args.path, first, most);
    let (mut at, mut piece) = (0, start);
    loop {
        at += piece.len() as u64;
        let last = piece.len() < READ_CHUNK_BYTES as usize;
        reader.take_chunk(&piece);
        if reader.is_full() || last {
            return reader.finish_answer(last);
        }
        if at >= MAX_SCANNED_BYTES {
            let message = format!("`{}` has no line {first} in its first {at} bytes", args.path);
            return Err(ToolError::new(ErrorCode::TooLarge, message)
                .remedy("use `grep`, or `bash` with `tail -c` or `dd`"));
        }
        piece = files.read(&args.path, at, READ_CHUNK_BYTES).await?;
    }
}

/// A file that is not text is described, not shown.
async fn describe_binary(
    files: &dyn Files,
    path: &SandboxPath,
    start: &[u8],
) -> Result<ToolAnswer, ToolError> {
    let size = files.stat(path).await?.size;
    let mime = media::detect_kind(path.as_str(), start).mime;
    let data = serde_json::json!({ "path": path, "binary": true, "size": size, "mime": mime });
    let text = format!("{} is a binary file ({mime}, {size} bytes)", escape_path(path.as_str()));
    ToolAnswer::told(&data, text)
}

/// Cuts pieces into lines, and keeps those that were asked for.
struct LineReader {
    lines: LineWindow,
    most: u64,
    /// The number of the line that is being read.
    number: u64,
    /// The part of it that came so far, and whether some of it was left out.
    line: Vec<u8>,
    cut: bool,
    full: bool,
}

impl LineReader {
    fn new(path: &SandboxPath, first: u64, most: u64) -> Self {
        let lines =
            LineWindow { path: path.to_string(), first_line: first, ..LineWindow::default() };
        Self { lines, most, number: 1, line: Vec::new(), cut: false, full: false }
    }

    fn is_full(&self) -> bool {
        self.full
    }

    fn is_wanted(&self) -> bool {
        self.number >= self.lines.first_line
    }

    fn take_chunk(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.full {
                return;
            }
            let (text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            if self.is_wanted() {
                let room = (MAX_LINE_CHARS * 4).saturating_sub(self.line.len()).min(text.len());
                self.line.extend_from_slice(&text[..room]);
                self.cut |= room < text.len();
            }
            if ends {
                self.end_line(true);
            }
        }
    }

    fn end_line(&mut self, newline: bool) {
        if self.is_wanted() {
            if self.lines.lines == self.most || self.lines.content.len() >= MAX_TEXT_BYTES {
                self.full = true;
                self.lines.next_offset = Some(self.number);
                return;
            }
            self.push_line(newline);
        }
        self.number += 1;
        self.line.clear();
        self.cut = false;
    }

    fn push_line(&mut self, newline: bool) {
        let text = String::from_utf8_lossy(&self.line);
        let end = text.char_indices().nth(MAX_LINE_CHARS).map_or(text.len(), |(at, _)| at);
        self.lines.content.push_str(&text[..end]);
        if self.cut || end < text.len() {
            self.lines.long_lines_cut = true;
            self.lines.content.push_str(" … (line cut)");
        }
        if newline {
            self.lines.content.push('\n');
        }
        self.lines.lines += 1;
    }

    fn finish_answer(mut self, at_the_end: bool) -> Result<ToolAnswer, ToolError> {
        if !self.full && at_the_end && !self.line.is_empty() {
            self.end_line(false);
        }
        let first = self.lines.first_line;
        if self.lines.lines == 0 && first > 1 {
            let message = format!("`{}` has {} lines", self.lines.path, self.number - 1);
            return Err(ToolError::new(ErrorCode::Invalid, message)
                .remedy(format!("give an `offset` below {first}")));
        }
        let text = number_lines(&self.lines);
        ToolAnswer::told(&self.lines, text)
    }
}

fn number_lines(lines: &LineWindow) -> String {
    let mut text = String::new();
    for (number, line) in (lines.first_line..).zip(lines.content.lines()) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{number:>6}\t{line}");
    }
    match lines.next_offset {
        Some(next) => text.push_str(&format!("… more from line {next} on\n")),
        None if text.is_empty() => text.push_str("(empty file)\n"),
        None => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], first: u64, most: u64, piece: usize) -> ToolAnswer {
        let mut reader = LineReader::new(&"f".parse().unwrap(), first, most);
        for piece in text.chunks(piece) {
            reader.take_chunk(piece);
        }
        reader.finish_answer(true).unwrap()
    }

    #[test]
    fn ranges_are_the_same_however_the_file_arrives() {
        let text = b"one\ntwo\r\nthree\n\nfive";
        for piece in 1..text.len() + 1 {
            let answer = lines(text, 2, 2, piece);
            assert_eq!(answer.structured["content"], "two\r\nthree\n", "{piece}");
            assert_eq!(answer.structured["nextOffset"], 4);
            let rest = lines(text, 4, 10, piece);
            assert_eq!(rest.structured["content"], "\nfive");
            assert_eq!(rest.structured["nextOffset"], serde_json::Value::Null);
        }
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let text = "ä".repeat(100_000);
        let answer = lines(text.as_bytes(), 1, 10, 1 << 20);
        assert_eq!(answer.structured["longLinesCut"], true);
        assert!(answer.text.len() < 10_000);
    }

    #[test]
    fn an_empty_file_is_no_mistake_but_a_line_beyond_the_end_is() {
        assert_eq!(lines(b"", 1, 10, 1).text, "(empty file)\n");
        let mut reader = LineReader::new(&"f".parse().unwrap(), 5, 1);
        reader.take_chunk(b"a\nb\n");
        assert!(reader.finish_answer(true).unwrap_err().message.contains("has 2 lines"));
    }
}
