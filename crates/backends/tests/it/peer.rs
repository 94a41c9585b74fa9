//! A workspace that exists twice: what changes in one copy arrives in the other, and nothing that arrives
//! leads out of it or replaces what has changed meanwhile (C-21).

#![cfg(feature = "peer")]
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use stockade_backends::peer::tree::{Side, Tree, TreeError};
use tar::{Builder, EntryType, Header};

struct Pair {
    base: tempfile::TempDir,
    near: Tree,
    far: Tree,
}

impl Pair {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let open = |name: &str, side| {
            fs::create_dir(base.path().join(name)).unwrap();
            Tree::open(&base.path().join(name), side, 1 << 30).unwrap()
        };
        let (near, far) = (open("near", Side::Near), open("far", Side::Far));
        fs::create_dir(base.path().join("outside")).unwrap();
        fs::write(base.path().join("outside/file"), "outside").unwrap();
        Self { base, near, far }
    }

    fn near(&self, path: &str) -> std::path::PathBuf {
        self.base.path().join("near").join(path)
    }

    fn far(&self, path: &str) -> std::path::PathBuf {
        self.base.path().join("far").join(path)
    }

    /// What has changed here goes there. Answers how many bytes that took, and the conflicts.
    fn push(&mut self) -> (usize, Vec<String>) {
        let mut bytes = Vec::new();
        self.near.send(&mut bytes).unwrap();
        let conflicts = self.far.take(&bytes[..]).unwrap();
        let entries: Vec<_> = conflicts.iter().map(|conflict| conflict.entry).collect();
        (bytes.len(), self.near.agreed(&entries).into_iter().collect())
    }

    fn pull(&mut self) -> (usize, Vec<String>) {
        let mut bytes = Vec::new();
        self.far.send(&mut bytes).unwrap();
        self.far.agreed(&[]);
        let conflicts = self.near.take(&bytes[..]).unwrap();
        let named: BTreeSet<_> = conflicts.into_iter().map(|conflict| conflict.path).collect();
        (bytes.len(), named.into_iter().collect())
    }

    /// Gives this side a forged archive.
    fn forge(&mut self, entries: &[(u8, &[u8], &[u8])]) -> Result<(), TreeError> {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::new(*kind));
            let fields = header.as_gnu_mut().unwrap();
            fields.name[..name.len()].copy_from_slice(name);
            if *kind == b'2' {
                fields.linkname[..content.len()].copy_from_slice(content);
            }
            let content = if *kind == b'2' { &[][..] } else { content };
            header.set_mode(0o4777);
            header.set_size(content.len() as u64);
            header.set_mtime(0);
            header.set_uid(0);
            header.set_cksum();
            builder.append(&header, content).unwrap();
        }
        self.near.take(&builder.into_inner().unwrap()[..]).map(drop)
    }
}

#[test]
fn everything_that_is_there_arrives_as_it_is_and_then_only_what_changes() {
    let mut pair = Pair::new();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    fs::create_dir_all(pair.near("a/b")).unwrap();
    fs::create_dir(pair.near(&"d".repeat(120))).unwrap();
    fs::write(pair.near("a/b/file"), vec![7; 300_000]).unwrap();
    fs::write(pair.near(&long), "long").unwrap();
    fs::set_permissions(pair.near("a/b/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    symlink("../no//such/./place", pair.near("a/link")).unwrap();
    symlink("t".repeat(300), pair.near("long-link")).unwrap();
    assert_eq!(pair.push().1, Vec::<String>::new());
    let (there, here) = (fs::metadata(pair.far("a/b/file")), fs::metadata(pair.near("a/b/file")));
    let (there, here) = (there.unwrap(), here.unwrap());
    assert_eq!(there.mode() & 0o7777, 0o751, "what changes who a program runs as does not travel");
    assert_eq!((there.mtime(), there.mtime_nsec()), (here.mtime(), here.mtime_nsec()));
    assert_eq!(fs::read_to_string(pair.far(&long)).unwrap(), "long");
    assert_eq!(fs::read_link(pair.far("a/link")).unwrap(), Path::new("../no//such/./place"));
    assert_eq!(fs::read_link(pair.far("long-link")).unwrap(), Path::new(&"t".repeat(300)));
    assert_eq!((pair.push().0, pair.pull().0), (0, 0), "nothing has changed");
}

#[test]
fn changes_removals_and_changes_of_kind_come_back() {
    let mut pair = Pair::new();
    fs::create_dir_all(pair.near("dir/below")).unwrap();
    for name in ["kept", "changed", "gone", "becomes-dir", "dir/below/file"] {
        fs::write(pair.near(name), name).unwrap();
    }
    pair.push();
    fs::write(pair.far("changed"), "anew").unwrap();
    fs::remove_file(pair.far("gone")).unwrap();
    fs::remove_file(pair.far("becomes-dir")).unwrap();
    fs::create_dir(pair.far("becomes-dir")).unwrap();
    fs::write(pair.far("becomes-dir/file"), "x").unwrap();
    fs::remove_dir_all(pair.far("dir")).unwrap();
    fs::write(pair.far("dir"), "a file now").unwrap();
    assert_eq!(pair.pull().1, Vec::<String>::new());
    assert_eq!(fs::read_to_string(pair.near("changed")).unwrap(), "anew");
    assert!(!pair.near("gone").exists() && pair.near("kept").exists());
    assert_eq!(fs::read_to_string(pair.near("becomes-dir/file")).unwrap(), "x");
    assert_eq!(fs::read_to_string(pair.near("dir")).unwrap(), "a file now");
    assert_eq!((pair.push().0, pair.pull().0), (0, 0), "both know that they are the same");
}

#[test]
fn what_changed_on_both_sides_is_named_and_left_alone() {
    let mut pair = Pair::new();
    for name in ["both", "removed-there", "removed-here"] {
        fs::write(pair.near(name), "at first").unwrap();
    }
    pair.push();
    fs::write(pair.near("both"), "here").unwrap();
    fs::write(pair.near("removed-there"), "here").unwrap();
    fs::write(pair.near("new"), "here").unwrap();
    fs::write(pair.far("both"), "and there").unwrap();
    fs::write(pair.far("new"), "and there").unwrap();
    fs::remove_file(pair.far("removed-there")).unwrap();
    assert_eq!(pair.pull().1, ["both", "new", "removed-there"]);
    for name in ["both", "removed-there", "new"] {
        assert_eq!(fs::read_to_string(pair.near(name)).unwrap(), "here", "{name}");
    }
    assert_eq!(pair.push().1, Vec::<String>::new());
    assert_eq!(fs::read_to_string(pair.far("both")).unwrap(), "here", "the copy gives way");
}

#[test]
fn fifos_and_sockets_stay_where_they_are() {
    let mut pair = Pair::new();
    let _socket = std::os::unix::net::UnixListener::bind(pair.far("socket")).unwrap();
    fs::write(pair.far("file"), "x").unwrap();
    assert_eq!(pair.pull().1, Vec::<String>::new());
    assert!(pair.near("file").exists() && !pair.near("socket").exists());
}

#[test]
fn a_path_that_leaves_is_refused_by_name() {
    for name in [&b"../escaped"[..], b"/escaped", b"a/../../escaped", b"", b"."] {
        for kind in [b'0', b'5', b'2', b'R'] {
            let mut pair = Pair::new();
            let error = pair.forge(&[(kind, name, b"x")]).unwrap_err();
            let shown = String::from_utf8_lossy(name).into_owned();
            assert!(error.to_string().contains(&shown), "{error}");
            assert!(!pair.base.path().join("escaped").exists());
        }
    }
}

#[test]
fn a_link_that_was_sent_is_never_followed() {
    let mut pair = Pair::new();
    let out = pair.base.path().join("outside").into_os_string().into_encoded_bytes();
    pair.forge(&[(b'2', b"link", &out)]).unwrap();
    // What lies behind it counts as changed or missing, for every type of entry.
    for kind in [b'0', b'5', b'2', b'R'] {
        let _ = pair.forge(&[(kind, b"link/file", b"changed"), (kind, b"link/new", b"changed")]);
    }
    assert_eq!(fs::read_to_string(pair.base.path().join("outside/file")).unwrap(), "outside");
    assert_eq!(fs::read_dir(pair.base.path().join("outside")).unwrap().count(), 1);
}

#[test]
fn devices_hard_links_and_what_nobody_knows_are_refused_by_name() {
    for kind in [b'1', b'3', b'4', b'6', b'x', b'Z'] {
        let mut pair = Pair::new();
        let error = pair.forge(&[(kind, b"strange", b"")]).unwrap_err();
        assert!(error.to_string().contains("strange"), "{}: {error}", kind as char);
        assert_eq!(fs::read_dir(pair.near("")).unwrap().count(), 0);
    }
}

#[test]
fn what_arrives_lets_nobody_write_who_could_not_before() {
    let mut pair = Pair::new();
    let mode = |pair: &Pair, path: &str| fs::metadata(pair.near(path)).unwrap().mode() & 0o7777;
    fs::set_permissions(pair.near(""), fs::Permissions::from_mode(0o755)).unwrap();
    pair.forge(&[(b'0', b"file", b"x"), (b'5', b"dir", b""), (b'0', b"dir/file", b"x")]).unwrap();
    for path in ["file", "dir", "dir/file"] {
        assert_eq!(mode(&pair, path), 0o755, "{path}");
    }
    // A workspace that a group shares stays one.
    let mut pair = Pair::new();
    fs::set_permissions(pair.near(""), fs::Permissions::from_mode(0o777)).unwrap();
    pair.forge(&[(b'0', b"file", b"x"), (b'5', b"dir", b"")]).unwrap();
    assert_eq!((mode(&pair, "file"), mode(&pair, "dir")), (0o775, 0o775));
}

#[test]
fn no_more_arrives_than_may_and_a_long_name_is_not_read_for_ever() {
    let mut pair = Pair::new();
    pair.near = Tree::open(&pair.near(""), Side::Near, 64 * 1024).unwrap();
    let error = pair.forge(&[(b'0', b"large", &[7; 128 * 1024])]).unwrap_err();
    assert!(!pair.near("large").exists(), "{error}");
    let error = pair.forge(&[(b'L', b"name", &[b'n'; 10_000])]).unwrap_err();
    assert!(matches!(error, TreeError::TooLarge(_)), "{error}");
    assert_eq!(fs::read_dir(pair.near("")).unwrap().count(), 0, "something half-written is left");
}

#[test]
fn an_archive_that_is_cut_off_leaves_nothing_half_written() {
    let mut pair = Pair::new();
    fs::write(pair.far("file"), vec![7; 100_000]).unwrap();
    let mut bytes = Vec::new();
    pair.far.send(&mut bytes).unwrap();
    for length in [1, 100, 511, 513, 50_000] {
        assert!(pair.near.take(&bytes[..length]).is_err(), "{length}");
        assert_eq!(fs::read_dir(pair.near("")).unwrap().count(), 0, "{length}");
    }
}
