//! Finds the changes. Of a kernel overlay only the upper directory is walked, so the work is
//! proportional to what changed. Nothing but regular files and directories is ever opened, and no
//! file for its name alone: what a file is was asked first.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::{Change, ChangeKind, Diff};
use crate::changes::{Index, Layer, is_opaque, is_redirected, is_whiteout};
use crate::content;
use crate::digest::ContentDigest;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::held_back::{self, HeldReason};
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree, list_names, stat_at};
use crate::walk::visit_open;

/// Upper bound of the changes of one workspace.
const MAX_CHANGES: usize = 4_000_000;

/// Whether the contents of changed files are read to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Every change of a file or link carries its digest.
    Digested,
    /// Only as much as it takes to tell whether they differ.
    Compared,
}

/// What of the tree beneath can be seen in a directory of an upper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Below {
    /// There is no such directory beneath.
    Nothing,
    /// All of it, but for what the upper covers.
    Merged,
    /// Nothing, though it is there.
    Hidden,
}

struct LayerScan<'a> {
    lower: &'a OpenTree,
    layer: &'a Layer,
    contents: Contents,
    found: Vec<Change>,
    pending: Vec<PendingDirectory>,
}

/// A directory of an upper that is still to be looked into.
struct PendingDirectory {
    path: TreePath,
    below: Below,
    /// Where its own change is among those found.
    change: Option<usize>,
}

/// Compares a layer with the tree beneath it.
pub(crate) fn scan_layer(lower: &OpenTree, layer: &Layer, contents: Contents) -> FaultResult<Diff> {
    let root = PendingDirectory { path: TreePath::root(), below: Below::Merged, change: None };
    let pending = vec![root];
    let mut scan = LayerScan { lower, layer, contents, found: Vec::new(), pending };
    match layer {
        Layer::Upper(upper) => scan.upper(upper)?,
        Layer::Copy(copy, index) => scan.copy(copy, index)?,
    }
    let mut changes = scan.found;
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    crate::bare_repository::hold_repository_changes(&mut changes, lower);
    hold_within_held(&mut changes);
    Ok(Diff { changes })
}

/// What is in a new directory cannot be there without it.
fn hold_within_held(changes: &mut [Change]) {
    let mut above: Option<(TreePath, HeldReason)> = None;
    for change in changes {
        match &above {
            Some((top, why)) if change.path.is_within(top) => {
                change.held.get_or_insert_with(|| why.clone());
                continue;
            }
            Some(_) | None => {}
        }
        let fresh = matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged);
        above = change.held.clone().filter(|_| fresh).map(|why| (change.path.clone(), why));
    }
}

impl LayerScan<'_> {
    fn push(&mut self, change: Change) -> FaultResult<()> {
        if self.found.len() >= MAX_CHANGES {
            return Err(WorkspaceFault::TooMany { what: "the diff", most: MAX_CHANGES });
        }
        self.found.push(change);
        Ok(())
    }

    fn upper(&mut self, upper: &OpenTree) -> FaultResult<()> {
        while let Some(PendingDirectory { path, below, change }) = self.pending.pop() {
            match upper.dir(&path) {
                Ok(dir) => self.upper_directory(&path, &dir, below, change)?,
                Err(Errno::ACCESS | Errno::NAMETOOLONG) => {
                    self.record_unreachable(&path, change)?
                }
                Err(errno) => return Err(errno).step("open", &path),
            }
        }
        Ok(())
    }

    /// A directory that its maker closed, or nested deeper than a path can say.
    fn record_unreachable(&mut self, path: &TreePath, change: Option<usize>) -> FaultResult<()> {
        if let Some(known) = change.and_then(|at| self.found.get_mut(at)) {
            known.held = Some(HeldReason::OutOfReach);
            return Ok(());
        }
        let mut change = Change::new(path.clone(), ChangeKind::Changed, None, None);
        change.held = Some(HeldReason::OutOfReach);
        self.push(change)
    }

    fn upper_directory(
        &mut self,
        path: &TreePath,
        dir: &OwnedFd,
        below: Below,
        change: Option<usize>,
    ) -> FaultResult<()> {
        if is_redirected(dir) {
            return Err(WorkspaceFault::Refused {
                path: path.to_string(),
                problem: "stands for a directory of another name",
                remedy: "mount the overlay without `redirect_dir`",
            });
        }
        let below = if below == Below::Merged && is_opaque(dir) { Below::Hidden } else { below };
        let under = match below {
            Below::Nothing => None,
            Below::Merged | Below::Hidden => self.lower.handle(path).ok(),
        };
        // Everything in it is looked at before anything is noted: of a directory that can be listed
        // but not entered (mode 0400), or that is closed beneath, nothing is applied.
        let seen = list_entries(dir, under.as_ref()).and_then(|seen| {
            let gone = match below {
                Below::Hidden => self.list_hidden(path, &seen)?,
                Below::Nothing | Below::Merged => Vec::new(),
            };
            Ok((seen, gone))
        });
        let (seen, gone) = match seen {
            Err(Errno::ACCESS) => return self.record_unreachable(path, change),
            seen => seen.step("list", path)?,
        };
        for (name, new, old) in seen {
            let child = path.join(&name);
            match is_whiteout(&new) {
                true => self.maybe_removed(child, old)?,
                false => self.entry(child, &new, old.as_ref(), below)?,
            }
        }
        gone.into_iter().try_for_each(|(child, old)| self.maybe_removed(child, old))
    }

    /// What an opaque directory hides is gone, unless it was made again.
    fn list_hidden(
        &self,
        path: &TreePath,
        shown: &[ScanEntry],
    ) -> rustix::io::Result<Vec<(TreePath, Option<Stat>)>> {
        let mut gone = Vec::new();
        for name in self.lower.names(path)? {
            if shown.binary_search_by(|(known, ..)| known.cmp(&name)).is_err() {
                let child = path.join(&name);
                let old = self.lower.stat(&child)?;
                gone.push((child, old));
            }
        }
        Ok(gone)
    }

    fn copy(&mut self, copy: &OpenTree, index: &Index) -> FaultResult<()> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let closed = visit_open(copy, &TreePath::root(), |path, stat| {
            let known = index.get(path);
            if known.is_some() {
                seen.insert(path.clone());
            }
            if !known.is_some_and(|copied| copied.untouched(stat)) {
                found.push((path.clone(), *stat));
            }
            Ok(())
        })?;
        for (path, new) in found {
            match self.lower.stat(&path) {
                Err(Errno::ACCESS) => self.record_unreachable(&path, None)?,
                old => {
                    let old = old.step("look at", &path)?;
                    self.entry(path, &new, old.as_ref(), Below::Nothing)?;
                }
            }
        }
        self.pending.clear();
        let closed: HashSet<_> = closed.into_iter().collect();
        let places = self.find_change_indexes(&closed);
        for path in &closed {
            self.record_unreachable(path, places.get(path).copied())?;
        }
        let gone = |path: &&TreePath| !seen.contains(path) && !path.is_within_any(&closed);
        self.record_missing(index.paths().filter(gone).collect())
    }

    /// Where the changes at some paths are.
    fn find_change_indexes(&self, paths: &HashSet<TreePath>) -> HashMap<TreePath, usize> {
        let found = self.found.iter().enumerate();
        let wanted = found.filter(|(_, change)| paths.contains(&change.path));
        wanted.map(|(at, change)| (change.path.clone(), at)).collect()
    }

    /// Of what is gone from a copy, the topmost entries stand for all beneath them.
    fn record_missing(&mut self, paths: Vec<&TreePath>) -> FaultResult<()> {
        for path in paths {
            let Some((parent, _)) = path.split() else { continue };
            let above = self.layer.tree().stat(&parent).step("look at", &parent)?;
            // Without its directory it is gone with that, or with what took its place.
            if above.is_none_or(|stat| NodeKind::of(&stat) != NodeKind::Directory) {
                continue;
            }
            match self.lower.stat(path) {
                Err(Errno::ACCESS) => self.record_unreachable(path, None)?,
                old => self.maybe_removed(path.clone(), old.step("look at", path)?)?,
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: TreePath,
        new: &Stat,
        old: Option<&Stat>,
        below: Below,
    ) -> FaultResult<()> {
        match NodeKind::of(new) {
            NodeKind::Directory => self.directory(path, new, old, below),
            NodeKind::File => self.file(path, new, old),
            NodeKind::Symlink => self.link(path, new, old),
            NodeKind::Special => {
                let change = Change::new(path, kind_of(old, NodeKind::Special), old, Some(new));
                self.with_removed(change)
            }
        }
    }

    fn directory(
        &mut self,
        path: TreePath,
        new: &Stat,
        old: Option<&Stat>,
        below: Below,
    ) -> FaultResult<()> {
        let both = old.is_some_and(|old| NodeKind::of(old) == NodeKind::Directory);
        // The group bit is inherited from the directory above, not chosen.
        let moded = old.is_some_and(|old| (old.st_mode ^ new.st_mode) & 0o5777 != 0);
        let kind = match (both, moded) {
            (true, false) => None,
            (true, true) => Some(ChangeKind::ModeChanged),
            (false, _) => Some(kind_of(old, NodeKind::Directory)),
        };
        let change = kind.map(|_| self.found.len());
        let below = if both { below } else { Below::Nothing };
        self.pending.push(PendingDirectory { path: path.clone(), below, change });
        match kind {
            Some(kind) => self.with_removed(Change::new(path, kind, old, Some(new))),
            None => Ok(()),
        }
    }

    fn file(&mut self, path: TreePath, new: &Stat, old: Option<&Stat>) -> FaultResult<()> {
        let mut change = Change::new(path, kind_of(old, NodeKind::File), old, Some(new));
        let file = match self.layer.file(&change.path) {
            Err(WorkspaceFault::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                change.held = Some(HeldReason::OutOfReach);
                return self.with_removed(change);
            }
            opened => opened?,
        };
        if self.contents == Contents::Digested {
            let digest = ContentDigest::of_file(&file).step("read", &change.path)?;
            change.digest = Some(digest);
        }
        if change.kind == ChangeKind::Changed && self.is_same(&change.path, &file)? {
            change.kind = ChangeKind::ModeChanged;
            let same = change.old.map(|node| node.mode) == change.new.map(|node| node.mode);
            return if same { Ok(()) } else { self.push(change) };
        }
        change.binary = content::is_binary(&file).step("read", &change.path)?;
        change.was_below = old.is_none() && self.layer.was_below(&change.path);
        self.with_removed(change)
    }

    /// Whether the file beneath has the same content. One that cannot be read is another.
    fn is_same(&self, path: &TreePath, file: &File) -> FaultResult<bool> {
        match self.lower.file(path) {
            Err(Errno::ACCESS) => Ok(false),
            under => {
                content::has_same_content(&under.step("open", path)?, file).step("compare", path)
            }
        }
    }

    fn link(&mut self, path: TreePath, new: &Stat, old: Option<&Stat>) -> FaultResult<()> {
        let target = self.layer.tree().link(&path).step("read", &path)?;
        let kind = kind_of(old, NodeKind::Symlink);
        if kind == ChangeKind::Changed && self.lower.link(&path).step("read", &path)? == target {
            return Ok(());
        }
        let leaves = held_back::is_link_leaving(self.lower, &path, &target);
        let mut change = Change::new(path, kind, old, Some(new));
        change.digest = Some(ContentDigest::of_bytes(&target));
        if leaves {
            change.held.get_or_insert(HeldReason::LeavesTree);
        }
        self.with_removed(change)
    }

    fn maybe_removed(&mut self, path: TreePath, old: Option<Stat>) -> FaultResult<()> {
        match old {
            Some(old) => {
                self.with_removed(Change::new(path, ChangeKind::Removed, Some(&old), None))
            }
            None => Ok(()),
        }
    }

    /// Adds a change, and what goes with it where it takes a directory away.
    fn with_removed(&mut self, mut change: Change) -> FaultResult<()> {
        if change.has_old_kind(NodeKind::Directory) && !change.has_new_kind(NodeKind::Directory) {
            let mut first = None;
            let closed = visit_open(self.lower, &change.path, |path, _| {
                change.beneath += 1;
                if first.is_none() && held_back::is_listed(path) {
                    first = Some(path.clone());
                }
                Ok(())
            })?;
            if let Some(path) = first {
                change.held.get_or_insert(HeldReason::Contains(path));
            }
            if !closed.is_empty() {
                change.held = Some(HeldReason::OutOfReach);
            }
        }
        self.push(change)
    }
}

/// A name in a directory of an upper, what it is there, and what it is beneath.
type ScanEntry = (Vec<u8>, Stat, Option<Stat>);

/// Everything in a directory, sorted by name. What disappears meanwhile is passed over.
fn list_entries(dir: &OwnedFd, under: Option<&OwnedFd>) -> rustix::io::Result<Vec<ScanEntry>> {
    let mut entries = Vec::new();
    for name in list_names(dir)? {
        let Some(new) = stat_at(dir, &name)? else { continue };
        let old = match under {
            Some(under) => stat_at(under, &name)?,
            None => None,
        };
        entries.push((name, new, old));
    }
    Ok(entries)
}

fn kind_of(old: Option<&Stat>, new: NodeKind) -> ChangeKind {
    match old.map(NodeKind::of) {
        None => ChangeKind::Added,
        Some(old) if old == new => ChangeKind::Changed,
        Some(_) => ChangeKind::TypeChanged,
    }
}
