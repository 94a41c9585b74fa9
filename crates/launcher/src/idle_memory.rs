//! Gives memory of an idle process back to the host: free heap, and pages of its program's file, which the kernel
//! maps again from its page cache when they are used. Must lose no byte that exists in this process alone.

#![allow(unsafe_code)] // neither call has a safe wrapper

use std::ops::Range;

/// What one mapping of this process is, as `/proc/self/smaps` tells it.
#[derive(Debug, PartialEq, Eq)]
struct MemoryMapping {
    range: Range<usize>,
    writable: bool,
    /// Device and inode of the file; none: anonymous memory.
    file: Option<(String, u64)>,
    /// Whether every page in memory is the file's own: none was written to by this process, in memory or in swap.
    clean: bool,
}

/// Gives back what this process can have again. Takes about a millisecond, and so does what it does next. An error changes
/// nothing but the size of this process.
pub fn release_idle_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no memory of ours, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for range in find_program_pages(&smaps, release_idle_memory as *const () as usize) {
        // SAFETY: the kernel reads pages of a mapped file again when they are next used. Those of this program stay
        // mapped as they are from its start to its end, and these were found to hold nothing but the file.
        unsafe {
            libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED);
        }
    }
}

/// The clean, read-only mappings of the file that an address lies in.
fn find_program_pages(smaps: &str, address: usize) -> Vec<Range<usize>> {
    let mappings = parse_smaps(smaps);
    let program = mappings.iter().find(|mapping| mapping.range.contains(&address));
    let Some(file) = program.and_then(|mapping| mapping.file.clone()) else { return Vec::new() };
    let wanted = |mapping: &&MemoryMapping| {
        mapping.clean && !mapping.writable && mapping.file.as_ref() == Some(&file)
    };
    mappings.iter().filter(wanted).map(|mapping| mapping.range.clone()).collect()
}

fn parse_smaps(smaps: &str) -> Vec<MemoryMapping> {
    let mut mappings: Vec<MemoryMapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = parse_head(line) {
            mappings.push(mapping);
        } else if let Some(last) = mappings.last_mut()
            && (line.starts_with("Anonymous:") || line.starts_with("Swap:"))
        {
            last.clean &= line.split_ascii_whitespace().nth(1) == Some("0");
        }
    }
    mappings
}

/// The first line of a mapping: `55e0-55f0 r-xp 00001000 fe:00 1234   /path`.
fn parse_head(line: &str) -> Option<MemoryMapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let (permissions, _offset, device) = (words.next()?, words.next()?, words.next()?);
    let inode: u64 = words.next()?.parse().ok()?;
    let file = (inode != 0).then(|| (device.to_owned(), inode));
    Some(MemoryMapping { range, writable: permissions.contains('w'), file, clean: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r--p 00000000 fe:00 77   /usr/bin/stockade
Rss:                 100 kB
Anonymous:             0 kB
Swap:                  0 kB
00500000-00900000 r-xp 00100000 fe:00 77   /usr/bin/stockade (deleted)
Anonymous:             0 kB
Swap:                  0 kB
00900000-00910000 r--p 00500000 fe:00 77   /usr/bin/stockade
Anonymous:            64 kB
Swap:                  0 kB
00910000-00920000 r--p 00510000 fe:00 77   /usr/bin/stockade
Anonymous:             0 kB
Swap:                  4 kB
00920000-00930000 rw-p 00520000 fe:00 77   /usr/bin/stockade
Anonymous:             0 kB
Swap:                  0 kB
00930000-00a00000 rw-p 00000000 00:00 0    [heap]
Anonymous:           800 kB
7f0000000000-7f0000100000 r-xp 00000000 fe:00 78   /usr/lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
";

    #[test]
    fn only_clean_pages_of_the_program_itself_are_given_back() {
        let found = find_program_pages(SMAPS, 0x50_1234);
        assert_eq!(found, [0x40_0000..0x50_0000, 0x50_0000..0x90_0000]);
    }

    #[test]
    fn nothing_is_given_back_where_the_program_is_not_found() {
        assert!(find_program_pages(SMAPS, 0x1000).is_empty());
        assert!(find_program_pages(SMAPS, 0x93_0000).is_empty(), "anonymous memory");
        assert!(find_program_pages("", 0x50_1234).is_empty());
        assert!(find_program_pages("nonsense\n\n-\n1-2 r\n", 1).is_empty());
    }

    #[test]
    fn a_process_goes_on_after_it_has_given_its_pages_back() {
        let before: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        release_idle_memory();
        assert_eq!(before.len(), 1000);
        assert_eq!(before[999], format!("{}", 999));
    }
}
