//! Visits everything beneath a directory, without recursion and within bounds.

use std::os::fd::OwnedFd;

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree, list_names, stat_at};

/// Entries up to which a tree is visited.
pub(crate) const MAX_VISITED_ENTRIES: usize = 8_000_000;

/// Visits everything beneath a directory; one that cannot be opened is an error.
pub(crate) fn visit_tree(
    tree: &OpenTree,
    top: &TreePath,
    each: impl FnMut(&TreePath, &Stat) -> FaultResult<()>,
) -> FaultResult<()> {
    match visit_open(tree, top, each)?.first() {
        Some(closed) => {
            // One that can be opened can only be listed.
            let errno = tree.dir(closed).err().unwrap_or(Errno::ACCESS);
            Err(errno).step("look into", tree.name(closed))
        }
        None => Ok(()),
    }
}

/// Visits everything beneath a directory, each directory before what is in it; not itself. What
/// disappears meanwhile is passed over. Hands back the directories that cannot be opened.
pub(crate) fn visit_open(
    tree: &OpenTree,
    top: &TreePath,
    mut each: impl FnMut(&TreePath, &Stat) -> FaultResult<()>,
) -> FaultResult<Vec<TreePath>> {
    let mut closed = Vec::new();
    let mut pending = vec![top.clone()];
    let mut visited = 0;
    while let Some(path) = pending.pop() {
        let dir = match tree.dir(&path) {
            Err(Errno::ACCESS | Errno::NAMETOOLONG) => {
                closed.push(path);
                continue;
            }
            opened => opened.step("open", tree.name(&path))?,
        };
        // All of it before any of it is told: a directory of mode 0400 can be listed, not entered.
        let entries = match list_entries(&dir) {
            Err(Errno::ACCESS) => {
                closed.push(path);
                continue;
            }
            entries => entries.step("list", tree.name(&path))?,
        };
        for (name, stat) in entries {
            let child = path.join(&name);
            visited += 1;
            if visited > MAX_VISITED_ENTRIES {
                return Err(WorkspaceFault::TooMany {
                    what: "the tree",
                    most: MAX_VISITED_ENTRIES,
                });
            }
            each(&child, &stat)?;
            if NodeKind::of(&stat) == NodeKind::Directory {
                pending.push(child);
            }
        }
    }
    Ok(closed)
}

/// What is in a directory. What disappears meanwhile is passed over.
fn list_entries(dir: &OwnedFd) -> rustix::io::Result<Vec<(Vec<u8>, Stat)>> {
    let mut entries = Vec::new();
    for name in list_names(dir)? {
        if let Some(stat) = stat_at(dir, &name)? {
            entries.push((name, stat));
        }
    }
    Ok(entries)
}
