//! Files of the kernel, as below `/proc` and `/sys`. Never for files of a guest: their length is not bounded.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

/// What one reading call asks for: the kernel gives out a page at a time.
const READ_BYTES: usize = 4096;

/// The whole text of a file of the kernel.
pub fn read_kernel_file(path: impl AsRef<Path>) -> io::Result<String> {
    let text = read_kernel_bytes(path)?;
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// All bytes of a file of the kernel. Such files tell no size, so that the standard library would begin with
/// small reads and ask for the size besides.
pub fn read_kernel_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = open(path.as_ref(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = Vec::new();
    loop {
        content.reserve(READ_BYTES);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut content)) {
            Ok(0) => return Ok(content),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_file_is_read_whole_and_what_is_missing_is_an_error() {
        for path in ["/proc/self/mountinfo", "/proc/self/cgroup", "/proc/cpuinfo"] {
            let lines = |text: &str| text.lines().count();
            let (read, expected) =
                (read_kernel_file(path).unwrap(), std::fs::read_to_string(path).unwrap());
            assert_eq!(lines(&read), lines(&expected), "{path}");
        }
        let missing = read_kernel_file("/proc/self/absent").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
