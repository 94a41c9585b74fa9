//! Swap of a control group. A memory limit without one for swap would only move the excess to the disk, so
//! that one which cannot be set is a failure wherever the host has swap.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The file that lists every swap area in use, after a line of headings.
const SWAPS_FILE: &str = "/proc/swaps";

/// Writes the limit to a group's file. The kernel has none where it does not account swap, which is harmless
/// while there is no swap.
pub(super) fn write_swap_limit(file: &Path, value: &str) -> io::Result<()> {
    limit_where(file, value, is_swap_on())
}

/// Whether a group with this file is held to its memory.
pub(super) fn can_be_limited(file: &Path) -> bool {
    file.exists() || !is_swap_on()
}

fn limit_where(file: &Path, value: &str, swap_is_on: bool) -> io::Result<()> {
    // Not created: in a control group that fails in a way of its own.
    match OpenOptions::new().write(true).open(file) {
        Ok(mut opened) => opened.write_all(value.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !swap_is_on => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether this host has swap. A list that cannot be read may have something in it.
pub(crate) fn is_swap_on() -> bool {
    stockade_fs::read_kernel_file(SWAPS_FILE).map_or(true, |areas| has_any(&areas))
}

fn has_any(areas: &str) -> bool {
    areas.lines().count() > 1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_limit_of_swap_that_cannot_be_set_is_a_failure() {
        let group = tempfile::tempdir().unwrap();
        let file = group.path().join("memory.swap.max");
        assert!(limit_where(&file, "0", false).is_ok());
        assert!(limit_where(&file, "0", true).is_err());
        fs::create_dir(&file).unwrap();
        assert!(limit_where(&file, "0", false).is_err());
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "max").unwrap();
        limit_where(&file, "0", true).unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with('0'));
    }

    #[test]
    fn swap_is_on_where_an_area_is_listed() {
        let headings = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(!has_any(headings));
        assert!(!has_any(""));
        assert!(has_any(&format!("{headings}/swap.img file 1 0 -2\n")));
    }
}
