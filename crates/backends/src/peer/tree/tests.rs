//! What hostile archives do to a tree, how much it grows by them, and what two copies come to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use tar::{EntryType, Header};
use tempfile::TempDir;

use super::{Conflict, MAX_TOTAL_PATH_BYTES, Side, Tree, TreeError};

const MIB_BYTES: u64 = 1 << 20;

/// A directory that is a tree, beside one that nothing may get into.
struct Here {
    dir: TempDir,
    tree: Tree,
}

impl Here {
    fn new(side: Side) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        let tree = Tree::open(&dir.path().join("tree"), side, 16 * MIB_BYTES).unwrap();
        Self { dir, tree }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join("tree").join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Everything that has changed here, as it travels.
    fn send_archive(&mut self) -> Vec<u8> {
        let mut archive = Vec::new();
        self.tree.send(&mut archive).unwrap();
        archive
    }

    fn take_archive(&mut self, archive: &[u8]) -> Result<Vec<Conflict>, TreeError> {
        self.tree.take(archive)
    }

    /// Names what there is in the tree and outside of it.
    fn names(&self, of: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.dir.path().join(of)).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn is_untouched(&self) -> bool {
        self.names("tree").is_empty()
            && self.names("outside").is_empty()
            && self.names("").len() == 2
    }
}

/// An archive of one's own making, names and all.
#[derive(Default)]
struct Forged(Vec<u8>);

impl Forged {
    fn add(self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        self.add_sized(kind, name, link, content, content.len() as u64)
    }

    fn add_sized(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        content: &[u8],
        size: u64,
    ) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6777);
        header.set_size(size);
        header.set_mtime(0);
        header.set_uid(0);
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.add(EntryType::Regular, name, "", content.as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

/// Two copies of a directory that are the same.
fn two_copies() -> (Here, Here) {
    let (mut near, mut far) = (Here::new(Side::Near), Here::new(Side::Far));
    near.write("file", "at first");
    carry_changes(&mut near, &mut far);
    (near, far)
}

/// Makes what has changed in one the same in the other. Answers what had changed there too.
fn carry_changes(from: &mut Here, to: &mut Here) -> BTreeSet<String> {
    let archive = from.send_archive();
    let conflicts = to.take_archive(&archive).unwrap();
    let entries: Vec<_> = conflicts.iter().map(|conflict| conflict.entry).collect();
    let named = conflicts.into_iter().map(|conflict| conflict.path).collect();
    match from.tree.side {
        Side::Near => assert_eq!(from.tree.agreed(&entries), named),
        // The copy gives way: what was not taken over is sent from the other end.
        Side::Far => drop(from.tree.agreed(&[])),
    }
    named
}

#[test]
fn nothing_is_put_behind_a_link_whoever_made_it() {
    let mut here = Here::new(Side::Near);
    symlink(here.dir.path().join("outside"), here.at("link")).unwrap();
    let own = Forged::default().file("link/file", "x").end();
    assert_eq!(here.take_archive(&own).unwrap().len(), 1, "what is here was not meant");
    let theirs = Forged::default()
        .add(EntryType::Symlink, "made", "../outside", b"")
        .file("made/file", "x")
        .add(EntryType::new(super::pack::REMOVED_ENTRY_TYPE), "made/kept", "", b"")
        .end();
    fs::write(here.dir.path().join("outside/kept"), "kept").unwrap();
    assert_eq!(here.take_archive(&theirs).unwrap().len(), 2);
    assert_eq!(here.names("outside"), BTreeSet::from(["kept".to_owned()]));
}

#[test]
fn a_size_that_is_more_than_may_come_back_is_refused_before_anything_is_written() {
    for size in [17 * MIB_BYTES, 1 << 40, u64::MAX / 4] {
        let mut here = Here::new(Side::Near);
        let archive = Forged::default().add_sized(EntryType::Regular, "huge", "", b"x", size).end();
        let error = here.take_archive(&archive).expect_err("there is no room");
        assert!(matches!(error, TreeError::TooLarge(_)), "{error}");
        assert!(here.is_untouched());
    }
}

#[test]
fn many_files_grow_the_tree_no_further_than_one() {
    let mut here = Here::new(Side::Near);
    let five = "x".repeat(5 << 20);
    let names = ["a", "b", "c", "d"];
    let archive = names.iter().fold(Forged::default(), |all, name| all.file(name, &five)).end();
    here.take_archive(&archive).expect_err("the last one is too much");
    assert_eq!(here.names("tree").len(), 3);
}

#[test]
fn what_is_replaced_or_goes_makes_room() {
    let mut here = Here::new(Side::Near);
    let ten = "x".repeat(10 << 20);
    here.take_archive(&Forged::default().file("a", &ten).end()).unwrap();
    let again = Forged::default()
        .file("a", &ten)
        .file("a", &ten)
        .add(EntryType::new(super::pack::REMOVED_ENTRY_TYPE), "a", "", b"")
        .file("b", &ten)
        .end();
    assert_eq!(here.take_archive(&again).unwrap(), []);
    assert_eq!(here.names("tree"), BTreeSet::from(["b".to_owned()]));
}

#[test]
fn a_name_or_link_that_is_too_long_is_refused() {
    let long = "x".repeat(5000);
    for kind in [EntryType::GNULongName, EntryType::GNULongLink] {
        let mut here = Here::new(Side::Near);
        let archive = Forged::default().add(kind, "long", "", long.as_bytes()).file("f", "").end();
        let error = here.take_archive(&archive).expect_err("nothing has such a name");
        assert!(matches!(error, TreeError::TooLarge(_)), "{error}");
    }
    let mut here = Here::new(Side::Near);
    let name = "y".repeat(300);
    let archive =
        Forged::default().add(EntryType::GNULongName, "", "", name.as_bytes()).file("f", "").end();
    here.take_archive(&archive).expect_err("no file system takes it");
    assert!(here.is_untouched());
}

/// An archive without an end, of which nothing is kept.
struct Endless {
    header: Vec<u8>,
    at: usize,
}

impl io::Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.header[self.at..];
        let taken = rest.len().min(into.len());
        into[..taken].copy_from_slice(&rest[..taken]);
        self.at = (self.at + taken) % self.header.len();
        Ok(taken)
    }
}

#[test]
fn an_archive_without_an_end_is_not_read_for_ever() {
    let mut here = Here::new(Side::Near);
    let gone = EntryType::new(super::pack::REMOVED_ENTRY_TYPE);
    let header = Forged::default().add(gone, "never/there", "", b"").0;
    let error = here.tree.take(Endless { header, at: 0 }).expect_err("it has no end");
    assert!(matches!(error, TreeError::TooLarge(_)), "{error}");
}

#[test]
fn paths_that_take_too_much_memory_are_refused_on_both_ends() {
    let mut count = super::Count::default();
    let long = "x".repeat(4000);
    let added =
        (0..MAX_TOTAL_PATH_BYTES / 4000 + 1).try_for_each(|_| count.add_path(Path::new(&long)));
    assert!(matches!(added, Err(TreeError::TooLarge(_))));
    let mut count = super::Count::default();
    let added = (0..=super::MAX_TREE_ENTRIES).try_for_each(|_| count.add_path(Path::new("x")));
    assert!(matches!(added, Err(TreeError::TooLarge(_))));
}

#[test]
fn what_takes_no_room_there_takes_none_here() {
    let (mut near, mut far) = two_copies();
    let holes = fs::File::create(far.at("holes")).unwrap();
    holes.set_len(1 << 40).unwrap();
    for at in [0, 1 << 30, (1 << 40) - 3] {
        std::os::unix::fs::FileExt::write_all_at(&holes, b"abc", at).unwrap();
    }
    drop(holes);
    let empty = fs::File::create(far.at("empty")).unwrap();
    empty.set_len(1 << 40).unwrap();
    assert_eq!(carry_changes(&mut far, &mut near), BTreeSet::new());
    for name in ["holes", "empty"] {
        let (here, there) = (fs::metadata(near.at(name)), fs::metadata(far.at(name)));
        let (here, there) = (here.unwrap(), there.unwrap());
        assert_eq!(here.len(), 1 << 40);
        assert!(here.blocks() <= there.blocks() + 8, "{} {}", here.blocks(), there.blocks());
    }
    let copy = fs::File::open(near.at("holes")).unwrap();
    for at in [0, 1 << 30, (1 << 40) - 3] {
        let mut read = [0; 3];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut read, at).unwrap();
        assert_eq!(&read, b"abc", "{at}");
    }
}

#[test]
fn pieces_of_a_file_with_holes_stay_in_it_and_in_order() {
    let piece = |at: u64, length: u64| [at.to_le_bytes(), length.to_le_bytes()].concat();
    let holes = EntryType::new(super::holes::SPARSE_ENTRY_TYPE);
    let size = 8192_u64.to_le_bytes();
    for wrong in [
        piece(8190, 3),
        piece(u64::MAX, 2),
        piece(0, u64::MAX),
        [piece(100, 1), b"x".to_vec(), piece(50, 1), b"x".to_vec()].concat(),
        piece(0, 4),
        vec![1, 2, 3],
    ] {
        let mut here = Here::new(Side::Near);
        let content = [&size[..], &wrong].concat();
        let archive = Forged::default().add(holes, "file", "", &content).end();
        here.take_archive(&archive).expect_err("it makes no sense");
        assert!(here.is_untouched(), "{wrong:?}");
    }
    let mut here = Here::new(Side::Near);
    let huge = [&u64::MAX.to_le_bytes()[..], &piece(0, 1), b"x"].concat();
    here.take_archive(&Forged::default().add(holes, "file", "", &huge).end())
        .expect_err("no such size");
    assert!(here.is_untouched());
}

#[test]
fn what_changed_on_both_sides_before_it_was_sent_stays_as_it_is_here() {
    let (mut near, mut far) = two_copies();
    near.write("file", "edited here");
    far.write("file", "and edited there");
    let both = BTreeSet::from(["file".to_owned()]);
    assert_eq!(carry_changes(&mut near, &mut far), both);
    assert_eq!(far.read("file"), "and edited there");
    assert_eq!(carry_changes(&mut far, &mut near), both);
    assert_eq!(near.read("file"), "edited here");
    // From then on the version from here is the one.
    assert_eq!(carry_changes(&mut near, &mut far), BTreeSet::new());
    assert_eq!(far.read("file"), "edited here");
    far.write("file", "edited there later");
    assert_eq!(carry_changes(&mut far, &mut near), BTreeSet::new());
    assert_eq!(near.read("file"), "edited there later");
}

#[test]
fn a_file_that_became_a_directory_there_does_not_take_its_edit_here_along() {
    let (mut near, mut far) = two_copies();
    near.write("file", "edited here");
    fs::remove_file(far.at("file")).unwrap();
    fs::create_dir(far.at("file")).unwrap();
    far.write("file/inner", "x");
    assert_eq!(carry_changes(&mut near, &mut far).len(), 1);
    assert!(!carry_changes(&mut far, &mut near).is_empty());
    assert_eq!(near.read("file"), "edited here");
}

#[test]
fn what_was_never_taken_over_there_is_sent_again() {
    let (mut near, mut far) = two_copies();
    near.write("file", "edited here");
    drop(near.send_archive());
    assert_eq!(carry_changes(&mut near, &mut far), BTreeSet::new());
    assert_eq!(far.read("file"), "edited here");
}

#[test]
fn a_copy_that_gives_way_becomes_the_other_one() {
    let (mut near, mut far) = (Here::new(Side::Near), Here::new(Side::Far));
    far.write("same", "far");
    far.write("was-dir", "a file now");
    fs::create_dir(far.at("was-file")).unwrap();
    far.write("was-file/in", "far");
    near.write("same", "near");
    near.write("only-near", "near");
    near.write("was-file", "near");
    for dir in ["was-dir", "was-dir/deeper", "gone"] {
        fs::create_dir(near.at(dir)).unwrap();
    }
    near.write("was-dir/deeper/in", "near");
    near.write("gone/in", "near");
    near.tree.give_way().unwrap();
    // Changed after it was said: that is not lost.
    near.write("gone/new", "new");
    far.tree.forget();
    let all = far.send_archive();
    assert!(near.take_archive(&all).unwrap().is_empty());
    assert!(!near.tree.gives_way());
    assert_eq!((near.read("same"), near.read("was-dir")), ("far".into(), "a file now".into()));
    assert_eq!(near.read("was-file/in"), "far");
    assert_eq!(near.names("tree/gone"), ["new".to_owned()].into());
    assert!(!near.at("only-near").exists());
    // What comes next is a change again, and takes nothing else with it.
    far.tree.agreed(&[]);
    far.write("same", "later");
    let change = far.send_archive();
    assert!(near.take_archive(&change).unwrap().is_empty());
    assert_eq!((near.read("same"), near.read("was-dir")), ("later".into(), "a file now".into()));
}

#[test]
fn a_copy_that_gives_way_to_nothing_is_empty() {
    let mut near = Here::new(Side::Near);
    near.write("file", "near");
    near.tree.give_way().unwrap();
    assert!(near.take_archive(&[]).unwrap().is_empty());
    assert!(near.is_untouched());
}
