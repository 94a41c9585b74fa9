//! The first files of a machine: the program that is its first process, and the kernel's modules. Written
//! in the one format that the kernel reads (`cpio`, "newc"); the same files always give the same bytes.

const REGULAR_FILE_MODE: u32 = 0o100_000;
const DIRECTORY_MODE: u32 = 0o040_000;

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

    /// The whole.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.write_entry("TRAILER!!!", 0, &[]);
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
        self.pad_to_alignment();
        self.0.extend_from_slice(bytes);
        self.pad_to_alignment();
    }

    fn pad_to_alignment(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
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
}
