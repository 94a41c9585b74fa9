use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::{UnpackRequest, apply_layer};

/// An archive as a sandbox's agent makes it.
fn archive_of(root: &Path, place: &str) -> RootArchive {
    let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
    builder.mode(tar::HeaderMode::Complete);
    builder.follow_symlinks(false);
    let mut entries: Vec<_> = fs::read_dir(root.join(place)).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
    for entry in entries {
        let name = entry.file_name();
        match entry.file_type().unwrap().is_dir() {
            true => builder.append_dir_all(&name, entry.path()).unwrap(),
            false => builder.append_path_with_name(entry.path(), &name).unwrap(),
        }
    }
    let mut file = builder.into_inner().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    RootArchive { place: place.to_owned(), file }
}

fn pack(base: &Path, archives: Vec<RootArchive>, ignored: &[&str]) -> (PackedLayer, File) {
    let layer = tempfile::tempfile().unwrap();
    let ignored = ignored.iter().map(|path| (*path).to_owned()).collect();
    let request = PackRequest { archives, ignored, limits: UnpackLimits::default() };
    let base = File::open(base).unwrap();
    let packed = pack_changes(request, base, layer.try_clone().unwrap()).unwrap();
    (packed, layer)
}

fn fill(root: &Path) {
    for dir in ["etc/deep", "usr", "gone"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["etc/kept", "etc/changed", "etc/removed", "etc/deep/file", "gone/x", "usr/tool"] {
        fs::write(root.join(file), file).unwrap();
    }
    symlink("tool", root.join("usr/link")).unwrap();
}

fn copy_tree(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_layer_has_what_changed_and_makes_the_same_tree() {
    let dir = tempfile::tempdir().unwrap();
    let (base, now) = (dir.path().join("base"), dir.path().join("now"));
    fs::create_dir(&base).unwrap();
    fill(&base);
    copy_tree(&base, &now);
    let (unchanged, _) = pack(&base, vec![archive_of(&now, "")], &[]);
    assert_eq!(unchanged.entries, 0);

    fs::write(now.join("etc/changed"), "otherwise").unwrap();
    fs::remove_file(now.join("etc/removed")).unwrap();
    fs::remove_dir_all(now.join("gone")).unwrap();
    fs::remove_file(now.join("usr/link")).unwrap();
    symlink("../etc/kept", now.join("usr/link")).unwrap();
    fs::create_dir_all(now.join("new/below")).unwrap();
    fs::write(now.join("new/below/program"), "x").unwrap();
    fs::set_permissions(now.join("new/below/program"), PermissionsExt::from_mode(0o4755)).unwrap();
    let archives = || vec![archive_of(&now, "")];
    let (packed, mut layer) = pack(&base, archives(), &[]);
    assert_eq!(pack(&base, archives(), &[]).0, packed, "the same changes, the same bytes");

    layer.seek(SeekFrom::Start(0)).unwrap();
    let request = UnpackRequest { compression: Compression::Gzip, limits: UnpackLimits::default() };
    let applied = apply_layer(layer, &request, File::open(&base).unwrap()).unwrap();
    assert_eq!((applied.sha256, applied.entries), (packed.diff_sha256, packed.entries));
    assert!(!base.join("gone").exists() && !base.join("etc/removed").exists());
    assert_eq!(fs::read(base.join("etc/changed")).unwrap(), b"otherwise");
    assert_eq!(fs::read_link(base.join("usr/link")).unwrap(), Path::new("../etc/kept"));
    let mode = fs::metadata(base.join("new/below/program")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "no bit that changes who a program runs as");
    assert_eq!(pack(&base, archives(), &[]).0.entries, 0);
}

#[test]
fn what_is_mounted_is_neither_packed_nor_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let (base, now) = (dir.path().join("base"), dir.path().join("now"));
    fs::create_dir(&base).unwrap();
    fill(&base);
    fs::write(base.join("file"), "of the root").unwrap();
    copy_tree(&base, &now);
    fs::remove_file(now.join("file")).unwrap();
    fs::remove_dir_all(now.join("gone")).unwrap();
    fs::create_dir_all(now.join("work/space")).unwrap();
    fs::write(now.join("work/space/x"), "x").unwrap();
    let (packed, _) = pack(&base, vec![archive_of(&now, "")], &["gone", "work/space"]);
    assert_eq!(packed.entries, 0, "{packed:?}");
    let parts = vec![archive_of(&now, "etc"), archive_of(&now, "usr")];
    assert_eq!(pack(&base, parts, &["gone"]).0.entries, 0);
}

#[test]
fn names_that_a_layer_cannot_have_are_refused() {
    for name in [".wh.x", "a\u{fffd}"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), "").unwrap();
        let archives = vec![archive_of(dir.path(), "")];
        let request =
            PackRequest { archives, ignored: Vec::new(), limits: UnpackLimits::default() };
        let base = tempfile::tempdir().unwrap();
        let base = File::open(base.path()).unwrap();
        let packed = pack_changes(request, base, tempfile::tempfile().unwrap());
        assert!(matches!(packed, Err(UnpackError::Refused(_))), "{name}");
    }
}
