//! Opening and reading files for a search: regular ones only, small ones in one piece.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink};
use rustix::fs::OFlags;

/// File size up to which a file is read in one piece.
const SMALL_FILE_BYTES: u64 = 1 << 20;

/// A searcher with the room it reads into, one for each thread.
pub struct FileReader {
    searcher: Searcher,
    room: Vec<u8>,
}

impl FileReader {
    pub fn new(searcher: Searcher) -> Self {
        Self { searcher, room: Vec::new() }
    }

    /// Searches a file. Answers whether it is binary, which a sink is not told in every case.
    pub fn search<S: Sink<Error = io::Error>>(
        &mut self,
        matcher: &RegexMatcher,
        mut file: &File,
        size: u64,
        sink: S,
    ) -> io::Result<bool> {
        if let Some(length) = self.read_small(file, size)? {
            let whole = &self.room[..length];
            if is_binary(whole) {
                return Ok(true);
            }
            self.searcher.search_slice(matcher, whole, sink)?;
            return Ok(false);
        }
        file.rewind()?;
        self.searcher.search_file(matcher, file, sink)?;
        Ok(false)
    }

    /// Reads a small file with room for one byte more: what does not fill it is all there is.
    fn read_small(&mut self, mut file: &File, size: u64) -> io::Result<Option<usize>> {
        let Some(size) = usize::try_from(size).ok().filter(|_| size <= SMALL_FILE_BYTES) else {
            return Ok(None);
        };
        if self.room.len() <= size {
            self.room.resize((size + 1).next_power_of_two(), 0);
        }
        let read = file.read(&mut self.room[..=size])?;
        Ok((read <= size).then_some(read))
    }
}

/// A zero byte makes a file binary, unless its first bytes say that its characters have two.
fn is_binary(whole: &[u8]) -> bool {
    let wide = whole.starts_with(b"\xff\xfe") || whole.starts_with(b"\xfe\xff");
    !wide && memchr::memchr(0, whole).is_some()
}

/// Opens a regular file and nothing else, without waiting and without following a link.
pub fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // It may have been swapped since it was listed.
    let found = file.metadata()?;
    Ok(found.is_file().then_some((file, found.len())))
}
