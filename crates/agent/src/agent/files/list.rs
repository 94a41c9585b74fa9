//! Listing a directory as a stream of records.

use std::fs::File;
use std::io::{BufWriter, Write};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, statat};
use rustix::io::Errno;

use super::{OperationFailure, Result, Roots, ops};
use crate::protocol::{FileErrorKind, MAX_ENTRIES};

/// Writes a record for each entry. An entry that vanishes meanwhile is left out.
pub fn write_listing(roots: &Roots, path: &str, output: File) -> Result<()> {
    let fail = |errno| OperationFailure::new(path, errno);
    let dir = roots.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut output = BufWriter::with_capacity(64 * 1024, output);
    let mut count = 0;
    for item in Dir::read_from(&dir).map_err(fail)? {
        let item = item.map_err(fail)?;
        if matches!(item.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        count += 1;
        if count > MAX_ENTRIES {
            let detail = format!("has more than {MAX_ENTRIES} entries");
            return Err(OperationFailure::with_kind(path, FileErrorKind::TooLarge, &detail));
        }
        let stat = match statat(&dir, item.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(fail(errno)),
        };
        let mut record = Vec::new();
        // A name is far shorter than a frame.
        let _ = ops::to_file_entry(&stat, &item.file_name().to_string_lossy()).record(&mut record);
        output.write_all(&record).map_err(|error| OperationFailure::from_io(path, &error))?;
    }
    output.flush().map_err(|error| OperationFailure::from_io(path, &error))
}
