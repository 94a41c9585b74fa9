//! The directories that a program is given. Opening them takes longer than a short program runs, so that they
//! are opened once for all programs which are given the same: a descriptor that only names a directory
//! has no state that one of them could leave to another.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use wasmtime::Result;
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemView};
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

/// A directory of the host, as a program sees it. Open already: a path could lead elsewhere by now.
pub(super) struct Preopen {
    pub dir: Arc<OwnedFd>,
    pub at: String,
    pub read_only: bool,
}

/// Directories that can be given to any number of programs.
#[derive(Clone, Default)]
pub(super) struct Preopens {
    given: WasiFilesystemCtx,
    count: usize,
}

impl Preopens {
    /// Makes them ready to be given, in this order.
    pub(super) fn of(all: &[Preopen]) -> Result<Self> {
        let mut builder = WasiCtxBuilder::new();
        // Programs that wait for files have a thread of their own.
        builder.allow_blocking_current_thread(true);
        for preopen in all {
            let perms = if preopen.read_only { FsPerms::ReadOnly } else { FsPerms::ReadWrite };
            let same = format!("/proc/self/fd/{}", preopen.dir.as_raw_fd());
            builder.preopened_dir(same, &preopen.at, perms)?;
        }
        let given = builder.build_p1().filesystem().ctx.clone();
        Ok(Self { given, count: all.len() })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// As a program takes them.
    pub(super) fn into_filesystem(self) -> WasiFilesystemCtx {
        self.given
    }
}
