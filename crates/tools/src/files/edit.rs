//! `edit_file`: one exact piece of text for another. Ambiguity is refused, never resolved.

use std::sync::Arc;

use stockade_core::{ErrorCode, FilesExt};

use super::{approved_with, escape_path, replace};
use crate::approval::Detail;
use crate::arguments::EditFile;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Largest file that is edited.
pub(crate) const MAX_EDIT_BYTES: u64 = 16 << 20;
/// Matches whose lines an error lists.
const MAX_LISTED_MATCHES: usize = 20;

pub(crate) async fn edit_file(
    session: &ToolSession,
    args: EditFile,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let change = vec![
        Detail::private("old text", &args.old_string),
        Detail::private("new text", &args.new_string),
    ];
    let paths = [&args.path];
    let files = approved_with(session, &place, "edit_file", &paths, change, call).await?;
    let path = &args.path;
    let mode = replace::read_existing_mode(files, path)
        .await?
        .ok_or_else(|| ToolError::new(ErrorCode::NotFound, format!("there is no file `{path}`")))?;
    let old = files.read_all(path, MAX_EDIT_BYTES).await?;
    let (new, count) = apply_edit(&old, &args)?;
    replace::replace_file_uncancelled(Arc::clone(&place), path.clone(), new.into(), mode).await?;
    let data = serde_json::json!({ "path": path, "replacements": count });
    let times = if count == 1 { String::new() } else { format!(" ({count} places)") };
    ToolAnswer::told(&data, format!("edited {}{times}", escape_path(path.as_str())))
}

fn apply_edit(old: &[u8], args: &EditFile) -> Result<(Vec<u8>, usize), ToolError> {
    if args.old_string.is_empty() {
        return Err(ToolError::field("old_string", "is empty; `write_file` writes whole files"));
    }
    if args.old_string == args.new_string {
        return Err(ToolError::field("new_string", "is the same as `old_string`"));
    }
    let ends = LineEnds::of(old);
    let (from, to) = (ends.apply(&args.old_string), ends.apply(&args.new_string));
    let places = find_matches(old, from.as_bytes());
    match (places.len(), args.replace_all) {
        (0, _) => Err(not_there(args)),
        (count @ 1, _) | (count, true) => {
            let grown = to.len().saturating_sub(from.len()).saturating_mul(count);
            if old.len().saturating_add(grown) as u64 > MAX_EDIT_BYTES {
                return Err(too_large(args));
            }
            Ok((splice_matches(old, &places, from.len(), to.as_bytes()), count))
        }
        (count, false) => Err(ambiguous_match_error(old, &places, count)),
    }
}

/// A short text in many places can become more than any memory holds.
fn too_large(args: &EditFile) -> ToolError {
    let message = format!("`{}` would have more than {MAX_EDIT_BYTES} bytes", args.path);
    ToolError::new(ErrorCode::TooLarge, message).remedy("use `bash` with `sed`")
}

fn not_there(args: &EditFile) -> ToolError {
    ToolError::field("old_string", format!("does not occur in `{}`", args.path))
        .remedy("read the file and give the text exactly, white space included")
}

fn ambiguous_match_error(old: &[u8], places: &[usize], count: usize) -> ToolError {
    let line = |at: &usize| 1 + old[..*at].iter().filter(|byte| **byte == b'\n').count();
    let lines: Vec<_> =
        places.iter().take(MAX_LISTED_MATCHES).map(|at| line(at).to_string()).collect();
    let more = if count > MAX_LISTED_MATCHES { " …" } else { "" };
    ToolError::field(
        "old_string",
        format!("occurs {count} times, on lines {}{more}", lines.join(", ")),
    )
    .remedy("give more of the text around it, or set `replace_all`")
}

/// How the lines of a file end. Agents write `\n`; what they replace must end as the file's own do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineEnds {
    Plain,
    Windows,
}

impl LineEnds {
    /// Windows' only where every line ends that way: in a mixture nothing is assumed.
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut all = 0usize;
        let mut windows = 0usize;
        for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            all += 1;
            windows += usize::from(at > 0 && text[at - 1] == b'\r');
        }
        if all > 0 && all == windows { Self::Windows } else { Self::Plain }
    }

    pub(crate) fn apply(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Windows => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        }
    }
}

/// Where the needle stands, without overlaps.
fn find_matches(hay: &[u8], needle: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(found) = memchr::memmem::find(&hay[at..], needle) {
        places.push(at + found);
        at += found + needle.len();
    }
    places
}

fn splice_matches(old: &[u8], places: &[usize], length: usize, new: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(old.len() + places.len() * new.len());
    let mut at = 0;
    for place in places {
        whole.extend_from_slice(&old[at..*place]);
        whole.extend_from_slice(new);
        at = place + length;
    }
    whole.extend_from_slice(&old[at..]);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old: &str, from: &str, to: &str, replace_all: bool) -> Result<String, ToolError> {
        let args = EditFile {
            sandbox_id: None,
            path: "f".parse().unwrap(),
            old_string: from.into(),
            new_string: to.into(),
            replace_all,
        };
        apply_edit(old.as_bytes(), &args).map(|(new, _)| String::from_utf8(new).unwrap())
    }

    #[test]
    fn exactly_one_place_is_replaced() {
        assert_eq!(edit("a b c", "b", "x", false).unwrap(), "a x c");
        assert_eq!(edit("a b\nb", "b", "x", true).unwrap(), "a x\nx");
        assert!(edit("a", "b", "x", false).unwrap_err().message.contains("does not occur"));
    }

    #[test]
    fn ambiguity_names_the_count_and_the_lines() {
        let error = edit("b\na\nb\n", "b", "x", false).unwrap_err();
        assert!(error.message.contains("2 times, on lines 1, 3"), "{error}");
    }

    #[test]
    fn line_ends_and_a_missing_last_one_are_kept() {
        assert_eq!(edit("a\r\nb\r\nc", "a\nb", "x\ny", false).unwrap(), "x\r\ny\r\nc");
        assert_eq!(edit("a\nb", "b", "c", false).unwrap(), "a\nc");
        assert_eq!(edit("a\r\nb\n", "b", "c\nd", false).unwrap(), "a\r\nc\nd\n");
    }

    #[test]
    fn nothing_and_no_change_are_refused() {
        assert!(edit("a", "", "x", false).is_err());
        assert!(edit("a", "a", "a", false).is_err());
    }
}
