//! The state directory: private to its user, or refused.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stockade_core::ErrorCode;
use stockade_fs::StateDir;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn refusal(path: &Path) -> String {
    let error = StateDir::open(path).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StateUnavailable);
    assert!(error.hint().is_some(), "{error}");
    error.to_string()
}

#[test]
fn it_is_created_with_its_parents_for_this_user_alone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a/b");
    let state = StateDir::open(&path).unwrap();
    state.subdirectory("journal").unwrap();
    state.subdirectory("leases").unwrap();
    assert_eq!(state.path(), path);
    for made in ["a", "a/b", "a/b/journal", "a/b/leases"] {
        assert_eq!(mode(&place.path().join(made)), 0o700, "{made}");
    }
}

#[test]
fn one_that_others_can_enter_is_closed_to_them() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    StateDir::open(place.path()).unwrap();
    assert_eq!(mode(place.path()), 0o700);
}

#[test]
fn a_symbolic_link_is_refused_however_it_is_spelled() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("real")).unwrap();
    symlink(place.path().join("real"), place.path().join("link")).unwrap();
    symlink(place.path().join("nowhere"), place.path().join("dangling")).unwrap();
    for name in ["link", "link/", "link/.", "dangling"] {
        let refusal = refusal(&place.path().join(name));
        assert!(refusal.contains("symbolic link"), "{name}: {refusal}");
    }
}

#[test]
fn a_subdirectory_that_is_a_symbolic_link_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    symlink(other.path(), place.path().join("leases")).unwrap();
    let error = StateDir::open(place.path()).unwrap().subdirectory("leases").unwrap_err();
    assert_eq!(error.code(), ErrorCode::StateUnavailable);
}

#[test]
fn a_file_is_refused() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    assert!(refusal(&place.path().join("file")).contains("not a directory"));
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    // One of these two belongs to another user, as root and as an ordinary user alike.
    let foreign = if rustix::process::geteuid().is_root() {
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(place.path(), Some(12345), None).unwrap();
        let refusal = refusal(place.path());
        std::os::unix::fs::chown(place.path(), Some(0), None).unwrap();
        refusal
    } else {
        refusal(Path::new("/"))
    };
    assert!(foreign.contains("belongs to user"), "{foreign}");
}

fn location(variables: &[(&str, &str)]) -> Option<PathBuf> {
    let value = |name: &str| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| OsString::from(value))
    };
    StateDir::default_location(value).ok()
}

#[test]
fn the_default_location_follows_the_xdg_rules() {
    let home = Some(PathBuf::from("/home/u/.local/state/stockade"));
    assert_eq!(
        location(&[("XDG_STATE_HOME", "/state"), ("HOME", "/home/u")]),
        Some(PathBuf::from("/state/stockade"))
    );
    assert_eq!(location(&[("HOME", "/home/u")]), home);
    for not_absolute in ["", "relative/path"] {
        assert_eq!(location(&[("XDG_STATE_HOME", not_absolute), ("HOME", "/home/u")]), home);
    }
}

#[test]
fn without_a_home_the_default_location_is_an_error_with_a_remedy() {
    assert_eq!(location(&[("HOME", "")]), None);
    let error = StateDir::default_location(|_| None).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StateUnavailable);
    assert!(error.to_string().contains("XDG_STATE_HOME"), "{error}");
}
