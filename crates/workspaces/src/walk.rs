//! Visits everything beneath a directory, without recursion and within bounds.

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::fault::{Fault, Outcome, Step};
use crate::path::TreePath;
use crate::tree::{NodeKind, Tree, names, stat_at};

/// The most entries that are visited.
pub(crate) const MOST: usize = 8_000_000;

/// Visits everything beneath a directory; one that cannot be opened is an error.
pub(crate) fn visit(
    tree: &Tree,
    top: &TreePath,
    each: impl FnMut(&TreePath, &Stat) -> Outcome<()>,
) -> Outcome<()> {
    match visit_open(tree, top, each)?.first() {
        Some(closed) => tree.dir(closed).map(|_| ()).step("open", tree.name(closed)),
        None => Ok(()),
    }
}

/// Visits everything beneath a directory, each directory before what is in it; not itself. What
/// disappears meanwhile is passed over. Hands back the directories that cannot be opened.
pub(crate) fn visit_open(
    tree: &Tree,
    top: &TreePath,
    mut each: impl FnMut(&TreePath, &Stat) -> Outcome<()>,
) -> Outcome<Vec<TreePath>> {
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
        for name in names(&dir).step("list", tree.name(&path))? {
            let child = path.join(&name);
            let Some(stat) = stat_at(&dir, &name).step("look at", &child)? else { continue };
            visited += 1;
            if visited > MOST {
                return Err(Fault::TooMany { what: "the tree", most: MOST });
            }
            each(&child, &stat)?;
            if NodeKind::of(&stat) == NodeKind::Directory {
                pending.push(child);
            }
        }
    }
    Ok(closed)
}
