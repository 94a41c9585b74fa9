//! Trees as lists, to be compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stockade_images::Digest;

/// Every path of a tree with its kind, mode without set-id bits, time and contents or target; names of one file by its
/// first name.
pub fn describe_tree(root: &Path) -> BTreeMap<String, String> {
    let mut described = BTreeMap::new();
    let mut links = BTreeMap::new();
    walk(root, root, &mut |path, name| {
        let metadata = fs::symlink_metadata(path).unwrap();
        let kind = metadata.file_type();
        let what = if kind.is_symlink() {
            format!("-> {}", fs::read_link(path).unwrap().display())
        } else if kind.is_dir() {
            "directory".to_owned()
        } else if kind.is_file() {
            Digest::of(&fs::read(path).unwrap()).to_string()
        } else {
            "special".to_owned()
        };
        let mode = if kind.is_symlink() { 0 } else { metadata.mode() & 0o1777 };
        let same = match kind.is_file() && metadata.nlink() > 1 {
            true => links.entry(metadata.ino()).or_insert_with(|| name.to_owned()).clone(),
            false => String::new(),
        };
        let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
        described.insert(name.to_owned(), format!("{mode:o} {seconds}.{nanos:09} {what} {same}"));
    });
    described
}

/// The same with the extended attributes of users. A file system may have none.
pub fn describe_tree_with_xattrs(root: &Path) -> BTreeMap<String, String> {
    let mut described = describe_tree(root);
    for (name, what) in &mut described {
        what.push_str(&format!(" {:?}", user_xattrs(&root.join(name))));
    }
    described
}

/// The extended attributes of users that a file has, but for a symbolic link, which can have none.
pub fn user_xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let names = names.filter(|name| name.starts_with("user."));
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, &*name, &mut value[..]).unwrap();
            value.truncate(length);
            (name.into_owned(), value)
        })
        .collect()
}

fn walk(root: &Path, path: &Path, visit: &mut impl FnMut(&Path, &str)) {
    visit(path, &path.strip_prefix(root).unwrap().to_string_lossy());
    if fs::symlink_metadata(path).unwrap().is_dir() {
        let mut entries: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in entries {
            walk(root, &entry, visit);
        }
    }
}

/// The paths of a tree.
pub fn paths(root: &Path) -> Vec<String> {
    describe_tree(root).into_keys().filter(|name| !name.is_empty()).collect()
}
