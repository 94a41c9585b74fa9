//! A file tree in memory with symbolic links, resolved the way the kernel resolves beneath a root.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stockade_core::WORKSPACE_ROOT;

/// Linux error numbers that the tree answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Errno {
    /// No such file or directory.
    NoEntry = 2,
    /// Resolution left its root.
    Escapes = 18,
    /// Not a directory.
    NotDirectory = 20,
    /// Is a directory.
    IsDirectory = 21,
    /// Not a regular file.
    NotRegular = 22,
    /// No space left.
    NoSpace = 28,
    /// Read-only file system.
    ReadOnly = 30,
    /// Too many symbolic links.
    Loop = 40,
}

/// One thing in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MockNode {
    /// A directory; what is in it is found by path.
    Directory,
    /// A regular file.
    File(Vec<u8>),
    /// A symbolic link.
    Symlink(String),
    /// A fifo.
    Fifo,
}

/// A file tree. Keys are absolute paths without `.` and `..`; the root itself is not stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MockTree {
    nodes: BTreeMap<String, MockNode>,
    /// Permission bits that were set; every other entry has the usual ones.
    modes: BTreeMap<String, u32>,
    read_only_workspace: bool,
    writable_root: bool,
    room: u64,
}

/// Private writable directories of every sandbox.
const PRIVATE_DIRS: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/home/sandbox", "/dev/shm"];

/// How many links may be followed: the kernel's own number.
const MOST_LINKS: u32 = 40;

impl MockTree {
    /// A tree with an empty workspace, private places and a little of `/etc`; at most `room` bytes of files.
    pub fn new(read_only_workspace: bool, writable_root: bool, room: u64) -> Self {
        let mut nodes = BTreeMap::new();
        let others = [WORKSPACE_ROOT, "/etc", "/usr", "/var", "/home", "/dev"];
        for directory in PRIVATE_DIRS.into_iter().chain(others) {
            nodes.insert(directory.to_owned(), MockNode::Directory);
        }
        nodes.insert("/etc/hostname".into(), MockNode::File(b"mock\n".to_vec()));
        nodes.insert("/etc/os-release".into(), MockNode::File(b"NAME=mock\n".to_vec()));
        Self { nodes, modes: BTreeMap::new(), read_only_workspace, writable_root, room }
    }

    /// Bytes in regular files.
    pub fn used(&self) -> u64 {
        let size =
            |node: &MockNode| if let MockNode::File(data) = node { data.len() as u64 } else { 0 };
        self.nodes.values().map(size).sum()
    }

    /// Resolves a path given by the guest or its owner. Relative ones start at `base`; with `beneath`
    /// they may not leave it, not even by a link.
    pub fn resolve(
        &self,
        base: &str,
        path: &str,
        beneath: bool,
        follow_last: bool,
    ) -> Result<String, Errno> {
        let beneath = beneath && !path.starts_with('/');
        let floor = if beneath { base } else { "" };
        let mut at = if path.starts_with('/') { String::new() } else { base.to_owned() };
        let mut todo: Vec<String> = split_path(path);
        let mut links = 0;
        while let Some(part) = todo.pop() {
            if part == ".." {
                at = parent_above(&at, floor, beneath)?;
                continue;
            }
            let next = format!("{at}/{part}");
            let last = todo.is_empty();
            match self.nodes.get(&next) {
                Some(MockNode::Symlink(target)) if !last || follow_last => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::Loop);
                    }
                    if target.starts_with('/') {
                        if beneath {
                            return Err(Errno::Escapes);
                        }
                        at.clear();
                    }
                    todo.extend(split_path(target));
                }
                Some(MockNode::Directory) => at = next,
                Some(_) if !last => return Err(Errno::NotDirectory),
                None if !last => return Err(Errno::NoEntry),
                Some(_) | None => at = next,
            }
        }
        Ok(at)
    }

    /// What is at a resolved path.
    pub fn node(&self, at: &str) -> Result<&MockNode, Errno> {
        if at.is_empty() {
            return Ok(&MockNode::Directory);
        }
        self.nodes.get(at).ok_or(Errno::NoEntry)
    }

    /// The names in a directory, with what they are.
    pub fn list(&self, at: &str) -> Result<Vec<(String, MockNode)>, Errno> {
        match self.node(at)? {
            MockNode::Directory => {}
            MockNode::File(_) | MockNode::Symlink(_) | MockNode::Fifo => {
                return Err(Errno::NotDirectory);
            }
        }
        let prefix = format!("{at}/");
        let children = self.nodes.iter().filter_map(|(path, node)| {
            let name = path.strip_prefix(&prefix).filter(|name| !name.contains('/'))?;
            Some((name.to_owned(), node.clone()))
        });
        Ok(children.collect())
    }

    /// A regular file's contents.
    pub fn read(&self, at: &str) -> Result<&[u8], Errno> {
        match self.node(at)? {
            MockNode::File(data) => Ok(data),
            MockNode::Directory => Err(Errno::IsDirectory),
            MockNode::Symlink(_) | MockNode::Fifo => Err(Errno::NotRegular),
        }
    }

    /// Writes a regular file; as much as there is room for, and then `NoSpace`.
    pub fn write(&mut self, at: &str, data: &[u8], append: bool) -> Result<(), Errno> {
        let old = match self.node(at) {
            Ok(MockNode::File(old)) if append => old.clone(),
            Ok(MockNode::File(_)) | Err(Errno::NoEntry) => Vec::new(),
            Ok(MockNode::Directory) => return Err(Errno::IsDirectory),
            Ok(MockNode::Symlink(_) | MockNode::Fifo) => return Err(Errno::NotRegular),
            Err(other) => return Err(other),
        };
        self.put(at, MockNode::File(old))?;
        let room = usize::try_from(self.room.saturating_sub(self.used())).unwrap_or(usize::MAX);
        if let Some(MockNode::File(file)) = self.nodes.get_mut(at) {
            file.extend_from_slice(&data[..room.min(data.len())]);
        }
        if data.len() > room { Err(Errno::NoSpace) } else { Ok(()) }
    }

    /// The permission bits of what is at a path.
    pub fn mode(&self, at: &str) -> u32 {
        self.modes.get(at).copied().unwrap_or(0o644)
    }

    /// Sets a regular file's permission bits.
    pub fn set_mode(&mut self, at: &str, mode: u32) -> Result<(), Errno> {
        self.read(at)?;
        self.check_writable(at)?;
        self.modes.insert(at.to_owned(), mode);
        Ok(())
    }

    /// Puts something where the parent is a directory that may be written to.
    pub fn put(&mut self, at: &str, node: MockNode) -> Result<(), Errno> {
        self.check_writable(at)?;
        match self.node(parent_path(at))? {
            MockNode::Directory => {}
            MockNode::File(_) | MockNode::Symlink(_) | MockNode::Fifo => {
                return Err(Errno::NotDirectory);
            }
        }
        self.nodes.insert(at.to_owned(), node);
        Ok(())
    }

    /// Removes it and everything below; says whether anything was there.
    pub fn remove(&mut self, at: &str) -> Result<bool, Errno> {
        self.check_writable(at)?;
        let before = self.nodes.len();
        let below = format!("{at}/");
        self.nodes.retain(|path, _| path != at && !path.starts_with(&below));
        self.modes.retain(|path, _| path != at && !path.starts_with(&below));
        Ok(self.nodes.len() < before)
    }

    /// Moves it and everything below.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        self.node(from)?;
        self.check_writable(from)?;
        self.check_writable(to)?;
        self.node(parent_path(to))?;
        let below = format!("{from}/");
        let moved: Vec<_> = self
            .nodes
            .keys()
            .filter(|path| *path == from || path.starts_with(&below))
            .cloned()
            .collect();
        for path in moved {
            let target = format!("{to}{}", &path[from.len()..]);
            self.modes.remove(&target);
            if let Some(mode) = self.modes.remove(&path) {
                self.modes.insert(target.clone(), mode);
            }
            if let Some(node) = self.nodes.remove(&path) {
                self.nodes.insert(target, node);
            }
        }
        Ok(())
    }

    fn check_writable(&self, at: &str) -> Result<(), Errno> {
        let below = |root: &str| at == root || at.starts_with(&format!("{root}/"));
        let allowed = match () {
            () if below(WORKSPACE_ROOT) => !self.read_only_workspace,
            () if PRIVATE_DIRS.into_iter().any(below) => true,
            () => self.writable_root,
        };
        if allowed { Ok(()) } else { Err(Errno::ReadOnly) }
    }
}

/// The parts of a path, the first one last, so that they can be popped in order.
fn split_path(path: &str) -> Vec<String> {
    path.split('/').rev().filter(|part| !part.is_empty() && *part != ".").map(Into::into).collect()
}

fn parent_path(at: &str) -> &str {
    at.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn parent_above(at: &str, floor: &str, beneath: bool) -> Result<String, Errno> {
    if beneath && at == floor {
        return Err(Errno::Escapes);
    }
    Ok(parent_path(at).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_tree() -> MockTree {
        let mut tree = MockTree::new(false, false, 100);
        tree.put("/workspace/up", MockNode::Symlink("../etc".into())).unwrap();
        tree.put("/workspace/out", MockNode::Symlink("/etc".into())).unwrap();
        tree.put("/workspace/loop", MockNode::Symlink("loop".into())).unwrap();
        tree.put("/workspace/d", MockNode::Directory).unwrap();
        tree
    }

    #[test]
    fn links_that_leave_the_workspace_escape_only_where_it_is_the_root() {
        let tree = test_tree();
        for path in ["up/hostname", "out/hostname", "..", "d/../.."] {
            assert_eq!(
                tree.resolve(WORKSPACE_ROOT, path, true, true),
                Err(Errno::Escapes),
                "{path}"
            );
        }
        let guest = tree.resolve(WORKSPACE_ROOT, "up/hostname", false, true);
        assert_eq!(guest.as_deref(), Ok("/etc/hostname"));
        assert_eq!(tree.resolve(WORKSPACE_ROOT, "loop", true, true), Err(Errno::Loop));
    }

    #[test]
    fn only_what_is_writable_is_written_and_only_while_there_is_room() {
        let mut tree = test_tree();
        assert_eq!(tree.write("/etc/x", b"1", false), Err(Errno::ReadOnly));
        let room = 100 - tree.used();
        assert_eq!(tree.write("/tmp/x", &[0; 200], false), Err(Errno::NoSpace));
        assert_eq!(tree.read("/tmp/x").map(|data| data.len() as u64), Ok(room));
        let mut read_only = MockTree::new(true, false, 100);
        assert_eq!(read_only.write("/workspace/x", b"1", false), Err(Errno::ReadOnly));
    }

    #[test]
    fn renaming_and_removing_take_what_is_below_along() {
        let mut tree = test_tree();
        tree.write("/workspace/d/f", b"1", false).unwrap();
        tree.rename("/workspace/d", "/workspace/e").unwrap();
        assert_eq!(tree.read("/workspace/e/f"), Ok(&b"1"[..]));
        assert_eq!(tree.remove("/workspace/e"), Ok(true));
        assert_eq!(tree.read("/workspace/e/f"), Err(Errno::NoEntry));
    }
}
