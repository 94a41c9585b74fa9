//! The output of one execution on disk: appended by one writer, read at any offset by anybody.
//! Bounded by the execution's own output limit, which the engine enforces.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use stockade_core::StreamId;

/// Both streams of one execution.
#[derive(Debug)]
pub(super) struct Spool {
    stdout: File,
    stderr: File,
    paths: [PathBuf; 2],
}

impl Spool {
    pub(super) fn create(dir: &Path, name: &str) -> io::Result<Self> {
        let paths = ["stdout", "stderr"].map(|stream| dir.join(format!("{name}.{stream}")));
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.create_new(true).append(true).read(true).mode(0o600).open(path)
        };
        Ok(Self { stdout: open(&paths[0])?, stderr: open(&paths[1])?, paths })
    }

    fn stream_file(&self, stream: StreamId) -> &File {
        match stream {
            StreamId::Stdout => &self.stdout,
            StreamId::Stderr => &self.stderr,
        }
    }

    pub(super) fn append(&self, stream: StreamId, data: &[u8]) -> io::Result<()> {
        self.stream_file(stream).write_all(data)
    }

    /// At most this many bytes from this offset on.
    pub(super) fn read(&self, stream: StreamId, offset: u64, most: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; most];
        let mut filled = 0;
        while filled < most {
            match self.stream_file(stream).read_at(&mut data[filled..], offset + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        data.truncate(filled);
        Ok(data)
    }

    pub(super) fn remove(&self) {
        // Gone with its directory at the latest.
        let _ = self.paths.iter().map(std::fs::remove_file).collect::<Vec<_>>();
    }
}
