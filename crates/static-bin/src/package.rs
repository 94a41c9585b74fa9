//! Tells a package that was unpacked from a registry from a member of a workspace, and copies it to where it can be
//! built: registry sources are shared and must not be written to.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::StaticBinError;

/// The manifest as it was written, which is in every package beside the normalised one.
const ORIGINAL_MANIFEST: &str = "Cargo.toml.orig";

/// Added to a copy's manifest. Without a workspace of its own it would be taken for a member of the one that it is built
/// for. Profiles do not travel with a package; the settings are those of the workspace's `release`.
const STANDALONE_TABLES: &str = r#"
[workspace]

[profile.static-bin]
inherits = "release"
opt-level = 1
lto = "off"
codegen-units = 4
panic = "abort"
strip = true
"#;

/// The root of the workspace that the package at `manifest_dir` is a member of. None for a package by itself, even if a
/// lock file is above it: registries and vendored sources may lie within somebody's workspace.
pub(crate) fn workspace_root(manifest_dir: &Path) -> Option<&Path> {
    let has_file = |dir: &Path, name: &str| dir.join(name).is_file();
    if [ORIGINAL_MANIFEST, "Cargo.lock"].iter().any(|name| has_file(manifest_dir, name)) {
        return None;
    }
    manifest_dir.ancestors().skip(1).find(|dir| has_file(dir, "Cargo.lock"))
}

/// Copies the package and makes it a workspace of its own.
pub(crate) fn copy_package(from: &Path, to: &Path) -> Result<(), StaticBinError> {
    match fs::remove_dir_all(to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StaticBinError::file(to, error)),
    }
    copy_directory(from, to, to)?;
    let manifest = to.join("Cargo.toml");
    let appended = File::options().append(true).open(&manifest);
    appended
        .and_then(|mut file| file.write_all(STANDALONE_TABLES.as_bytes()))
        .map_err(|error| StaticBinError::file(&manifest, error))
}

/// Copies the contents of files and not their modes, which may forbid writing. Leaves out what `copy` lies in: a package
/// may be built in its own directory.
fn copy_directory(from: &Path, to: &Path, copy: &Path) -> Result<(), StaticBinError> {
    fs::create_dir_all(to).map_err(|error| StaticBinError::file(to, error))?;
    let unreadable = |error| StaticBinError::file(from, error);
    for entry in fs::read_dir(from).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if copy.starts_with(&source) {
            continue;
        }
        if source.is_dir() {
            copy_directory(&source, &target, copy)?;
            continue;
        }
        let contents = fs::read(&source).map_err(|error| StaticBinError::file(&source, error))?;
        fs::write(&target, contents).map_err(|error| StaticBinError::file(&target, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_files(dir: &Path, files: &[&str]) {
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    #[test]
    fn a_member_is_built_in_the_workspace_above_it() {
        let dir = tempfile::tempdir().unwrap();
        write_files(dir.path(), &["Cargo.lock", "crates/agent/Cargo.toml"]);
        let member = dir.path().join("crates/agent");
        assert_eq!(workspace_root(&member), Some(dir.path()));
    }

    #[test]
    fn a_package_within_another_workspace_is_built_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        write_files(dir.path(), &["Cargo.lock", "a/Cargo.toml.orig", "b/Cargo.lock"]);
        assert_eq!(workspace_root(&dir.path().join("a")), None);
        assert_eq!(workspace_root(&dir.path().join("b")), None);
    }

    #[test]
    fn a_copy_is_a_workspace_of_its_own_and_the_package_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        write_files(dir.path(), &["package/Cargo.toml", "package/src/main.rs"]);
        let (package, copy) = (dir.path().join("package"), dir.path().join("copy"));
        write_files(&copy, &["left-over.rs"]);
        copy_package(&package, &copy).unwrap();
        assert!(copy.join("src/main.rs").is_file() && !copy.join("left-over.rs").exists());
        let manifest = fs::read_to_string(copy.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\n[workspace]\n"), "{manifest}");
        assert_eq!(fs::read_to_string(package.join("Cargo.toml")).unwrap(), "");
    }

    #[test]
    fn a_copy_within_the_package_does_not_hold_itself() {
        let dir = tempfile::tempdir().unwrap();
        write_files(dir.path(), &["Cargo.toml", "target/debug/other"]);
        let copy = dir.path().join("target/debug/build/out/package");
        copy_package(dir.path(), &copy).unwrap();
        assert!(copy.join("Cargo.toml").is_file() && !copy.join("target").exists());
    }
}
