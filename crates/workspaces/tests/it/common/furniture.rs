//! A tree with something of everything, and one set of changes to it, made both ways.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{mode, opaque, whiteout, write};

/// A tree with something of everything.
pub fn furnish(source: &Path) {
    write(source.join("a"), "a\n");
    write(source.join("b"), "b\n");
    write(source.join("dir/c"), "c\n");
    write(source.join("dir/d"), "d\n");
    write(source.join("gone/x/y"), "y\n");
    write(source.join("again/x"), "x\n");
    write(source.join("again/z"), "z\n");
    write(source.join("script"), "#!/bin/sh\n");
    mode(source.join("script"), 0o644);
    symlink("a", source.join("link")).unwrap();
    write(source.join("file-to-dir"), "f\n");
    write(source.join("dir-to-file/inner"), "i\n");
}

/// Changes it the way the overlay would have it.
pub fn change_upper(upper: &Path) {
    write(upper.join("a"), "a changed\n");
    write(upper.join("new"), "new\n");
    write(upper.join("dir/c"), "c\n");
    whiteout(upper.join("dir/d"));
    whiteout(upper.join("gone"));
    opaque(upper.join("again"));
    write(upper.join("again/x"), "x\n");
    write(upper.join("again/w"), "w\n");
    write(upper.join("script"), "#!/bin/sh\n");
    mode(upper.join("script"), 0o755);
    symlink("b", upper.join("link")).unwrap();
    write(upper.join("file-to-dir/in"), "in\n");
    write(upper.join("dir-to-file"), "now a file\n");
    write(upper.join("binary"), b"\0\x01\x02");
    write(upper.join("deep/er/est"), "deep\n");
}

/// The same changes, made in place.
pub fn change_copy(copy: &Path) {
    write(copy.join("a"), "a changed\n");
    write(copy.join("new"), "new\n");
    fs::remove_file(copy.join("dir/d")).unwrap();
    fs::remove_dir_all(copy.join("gone")).unwrap();
    fs::remove_dir_all(copy.join("again")).unwrap();
    write(copy.join("again/x"), "x\n");
    write(copy.join("again/w"), "w\n");
    mode(copy.join("script"), 0o755);
    fs::remove_file(copy.join("link")).unwrap();
    symlink("b", copy.join("link")).unwrap();
    fs::remove_file(copy.join("file-to-dir")).unwrap();
    write(copy.join("file-to-dir/in"), "in\n");
    fs::remove_dir_all(copy.join("dir-to-file")).unwrap();
    write(copy.join("dir-to-file"), "now a file\n");
    write(copy.join("binary"), b"\0\x01\x02");
    write(copy.join("deep/er/est"), "deep\n");
}

const EXPECTED_CHANGES: [&str; 15] = [
    "M a",
    "A again/w",
    "D again/z",
    "A binary",
    "A deep",
    "A deep/er",
    "A deep/er/est",
    "D dir/d",
    "T dir-to-file",
    "T file-to-dir",
    "A file-to-dir/in",
    "D gone",
    "M link",
    "A new",
    "P script",
];

pub fn expected() -> &'static [&'static str] {
    &EXPECTED_CHANGES
}
