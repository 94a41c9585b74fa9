//! Changes as unified text. Bounded per file and in all; what is not text or too long is named, not
//! shown.

use std::fmt::Write;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use similar::{Algorithm, TextDiff};
use stockade_core::is_unsafe_to_show;

use super::{Change, ChangeKind, Diff};
use crate::changes::Layer;
use crate::content;
use crate::digest::ContentDigest;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::tree::{NodeKind, OpenTree};

/// The longest file whose text is compared.
const MAX_COMPARED_BYTES: usize = 1 << 20;
/// The longest text that is made.
const MAX_PATCH_BYTES: usize = 16 << 20;
/// Timeout of comparing two texts; after it a coarser answer is taken.
const FILE_DIFF_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of the whole patch; the rest is left out.
const PATCH_TIMEOUT: Duration = Duration::from_secs(20);

/// What one side of a change holds.
enum PatchSide {
    Nothing,
    Text(Vec<u8>),
    Unshown(&'static str),
}

/// The whole diff as unified text, in the form git writes.
pub(crate) fn format_patch(diff: &Diff, lower: &OpenTree, layer: &Layer) -> FaultResult<String> {
    let mut text = String::new();
    let begun = Instant::now();
    for change in &diff.changes {
        if text.len() > MAX_PATCH_BYTES || begun.elapsed() > PATCH_TIMEOUT {
            text.push_str("# The rest is left out: there is too much of it.\n");
            break;
        }
        write_change(&mut text, change, lower, layer)?;
    }
    Ok(text)
}

fn write_change(
    text: &mut String,
    change: &Change,
    lower: &OpenTree,
    layer: &Layer,
) -> FaultResult<()> {
    write_header(text, change);
    let old = match change.old.map(|node| node.kind) {
        None => PatchSide::Nothing,
        Some(NodeKind::File) => match lower.file(&change.path) {
            Err(Errno::ACCESS) => PatchSide::Unshown("a file that cannot be read"),
            file => read_side(file.step("open", &change.path)?, change)?,
        },
        Some(NodeKind::Symlink) => {
            PatchSide::Text(lower.link(&change.path).step("read", &change.path)?)
        }
        Some(NodeKind::Directory) => PatchSide::Unshown("a directory"),
        Some(NodeKind::Special) => PatchSide::Unshown("a device, fifo or socket"),
    };
    let new = match change.new.map(|node| node.kind) {
        None => PatchSide::Nothing,
        Some(NodeKind::File) if change.held.as_ref().is_some_and(|why| !why.can_be_named()) => {
            PatchSide::Unshown("a file that cannot be read")
        }
        Some(NodeKind::File) => read_side(layer.file(&change.path)?, change)?,
        Some(NodeKind::Symlink) => {
            PatchSide::Text(layer.tree().link(&change.path).step("read", &change.path)?)
        }
        Some(NodeKind::Directory) => PatchSide::Unshown("a directory"),
        Some(NodeKind::Special) => PatchSide::Unshown("a device, fifo or socket"),
    };
    refuse_another(change, &new)?;
    write_body(text, change, old, new);
    Ok(())
}

/// What is shown is what the digest stands for, or nothing is (C-23).
fn refuse_another(change: &Change, new: &PatchSide) -> FaultResult<()> {
    let (PatchSide::Text(text), Some(digest)) = (new, change.digest) else { return Ok(()) };
    let read = match change.has_new_kind(NodeKind::Symlink) {
        true => ContentDigest::of_bytes(text),
        false => ContentDigest::of_content(text),
    };
    if read == digest { Ok(()) } else { Err(WorkspaceFault::changed_meanwhile(&change.path)) }
}

fn read_side(file: std::fs::File, change: &Change) -> FaultResult<PatchSide> {
    if content::is_binary(&file).step("read", &change.path)? {
        return Ok(PatchSide::Unshown("not text"));
    }
    let whole = content::read_bounded(&file, MAX_COMPARED_BYTES).step("read", &change.path)?;
    Ok(whole.map_or(PatchSide::Unshown("too long to show"), PatchSide::Text))
}

fn write_header(text: &mut String, change: &Change) {
    let path = &change.path;
    let _ = writeln!(text, "diff --git a/{path} b/{path}");
    let mode = |node: super::Node| match node.kind {
        NodeKind::File => 0o100_000 | node.mode,
        NodeKind::Symlink => 0o120_000,
        NodeKind::Directory => 0o040_000 | node.mode,
        NodeKind::Special => node.mode,
    };
    let _ = match (change.old.map(mode), change.new.map(mode)) {
        (None, Some(new)) => writeln!(text, "new file mode {new:06o}"),
        (Some(old), None) => writeln!(text, "deleted file mode {old:06o}"),
        (Some(old), Some(new)) if old != new => {
            writeln!(text, "old mode {old:06o}\nnew mode {new:06o}")
        }
        (Some(_), Some(_)) | (None, None) => Ok(()),
    };
    if let Some(why) = &change.held {
        let _ = writeln!(text, "# held back: {why}");
    }
}

fn write_body(text: &mut String, change: &Change, old: PatchSide, new: PatchSide) {
    if change.kind == ChangeKind::ModeChanged {
        return;
    }
    let (old_name, new_name) = (format!("a/{}", change.path), format!("b/{}", change.path));
    let name = |side: &PatchSide, name: String| match side {
        PatchSide::Nothing => "/dev/null".to_owned(),
        PatchSide::Text(_) | PatchSide::Unshown(_) => name,
    };
    let (old_name, new_name) = (name(&old, old_name), name(&new, new_name));
    let (old, new) = match (old, new) {
        (PatchSide::Unshown(what), _) | (_, PatchSide::Unshown(what)) => {
            let _ = writeln!(text, "# {old_name} and {new_name} differ: {what}");
            return;
        }
        (PatchSide::Nothing, PatchSide::Nothing) => return,
        (PatchSide::Nothing, PatchSide::Text(new)) => (Vec::new(), new),
        (PatchSide::Text(old), PatchSide::Nothing) => (old, Vec::new()),
        (PatchSide::Text(old), PatchSide::Text(new)) => (old, new),
    };
    let mut config = TextDiff::configure();
    let compared = config
        .algorithm(Algorithm::Myers)
        .timeout(FILE_DIFF_TIMEOUT)
        .diff_lines(&old[..], &new[..]);
    let unified = compared.unified_diff().header(&old_name, &new_name).to_string();
    text.push_str(&unified);
}

/// Text from a guest, safe to show on a terminal: control characters other than line breaks and tabs
/// are written out.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if is_unsafe_to_show(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}
