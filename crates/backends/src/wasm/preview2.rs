//! WASI preview 2: the library's interfaces, and in front of what uses something up, the limits.

use bytes::Bytes as Data;
use wasmtime::component::{Linker, LinkerInstance, Resource};
use wasmtime::{Engine, Result, StoreContextMut};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types::{ErrorCode, HostDescriptor};
use wasmtime_wasi::p2::{
    DynOutputStream, FsResult, OutputStream, Pollable, StreamError, StreamResult,
};
use wasmtime_wasi::{WasiView, async_trait};

use std::sync::Arc;

use super::account::ResourceAccount;
use super::preview2_paths;
use super::state::StoreState;

/// The interface whose functions use up disk space or descriptors, as the library names it.
const FILESYSTEM_INTERFACE: &str = "wasi:filesystem/types@0.2.12";

/// Everything a component may import.
pub(super) fn build_linker(engine: &Engine) -> Result<Linker<StoreState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    linker.allow_shadowing(true);
    let mut files = linker.instance(FILESYSTEM_INTERFACE)?;
    preview2_paths::add_name_calls(&mut files)?;
    add_write_calls(&mut files)?;
    add_stream_calls(&mut files)?;
    linker.allow_shadowing(false);
    Ok(linker)
}

/// The error of an interface as its callers get it, or a trap.
pub(super) fn convert_fs_error<T>(
    state: &mut StoreState,
    done: FsResult<T>,
) -> Result<std::result::Result<T, ErrorCode>> {
    use wasmtime_wasi::p2::bindings::filesystem::types::Host;
    match done {
        Ok(value) => Ok(Ok(value)),
        Err(error) => state.filesystem().convert_error_code(error).map(Err),
    }
}

fn add_write_calls(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    files.func_wrap_async(
        "[method]descriptor.write",
        |mut store: StoreContextMut<'_, StoreState>,
         (fd, data, at): (Resource<Descriptor>, Vec<u8>, u64)| {
            Box::new(async move {
                let state = store.data_mut();
                let wanted = data.len() as u64;
                if !state.meter.account.take_disk(wanted) {
                    return Ok((Err(ErrorCode::InsufficientSpace),));
                }
                let written = state.filesystem().write(fd, data, at).await;
                let done = *written.as_ref().unwrap_or(&0);
                state.meter.account.give_disk(wanted.saturating_sub(done));
                Ok((convert_fs_error(state, written)?,))
            })
        },
    )?;
    files.func_wrap_async(
        "[method]descriptor.set-size",
        |mut store: StoreContextMut<'_, StoreState>, (fd, size): (Resource<Descriptor>, u64)| {
            Box::new(async move {
                let state = store.data_mut();
                let same = Resource::new_borrow(fd.rep());
                let now = state.filesystem().stat(same).await.map_or(0, |stat| stat.size);
                let more = size.saturating_sub(now);
                if !state.meter.account.take_disk(more) {
                    return Ok((Err(ErrorCode::InsufficientSpace),));
                }
                let sized = state.filesystem().set_size(fd, size).await;
                if sized.is_err() {
                    state.meter.account.give_disk(more);
                }
                Ok((convert_fs_error(state, sized)?,))
            })
        },
    )
}

fn add_stream_calls(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    files.func_wrap(
        "[method]descriptor.write-via-stream",
        |mut store: StoreContextMut<'_, StoreState>, (fd, at): (Resource<Descriptor>, u64)| {
            let state = store.data_mut();
            let stream = state.filesystem().write_via_stream(fd, at);
            Ok((meter_stream(state, stream)?,))
        },
    )?;
    files.func_wrap(
        "[method]descriptor.append-via-stream",
        |mut store: StoreContextMut<'_, StoreState>, (fd,): (Resource<Descriptor>,)| {
            let state = store.data_mut();
            let stream = state.filesystem().append_via_stream(fd);
            Ok((meter_stream(state, stream)?,))
        },
    )
}

type FileStream = Resource<DynOutputStream>;

/// The stream that counts in the place of one that does not.
fn meter_stream(
    state: &mut StoreState,
    stream: FsResult<FileStream>,
) -> Result<std::result::Result<FileStream, ErrorCode>> {
    let stream = match convert_fs_error(state, stream)? {
        Ok(stream) => stream,
        Err(code) => return Ok(Err(code)),
    };
    let account = Arc::clone(&state.meter.account);
    let table = state.ctx().table;
    let inner = table.delete(stream)?;
    let metered: DynOutputStream = Box::new(Metered { inner, account });
    Ok(Ok(table.push(metered)?))
}

/// A stream to a file that takes room on disk for what goes through it.
struct Metered {
    inner: DynOutputStream,
    account: Arc<ResourceAccount>,
}

#[async_trait]
impl Pollable for Metered {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl OutputStream for Metered {
    fn write(&mut self, bytes: Data) -> StreamResult<()> {
        if !self.account.take_disk(bytes.len() as u64) {
            // By its number: that is what a program is told it by.
            let full = std::io::Error::from(rustix::io::Errno::NOSPC);
            return Err(StreamError::LastOperationFailed(full.into()));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}
