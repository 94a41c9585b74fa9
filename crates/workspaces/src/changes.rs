//! Where a workspace's changes are: the upper directory of a kernel overlay, or a copy of the tree
//! with an index of what was copied. Both are written by a guest and are read as hostile input.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clock::ClockStamp;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};

/// The changes of one workspace.
#[derive(Debug)]
pub(crate) enum Layer {
    /// What a kernel overlay wrote.
    Upper(OpenTree),
    /// A copy that was changed in place.
    Copy(OpenTree, Index),
}

impl Layer {
    /// The tree that the guest wrote to.
    pub(crate) fn tree(&self) -> &OpenTree {
        match self {
            Self::Upper(tree) | Self::Copy(tree, _) => tree,
        }
    }

    /// Opens a regular file of the layer that holds its own content.
    pub(crate) fn file(&self, path: &TreePath) -> FaultResult<File> {
        let file = self.tree().file(path).step("open", path)?;
        match self {
            Self::Upper(_) if read_overlay_attribute(&file, "metacopy").is_some() => {
                Err(WorkspaceFault::Refused {
                    path: path.to_string(),
                    problem: "has its content in another layer",
                    remedy: "mount the overlay without `metacopy`",
                })
            }
            Self::Upper(_) | Self::Copy(..) => Ok(file),
        }
    }

    /// Whether what is here was in the tree beneath when the guest began to change it.
    pub(crate) fn was_below(&self, path: &TreePath) -> bool {
        match self {
            Self::Copy(_, index) => index.get(path).is_some(),
            Self::Upper(tree) => {
                tree.file(path).is_ok_and(|file| read_overlay_attribute(&file, "origin").is_some())
            }
        }
    }
}

/// How the overlay marks that a name beneath is gone.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Whether a directory of an upper hides what is beneath it.
pub(crate) fn is_opaque(dir: &impl AsFd) -> bool {
    read_overlay_attribute(dir, "opaque").is_some_and(|value| value == b"y")
}

/// Whether a directory of an upper stands for one of another name beneath.
pub(crate) fn is_redirected(dir: &impl AsFd) -> bool {
    read_overlay_attribute(dir, "redirect").is_some()
}

/// Extended attributes in which the overlay keeps its state.
pub(crate) const OVERLAY_XATTRS: [&str; 4] = [
    "user.overlay.opaque",
    "user.overlay.origin",
    "trusted.overlay.opaque",
    "trusted.overlay.origin",
];

fn read_overlay_attribute(fd: &impl AsFd, name: &str) -> Option<Vec<u8>> {
    ["user", "trusted"]
        .iter()
        .find_map(|space| read_attribute(fd, &format!("{space}.overlay.{name}")))
}

/// An attribute's value. One that is longer than any the overlay writes comes back empty.
pub(crate) fn read_attribute(fd: &impl AsFd, name: &str) -> Option<Vec<u8>> {
    let mut buffer = [0u8; 256];
    match rustix::fs::fgetxattr(fd, name, &mut buffer[..]) {
        Ok(read) => Some(buffer[..read].to_vec()),
        Err(Errno::RANGE) => Some(Vec::new()),
        Err(_) => None,
    }
}

/// One thing that was copied, as its copy was then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopiedStat {
    kind: NodeKind,
    pub(crate) mode: u32,
    ino: u64,
    size: u64,
    /// When the copy was finished, by the kernel's clock: no program can set it back.
    changed: ClockStamp,
}

impl CopiedStat {
    /// Copy that no entry is equal to.
    const UNKNOWN_COPY: Self = Self {
        kind: NodeKind::Special,
        mode: 0,
        ino: 0,
        size: 0,
        changed: ClockStamp::DISTANT_PAST,
    };

    pub(crate) fn new(stat: &Stat) -> Self {
        Self {
            kind: NodeKind::of(stat),
            mode: stat.st_mode & 0o7777,
            ino: stat.st_ino,
            size: stat.st_size as u64,
            changed: ClockStamp::changed(stat),
        }
    }

    /// The same, of a copy that was changed since.
    pub(crate) fn changed(self) -> Self {
        Self { ino: 0, ..self }
    }

    /// Whether nothing happened to the copy since. Of a directory only its mode counts: what is in
    /// it is looked at one by one.
    pub(crate) fn untouched(&self, stat: &Stat) -> bool {
        match self.kind {
            NodeKind::Directory => {
                NodeKind::of(stat) == NodeKind::Directory && self.mode == stat.st_mode & 0o7777
            }
            NodeKind::File | NodeKind::Symlink | NodeKind::Special => *self == Self::new(stat),
        }
    }
}

/// Everything that was copied.
#[derive(Debug, Default)]
pub(crate) struct Index(HashMap<TreePath, CopiedStat>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexLine {
    path: TreePath,
    copied: CopiedStat,
}

impl Index {
    pub(crate) fn insert(&mut self, path: TreePath, copied: CopiedStat) {
        self.0.insert(path, copied);
    }

    /// Forgets paths that are not beneath any more.
    pub(crate) fn forget(&mut self, gone: impl Fn(&TreePath) -> bool) {
        self.0.retain(|path, _| !gone(path));
    }

    /// Takes note of a path that is beneath too, but is not what was copied.
    pub(crate) fn know(&mut self, path: &TreePath) {
        self.0.insert(path.clone(), CopiedStat::UNKNOWN_COPY);
    }

    pub(crate) fn get(&self, path: &TreePath) -> Option<&CopiedStat> {
        self.0.get(path)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.0.keys()
    }

    pub(crate) fn save(self, path: &Path) -> FaultResult<()> {
        let name = path.display();
        let file = File::create_new(path).step("create", name.to_string())?;
        let mut out = BufWriter::new(file);
        for (path, copied) in self.0 {
            let line =
                serde_json::to_vec(&IndexLine { path, copied }).map_err(std::io::Error::from);
            let written = line.and_then(|line| {
                out.write_all(&line)?;
                out.write_all(b"\n")
            });
            written.step("write", name.to_string())?;
        }
        out.flush().step("write", name.to_string())?;
        out.get_ref().sync_data().step("write", name.to_string())
    }

    pub(crate) fn load(path: &Path) -> FaultResult<Self> {
        let name = path.display().to_string();
        let file = File::open(path).step("open", &name)?;
        let mut index = Self::default();
        for line in BufReader::new(file).lines() {
            let line = line.step("read", &name)?;
            let line: IndexLine = serde_json::from_str(&line).map_err(|error| {
                WorkspaceFault::Damaged { path: name.clone(), problem: error.to_string() }
            })?;
            index.insert(line.path, line.copied);
        }
        Ok(index)
    }
}
