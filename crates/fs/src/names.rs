//! The names in a directory.

use std::ffi::CString;
use std::os::fd::AsFd;

use rustix::fs::Dir;
use rustix::io::{Errno, Result};

/// Upper bound of the entries of one directory that are listed; more are refused with `E2BIG`.
const MAX_DIR_ENTRIES: usize = 4_000_000;

/// The names in an open directory, sorted.
pub fn list_names(dir: impl AsFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
        if names.len() > MAX_DIR_ENTRIES {
            return Err(Errno::TOOBIG);
        }
    }
    names.sort_unstable();
    Ok(names)
}
