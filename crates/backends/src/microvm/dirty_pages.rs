//! The memory that a machine has written to since it was continued: its process maps a file of which it
//! has copies of its own only where it wrote. Found and read from outside, so that what was not touched
//! costs nothing.
//!
//! As a file: a head, how many pages, their numbers in order, and their bytes in the same order.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
const FILE_MAGIC: &[u8; 16] = b"stockade-pages 1";
/// Chunk size of one read, in pages.
const CHUNK_PAGES: u64 = 256;
/// Flags of a page in `/proc/PID/pagemap`: it is present, it is swapped out, it is a file's.
const PAGEMAP_PRESENT: u64 = 1 << 63;
const PAGEMAP_SWAPPED: u64 = 1 << 62;
const PAGEMAP_FILE_PAGE: u64 = 1 << 61;
/// Chunk size of one read of the pagemap, in entries.
const PAGEMAP_CHUNK_ENTRIES: usize = 64 * 1024;

/// A stretch of the memory in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// Its address.
    at: u64,
    /// Its first page.
    first: u64,
    pages: u64,
}

/// The memory of a machine as its process has it.
pub(super) struct ProcessMemory {
    memory: File,
    map: File,
    stretches: Vec<Stretch>,
}

fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl ProcessMemory {
    /// That of this process, whose memory has this name.
    pub(super) fn open(process: i32, name: &str) -> io::Result<Self> {
        let stretches = find_mappings(&fs::read_to_string(format!("/proc/{process}/maps"))?, name);
        if stretches.is_empty() {
            return Err(invalid_data("it has no such memory"));
        }
        let open = |what: &str| File::open(format!("/proc/{process}/{what}"));
        Ok(Self { memory: open("mem")?, map: open("pagemap")?, stretches })
    }

    /// The pages that it has written to, in order.
    pub(super) fn find_dirty_pages(&self) -> io::Result<Vec<u64>> {
        let mut touched = Vec::new();
        let mut entries = vec![0; PAGEMAP_CHUNK_ENTRIES * 8];
        for stretch in &self.stretches {
            let mut done = 0;
            while done < stretch.pages {
                let count = (stretch.pages - done).min(PAGEMAP_CHUNK_ENTRIES as u64);
                let entries = &mut entries[..count as usize * 8];
                self.map.read_exact_at(entries, (stretch.at / PAGE_BYTES + done) * 8)?;
                let own = entries
                    .as_chunks()
                    .0
                    .iter()
                    .zip(done..)
                    .filter(|(entry, _)| is_private_page(**entry));
                touched.extend(own.map(|(_, page)| stretch.first + page));
                done += count;
            }
        }
        touched.sort_unstable();
        Ok(touched)
    }

    /// Writes these pages, which are in order.
    pub(super) fn write_pages(&self, pages: &[u64], to: File) -> io::Result<()> {
        let mut to = BufWriter::with_capacity(1 << 20, to);
        to.write_all(FILE_MAGIC)?;
        to.write_all(&(pages.len() as u64).to_le_bytes())?;
        for page in pages {
            to.write_all(&page.to_le_bytes())?;
        }
        let mut bytes = vec![0; (CHUNK_PAGES * PAGE_BYTES) as usize];
        for run in group_consecutive_pages(pages) {
            let bytes = &mut bytes[..(run.1 * PAGE_BYTES) as usize];
            self.memory.read_exact_at(bytes, self.page_address(run)?)?;
            to.write_all(bytes)?;
        }
        to.flush()
    }

    fn page_address(&self, (first, count): (u64, u64)) -> io::Result<u64> {
        let holds = |it: &&Stretch| it.first <= first && first + count <= it.first + it.pages;
        let found = self
            .stretches
            .iter()
            .find(holds)
            .ok_or_else(|| invalid_data("there is no such page"))?;
        Ok(found.at + (first - found.first) * PAGE_BYTES)
    }
}

fn is_private_page(entry: [u8; 8]) -> bool {
    let entry = u64::from_le_bytes(entry);
    entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED) != 0 && entry & PAGEMAP_FILE_PAGE == 0
}

/// Pages that follow each other, no more at once than are read at once: the first, and how many.
fn group_consecutive_pages(pages: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let follow = |one: &u64, next: &u64| one + 1 == *next && !next.is_multiple_of(CHUNK_PAGES);
    pages.chunk_by(follow).map(|run| (run[0], run.len() as u64))
}

/// Where a process has the memory of this name, by what the kernel says of its mappings.
fn find_mappings(maps: &str, name: &str) -> Vec<Stretch> {
    let file = format!("/memfd:{name} (deleted)");
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let mut words = rest.split(' ');
        let (allowed, offset) = (words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        (allowed.starts_with("rw") && line.ends_with(&file)).then_some(Stretch {
            at: start,
            first: offset / PAGE_BYTES,
            pages: (end - start) / PAGE_BYTES,
        })
    };
    maps.lines().filter_map(parse).collect()
}

/// Puts pages that were written into a memory. Returns which those are.
pub(super) fn apply_pages(from: File, memory: &File) -> io::Result<Vec<u64>> {
    let size = memory.metadata()?.len() / PAGE_BYTES;
    let mut from = BufReader::with_capacity(1 << 20, from);
    let mut head = [0; FILE_MAGIC.len()];
    from.read_exact(&mut head)?;
    if head != *FILE_MAGIC {
        return Err(invalid_data("it does not hold pages"));
    }
    let count = read_u64(&mut from)?;
    if count > size {
        return Err(invalid_data("it holds more pages than there are"));
    }
    let mut pages = Vec::new();
    for _ in 0..count {
        let page = read_u64(&mut from)?;
        if page >= size || pages.last().is_some_and(|last| *last >= page) {
            return Err(invalid_data("its pages are not in order"));
        }
        pages.push(page);
    }
    let mut bytes = vec![0; (CHUNK_PAGES * PAGE_BYTES) as usize];
    for (first, count) in group_consecutive_pages(&pages) {
        let bytes = &mut bytes[..(count * PAGE_BYTES) as usize];
        from.read_exact(bytes)?;
        memory.write_all_at(bytes, first * PAGE_BYTES)?;
    }
    match from.read(&mut [0])? {
        0 => Ok(pages),
        _ => Err(invalid_data("it holds more than its pages")),
    }
}

fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn write_temp_file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    fn encode_pages(pages: &[u64], bytes: &[u8]) -> Vec<u8> {
        let mut held = FILE_MAGIC.to_vec();
        held.extend((pages.len() as u64).to_le_bytes());
        pages.iter().for_each(|page| held.extend(page.to_le_bytes()));
        held.extend(bytes);
        held
    }

    fn create_memory(pages: u64) -> File {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(pages * PAGE_BYTES).unwrap();
        memory
    }

    #[test]
    fn pages_are_put_where_they_were() {
        let bytes: Vec<u8> = [1u8, 2, 3].iter().flat_map(|of| [*of; PAGE_BYTES as usize]).collect();
        let into = create_memory(300);
        let pages = [4, 255, 256];
        assert_eq!(
            apply_pages(write_temp_file(&encode_pages(&pages, &bytes)), &into).unwrap(),
            pages
        );
        for (page, of) in pages.iter().zip(1u8..) {
            let mut seen = [0; PAGE_BYTES as usize];
            into.read_exact_at(&mut seen, page * PAGE_BYTES).unwrap();
            assert_eq!(seen, [of; PAGE_BYTES as usize]);
        }
    }

    #[test]
    fn what_does_not_hold_pages_is_refused() {
        let page = [7; PAGE_BYTES as usize];
        let good = encode_pages(&[1], &page);
        assert!(apply_pages(write_temp_file(&good), &create_memory(2)).is_ok());
        for length in 0..good.len() {
            if length < 64 || length % 97 == 0 {
                assert!(
                    apply_pages(write_temp_file(&good[..length]), &create_memory(2)).is_err(),
                    "cut at {length}"
                );
            }
        }
        let twice = [page, page].concat();
        for bad in [
            encode_pages(&[2], &page),
            encode_pages(&[1, 1], &twice),
            encode_pages(&[1, 0], &twice),
            encode_pages(&[1], &twice),
            encode_pages(&[0, 1, 2], &twice),
            [b"stockade-pages 2", &good[FILE_MAGIC.len()..]].concat(),
            [&FILE_MAGIC[..], &[255; 8], &page].concat(),
        ] {
            assert!(apply_pages(write_temp_file(&bad), &create_memory(2)).is_err());
        }
    }

    #[test]
    fn mappings_are_found_by_their_name() {
        let maps = "1000-3000 rw-p 00000000 00:01 7  /memfd:other (deleted)\n\
                    7f00-8f00 r--p 00001000 00:01 8  /memfd:mine (deleted)\n\
                    10000-13000 rw-p 00002000 00:01 8                          /memfd:mine (deleted)\n\
                    20000-21000 rw-p 00000000 00:00 0 \n";
        let found = find_mappings(maps, "mine");
        assert_eq!(found, [Stretch { at: 0x10000, first: 2, pages: 3 }]);
    }

    #[test]
    fn a_run_ends_where_pages_do_not_follow_and_where_it_is_long_enough() {
        let pages: Vec<u64> = [3, 4, 9].into_iter().chain(250..260).collect();
        let found: Vec<_> = group_consecutive_pages(&pages).collect();
        assert_eq!(found, [(3, 2), (9, 1), (250, 6), (256, 4)]);
    }
}
