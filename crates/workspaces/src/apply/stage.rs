//! Prepares new contents beside the tree they will go into, on its own file system, and writes down
//! the steps.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::apply_log::AppliedContent;
use super::check::Todo;
use super::intent::{
    ApplyAct, ApplyAction, ApplyLedger, ApplyPhase, FileIdentity, Intent, root_of,
};
use super::{Trees, recover};
use crate::attributes;
use crate::content;
use crate::diff::{Change, ChangeKind};
use crate::digest::ContentDigest;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::held_back::is_link_leaving;
use crate::tree::NodeKind;

/// Files up to which each is flushed: above, one flush of the whole file system is cheaper.
const MAX_FILE_FLUSHES: usize = 64;

struct Stage<'a> {
    trees: &'a Trees<'a>,
    dir: OwnedFd,
    steps: Vec<ApplyAction>,
    /// Modes that close a directory to its owner come last.
    last: Vec<ApplyAction>,
    exchange: bool,
    flush_each: bool,
    next: usize,
}

/// Stages everything. When this returns, the steps are on disk and none is done.
pub(super) fn stage_changes(
    trees: &Trees<'_>,
    todo: &[Todo<'_>],
    ledger: &ApplyLedger,
) -> FaultResult<Intent> {
    let mut intent = Intent {
        target: trees.target.path().to_owned(),
        root: root_of(trees.target)?,
        elsewhere: trees.elsewhere,
        stage: stockade_fs::draft_name("stockade-apply"),
        phase: ApplyPhase::Staging,
        steps: Vec::new(),
    };
    ledger.write(&intent)?;
    match fill_stage(trees, todo, &intent.stage) {
        Ok(steps) => intent.steps = steps,
        Err(fault) => {
            recover::clear_stage(trees.target, &intent, ledger)?;
            return Err(fault);
        }
    }
    intent.phase = ApplyPhase::Acting;
    ledger.write(&intent)?;
    Ok(intent)
}

fn fill_stage(trees: &Trees<'_>, todo: &[Todo<'_>], name: &str) -> FaultResult<Vec<ApplyAction>> {
    rustix::fs::mkdirat(trees.target, name, Mode::from_raw_mode(0o700)).step("make", name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(trees.target, name, flags, Mode::empty()).step("open", name)?;
    let exchange = can_exchange(&dir).step("try", name)?;
    let flush_each = todo.len() <= MAX_FILE_FLUSHES;
    let (steps, last) = (Vec::new(), Vec::new());
    let mut stage = Stage { trees, dir, steps, last, exchange, flush_each, next: 0 };
    todo.iter().try_for_each(|todo| stage.add(todo))?;
    stage.finish(name)
}

/// Whether the file system can swap two names in one step.
fn can_exchange(dir: &OwnedFd) -> rustix::io::Result<bool> {
    for name in ["a", "b"] {
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700))?;
    }
    let swapped = rustix::fs::renameat_with(dir, "a", dir, "b", RenameFlags::EXCHANGE);
    for name in ["a", "b"] {
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?;
    }
    match swapped {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl Stage<'_> {
    fn add(&mut self, todo: &Todo<'_>) -> FaultResult<()> {
        let change = todo.change;
        match (change.new, todo.now) {
            (None, None) => Ok(()),
            (None, Some(old)) => {
                let slot = self.next_slot();
                self.push(change, slot, ApplyAct::Take { old }, None);
                Ok(())
            }
            (Some(new), Some(old)) if is_directory_mode(change) => {
                let before = old.mode;
                self.mode(change, old.ino, before, keep_group(new.mode, before));
                Ok(())
            }
            (Some(_), now) => self.stage_new_entry(change, now),
        }
    }

    /// Stages a new thing and the steps that bring it into the tree.
    fn stage_new_entry(&mut self, change: &Change, now: Option<FileIdentity>) -> FaultResult<()> {
        let slot = self.next_slot();
        let (new, applied) = self.stage_content(change, now.as_ref(), &slot)?;
        match now {
            None => self.push(change, slot, ApplyAct::Place { new }, applied),
            Some(old) if self.exchange => {
                self.push(change, slot, ApplyAct::Swap { new, old }, applied);
            }
            Some(old) => {
                let aside = self.next_slot();
                self.push(change, aside, ApplyAct::Take { old }, None);
                self.push(change, slot, ApplyAct::Place { new }, applied);
            }
        }
        let Some(node) = change.new.filter(|node| node.kind == NodeKind::Directory) else {
            return Ok(());
        };
        if node.mode & 0o700 != 0o700 {
            self.mode(change, new, node.mode | 0o700, node.mode);
        }
        Ok(())
    }

    fn next_slot(&mut self) -> String {
        self.next += 1;
        self.next.to_string()
    }

    fn push(
        &mut self,
        change: &Change,
        slot: String,
        act: ApplyAct,
        applied: Option<AppliedContent>,
    ) {
        self.steps.push(ApplyAction { slot, path: change.path.clone(), act, applied });
    }

    fn mode(&mut self, change: &Change, of: u64, before: u32, after: u32) {
        let (slot, path) = (self.next_slot(), change.path.clone());
        let act = ApplyAct::Mode { of, before, after };
        let action = ApplyAction { slot, path, act, applied: None };
        let opens = after & 0o700 == 0o700;
        if opens { self.steps.push(action) } else { self.last.push(action) }
    }

    /// Makes the new thing in the stage: its number, and what of the layer it holds.
    fn stage_content(
        &self,
        change: &Change,
        now: Option<&FileIdentity>,
        slot: &str,
    ) -> FaultResult<(u64, Option<AppliedContent>)> {
        let kind = change.new.map(|node| node.kind);
        let digest = match kind {
            Some(NodeKind::Directory) => {
                self.make_directory(change, slot)?;
                None
            }
            Some(NodeKind::Symlink) => Some(self.make_link(change, slot)?),
            Some(NodeKind::File | NodeKind::Special) | None => {
                Some(self.make_file(change, now, slot)?)
            }
        };
        let applied =
            change.new.zip(digest).map(|(node, digest)| AppliedContent::new(node, digest));
        let made = rustix::fs::statat(&self.dir, slot, AtFlags::SYMLINK_NOFOLLOW);
        Ok((made.step("look at", &change.path)?.st_ino, applied))
    }

    fn make_directory(&self, change: &Change, slot: &str) -> FaultResult<()> {
        let mode = change.new.map_or(0o700, |node| node.mode & 0o1777 | 0o700);
        rustix::fs::mkdirat(&self.dir, slot, Mode::from_raw_mode(0o700))
            .step("make", &change.path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, slot, flags, Mode::empty());
        let made = made.step("open", &change.path)?;
        self.set_owner(change, slot);
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode)).step("set the mode of", &change.path)
    }

    fn make_link(&self, change: &Change, slot: &str) -> FaultResult<ContentDigest> {
        let target = self.trees.layer.tree().link(&change.path).step("read", &change.path)?;
        let digest = ContentDigest::of_bytes(&target);
        expect_digest(change, digest)?;
        // Read anew: a guest that still runs may have changed it since it was judged.
        if change.held.is_none() && is_link_leaving(self.trees.lower, &change.path, &target) {
            return Err(WorkspaceFault::Refused {
                path: change.path.to_string(),
                problem: "was made to lead out of the tree meanwhile",
                remedy: "end the sandbox and look at the diff again",
            });
        }
        rustix::fs::symlinkat(&target[..], &self.dir, slot).step("create", &change.path)?;
        self.set_owner(change, slot);
        Ok(digest)
    }

    fn make_file(
        &self,
        change: &Change,
        now: Option<&FileIdentity>,
        slot: &str,
    ) -> FaultResult<ContentDigest> {
        let source = self.trees.layer.file(&change.path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.dir, slot, flags, Mode::from_raw_mode(0o600));
        let made: File = made.step("create", &change.path)?.into();
        content::copy_content(&source, &made).step("copy", &change.path)?;
        // Of the copy, which the guest cannot reach: the source may change while it is read.
        let digest = ContentDigest::of_file(&made).step("read", &change.path)?;
        expect_digest(change, digest)?;
        self.set_owner(change, slot);
        if now.is_some_and(|now| now.kind == NodeKind::File) {
            self.keep_attributes(change, &made)?;
        }
        // After the access list, whose mask it sets.
        rustix::fs::fchmod(&made, Mode::from_raw_mode(file_mode(change, now)))
            .step("set the mode of", &change.path)?;
        if self.flush_each {
            made.sync_all().step("write", &change.path)?;
        }
        Ok(digest)
    }

    /// Attributes `user.*` of a file and its access list outlast its content. Nothing else does:
    /// rights to run with were given to the old one.
    fn keep_attributes(&self, change: &Change, made: &File) -> FaultResult<()> {
        // What may not be read by this user had its attributes set by another.
        let Ok(old) = self.trees.target.file(&change.path) else { return Ok(()) };
        attributes::copy_attributes(&old, made).step("keep the attributes of", &change.path)
    }

    /// What is replaced stays its owner's, where that can be; what root adds becomes the tree's owner's.
    fn set_owner(&self, change: &Change, slot: &str) {
        let root = rustix::process::geteuid().is_root();
        let owner = match self.trees.target.stat(&change.path) {
            Ok(Some(old)) => Some(old),
            Ok(None) | Err(_) if root => rustix::fs::fstat(self.trees.target).ok(),
            Ok(None) | Err(_) => None,
        };
        let Some(owner) = owner else { return };
        let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let _ = rustix::fs::chownat(&self.dir, slot, Some(uid), Some(gid), flags);
    }

    fn finish(mut self, name: &str) -> FaultResult<Vec<ApplyAction>> {
        let flushed = match self.flush_each {
            true => rustix::fs::fsync(&self.dir),
            false => rustix::fs::syncfs(&self.dir),
        };
        flushed.step("write", name)?;
        // What is deepest first, since closing a directory closes the way to those in it.
        self.last.reverse();
        self.steps.append(&mut self.last);
        Ok(self.steps)
    }
}

/// Whether what was staged is what was looked at.
fn expect_digest(change: &Change, staged: ContentDigest) -> FaultResult<()> {
    match change.digest {
        Some(seen) if seen != staged => Err(WorkspaceFault::changed_meanwhile(&change.path)),
        Some(_) | None => Ok(()),
    }
}

fn is_directory_mode(change: &Change) -> bool {
    change.kind == ChangeKind::ModeChanged && change.has_new_kind(NodeKind::Directory)
}

fn keep_group(mode: u32, before: u32) -> u32 {
    mode & 0o5777 | before & 0o2000
}

/// The mode of a new file: its own where the guest chose it, else what is there.
fn file_mode(change: &Change, now: Option<&FileIdentity>) -> u32 {
    let new = change.new.map_or(0o600, |node| node.mode);
    let chosen = change.old.is_none_or(|old| old.kind != NodeKind::File || old.mode != new);
    match now {
        Some(now) if !chosen => now.mode,
        Some(_) | None => new,
    }
}
