//! What a workspace's guest changed, as compared with the tree beneath.

mod patch;
mod scan;

use std::fmt;

use rustix::fs::Stat;
use serde::Serialize;

use crate::digest::ContentDigest;
use crate::held_back::{self, HeldReason};
use crate::path::TreePath;
use crate::tree::NodeKind;

pub(crate) use patch::format_patch;
pub use patch::printable;
pub(crate) use scan::{Contents, scan_layer};

/// Everything that differs, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// The changes; a directory comes before what is in it.
    pub changes: Vec<Change>,
}

/// One path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Where.
    pub path: TreePath,
    /// How.
    pub kind: ChangeKind,
    /// Why `apply` holds it back unless it is named.
    pub held: Option<HeldReason>,
    /// Whether the new content is not text.
    pub binary: bool,
    /// What is there without the change.
    pub old: Option<Node>,
    /// What is there with the change.
    pub new: Option<Node>,
    /// The digest of a file's new content or of a link's new target, where contents were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<ContentDigest>,
    /// How many entries are removed with a directory.
    pub beneath: u64,
    /// Whether it was beneath when the guest began to change it, though it may be gone now.
    #[serde(skip)]
    pub(crate) was_below: bool,
}

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It has other content; a link leads elsewhere. The mode may differ too.
    Changed,
    /// It is gone, with all that was in it.
    Removed,
    /// Only its mode differs.
    ModeChanged,
    /// It is another kind of thing.
    TypeChanged,
}

/// One side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Its permission bits.
    pub mode: u32,
    /// Its size in bytes.
    pub size: u64,
}

impl Node {
    pub(crate) fn of(stat: &Stat) -> Self {
        let kind = NodeKind::of(stat);
        Self { kind, mode: stat.st_mode & 0o7777, size: stat.st_size as u64 }
    }
}

impl Change {
    pub(crate) fn new(
        path: TreePath,
        kind: ChangeKind,
        old: Option<&Stat>,
        new: Option<&Stat>,
    ) -> Self {
        let (old, new) = (old.map(Node::of), new.map(Node::of));
        let held = find_held_reason(&path, new.as_ref());
        let digest = None;
        Self { path, kind, held, binary: false, old, new, digest, beneath: 0, was_below: false }
    }

    /// Whether `apply` takes it, given what was named.
    pub(crate) fn is_wanted(&self, include: &[TreePath]) -> bool {
        let Some(why) = &self.held else { return true };
        let named = include.iter().any(|path| self.path.is_within(path));
        // What is named needs the new directories above it.
        let fresh = matches!(self.kind, ChangeKind::Added | ChangeKind::TypeChanged);
        let above = fresh && include.iter().any(|path| path.is_within(&self.path));
        why.can_be_named() && (named || above)
    }

    /// Whether the new side is a thing of this kind.
    pub(crate) fn has_new_kind(&self, kind: NodeKind) -> bool {
        self.new.is_some_and(|node| node.kind == kind)
    }

    /// Whether the old side is a thing of this kind.
    pub(crate) fn has_old_kind(&self, kind: NodeKind) -> bool {
        self.old.is_some_and(|node| node.kind == kind)
    }
}

fn find_held_reason(path: &TreePath, new: Option<&Node>) -> Option<HeldReason> {
    let named = match new {
        Some(_) => held_back::by_name(path),
        None => held_back::by_listed_name(path),
    };
    let named = named.map(HeldReason::RunsCode);
    match new.map(|node| node.kind) {
        Some(NodeKind::Special) => Some(HeldReason::Special),
        Some(NodeKind::Symlink) => {
            named.or_else(|| held_back::by_what_is_in_it(path).map(HeldReason::RunsCode))
        }
        Some(NodeKind::File) => {
            let set_id = new.is_some_and(|node| node.mode & 0o6000 != 0);
            named.or(set_id.then_some(HeldReason::SetId))
        }
        Some(NodeKind::Directory) | None => named,
    }
}

impl Diff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The change at a path.
    pub fn at(&self, path: &TreePath) -> Option<&Change> {
        self.changes
            .binary_search_by(|change| change.path.cmp(path))
            .ok()
            .map(|at| &self.changes[at])
    }

    /// The digest of everything that differs: an approval that names it is bound to the very
    /// contents (C-23).
    pub fn digest(&self) -> ContentDigest {
        // Paths, kinds, modes, sizes and digests always have a JSON form.
        ContentDigest::of_bytes(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// The changes that an `apply` with these names brings into the tree.
    pub fn chosen<'a>(&'a self, include: &'a [TreePath]) -> impl Iterator<Item = &'a Change> {
        self.changes.iter().filter(|change| change.is_wanted(include))
    }

    /// The changes that are held back unless they are named.
    pub fn held(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.held.is_some())
    }
}

impl ChangeKind {
    /// One letter for a listing.
    pub const fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Changed => 'M',
            Self::Removed => 'D',
            Self::ModeChanged => 'P',
            Self::TypeChanged => 'T',
        }
    }
}

impl fmt::Display for Diff {
    /// A line for each change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.letter(), self.path)?;
        let directory = self.new.or(self.old).is_some_and(|node| node.kind == NodeKind::Directory);
        if directory {
            f.write_str("/")?;
        }
        if let (Some(old), Some(new)) = (self.old, self.new)
            && old.mode != new.mode
            && old.kind == new.kind
        {
            write!(f, " (mode {:04o} to {:04o})", old.mode, new.mode)?;
        }
        if self.beneath > 0 {
            write!(f, " (with {} inside)", self.beneath)?;
        }
        if self.binary {
            f.write_str(" (binary)")?;
        }
        match &self.held {
            Some(why) => write!(f, " [held back: {why}]"),
            None => Ok(()),
        }
    }
}
