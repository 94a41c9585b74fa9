//! Names of files that are not finished.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A name for a file that is not finished: no other process or thread will come upon it.
pub fn draft_name(purpose: &str) -> String {
    let random = RandomState::new().build_hasher().finish();
    format!(".{purpose}-{}-{random:016x}", std::process::id())
}
