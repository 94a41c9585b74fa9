//! What the engine keeps in the state directory is private to its user, or refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use stockade_core::ErrorCode;
use stockade_engine::{Journal, JournalOptions, Leases, StateDir};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn journal_and_leases_are_created_for_this_user_alone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a/b");
    let state = StateDir::open(&path).unwrap();
    Journal::open(&state, JournalOptions::default()).unwrap();
    Leases::open(&state).unwrap();
    assert_eq!(state.path(), path);
    for made in ["a", "a/b", "a/b/journal", "a/b/leases"] {
        assert_eq!(mode(&place.path().join(made)), 0o700, "{made}");
    }
}

#[test]
fn a_subdirectory_that_is_a_symbolic_link_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    symlink(other.path(), place.path().join("leases")).unwrap();
    let error = Leases::open(&StateDir::open(place.path()).unwrap()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::StateUnavailable);
}
