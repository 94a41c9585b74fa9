//! The first files of a machine: the program that is its first process, and the kernel's modules. Written
//! in the one format that the kernel reads (`cpio`, "newc"); the same files always give the same bytes.

/// Whole pages, of which QEMU leaves one free above the archive. It loads it as high in memory as page boundaries
/// allow, where its firmware has put the ACPI tables already: what reaches into the last page overwrites them, and
/// the kernel finds neither devices nor a timer.
const PAGE_BYTES: usize = 4096;

const REGULAR_FILE_MODE: u32 = 0o100_000;
const DIRECTORY_MODE: u32 = 0o040_000;
/// What names and contents begin at a multiple of.
const FIELD_ALIGNMENT_BYTES: usize = 4;

/// An archive that is being written.
#[derive(Default)]
pub(super) struct Initramfs(Vec<u8>, u32);

impl Initramfs {
    /// A directory. Those above it come before.
    pub(super) fn add_directory(mut self, name: &str) -> Self {
        self.write_entry(name, DIRECTORY_MODE | 0o755, &[]);
        self
    }

    /// A program or any other file.
    pub(super) fn add_file(mut self, name: &str, bytes: &[u8]) -> Self {
        self.write_entry(name, REGULAR_FILE_MODE | 0o755, bytes);
        self
    }

    /// The whole, followed by zeros up to the end of a page.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.write_entry("TRAILER!!!", 0, &[]);
        self.pad_to_multiple(PAGE_BYTES);
        self.0
    }

    fn write_entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.1 += 1;
        let (size, length) = (bytes.len(), name.len() + 1);
        // Number, mode, user, group, links, time, size, four of devices, length of the name, sum.
        let fields = [self.1, mode, 0, 0, 1, 0, size as u32, 0, 0, 0, 0, length as u32, 0];
        self.0.extend_from_slice(b"070701");
        for field in fields {
            self.0.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.pad_to_multiple(FIELD_ALIGNMENT_BYTES);
        self.0.extend_from_slice(bytes);
        self.pad_to_multiple(FIELD_ALIGNMENT_BYTES);
    }

    fn pad_to_multiple(&mut self, bytes: usize) {
        self.0.resize(self.0.len().next_multiple_of(bytes), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_cpio_reads() {
        let whole = Initramfs::default().add_directory("a").add_file("a/b", b"text").finish();
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("x"), whole).unwrap();
        let script = "cpio --quiet -i <x && cat a/b";
        let ran =
            std::process::Command::new("sh").args(["-c", script]).current_dir(&place).output();
        assert_eq!(ran.unwrap().stdout, b"text");
    }

    #[test]
    fn it_reaches_into_no_page_that_it_does_not_fill() {
        for size in [0, 1, 3000, 3700, PAGE_BYTES, 3 * PAGE_BYTES - 1] {
            let whole = Initramfs::default().add_file("init", &vec![7; size]).finish();
            assert!(whole.len() > size && whole.len().is_multiple_of(PAGE_BYTES), "{size}");
        }
    }
}
