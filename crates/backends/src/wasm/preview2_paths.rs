//! WASI preview 2, calls that give or use a name: what is opened is a file or a directory and nothing
//! else, and a new name takes room on disk.

use std::sync::Arc;

use wasmtime::component::{LinkerInstance, Resource};
use wasmtime::{Result, StoreContextMut};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::FsResult;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, ErrorCode, HostDescriptor, OpenFlags, PathFlags,
};

use super::account::{DIR_ENTRY_BYTES, ResourceAccount};
use super::preview2::convert_fs_error;
use super::state::StoreState;

type OpenResult = std::result::Result<Resource<Descriptor>, ErrorCode>;
type Dir = Resource<Descriptor>;

pub(super) fn add_name_calls(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    add_open_call(files)?;
    add_create_calls(files)?;
    add_rename_call(files)
}

/// Whether something can be opened without waiting for anybody, and without an effect of its own.
fn is_safe_to_open(kind: DescriptorType) -> bool {
    match kind {
        DescriptorType::RegularFile | DescriptorType::Directory | DescriptorType::SymbolicLink => {
            true
        }
        DescriptorType::Unknown
        | DescriptorType::BlockDevice
        | DescriptorType::CharacterDevice
        | DescriptorType::Fifo
        | DescriptorType::Socket => false,
    }
}

fn add_open_call(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    type OpenAtArguments = (Dir, PathFlags, String, OpenFlags, DescriptorFlags);
    files.func_wrap_async(
        "[method]descriptor.open-at",
        |mut store: StoreContextMut<'_, StoreState>,
         (fd, look, path, how, flags): OpenAtArguments| {
            Box::new(async move {
                let state = store.data_mut();
                if state.is_full() {
                    return Ok((OpenResult::Err(ErrorCode::InsufficientMemory),));
                }
                let account = Arc::clone(&state.meter.account);
                // Another program of the sandbox must not swap what was looked at.
                let _steady = account.names.read().await;
                let same = Resource::new_borrow(fd.rep());
                let cost = match state.filesystem().stat_at(same, look, path.clone()).await {
                    Ok(found) if !is_safe_to_open(found.type_) => {
                        return Ok((OpenResult::Err(ErrorCode::Access),));
                    }
                    // Opening it reports what is wrong with it.
                    Err(_) if how.contains(OpenFlags::CREATE) => DIR_ENTRY_BYTES,
                    Ok(_) | Err(_) => 0,
                };
                if !account.take_disk(cost) {
                    return Ok((OpenResult::Err(ErrorCode::InsufficientSpace),));
                }
                let opened = state.filesystem().open_at(fd, look, path, how, flags).await;
                match convert_fs_error(state, opened)? {
                    Ok(opened) => Ok((keep_if_safe(state, opened).await?,)),
                    Err(code) => {
                        account.give_disk(cost);
                        Ok((Err(code),))
                    }
                }
            })
        },
    )
}

/// Keeps an opened descriptor if its type is still safe: a process outside may have swapped the file.
async fn keep_if_safe(state: &mut StoreState, opened: Resource<Descriptor>) -> Result<OpenResult> {
    let same = Resource::new_borrow(opened.rep());
    let kind = state.filesystem().get_type(same).await;
    if kind.is_ok_and(is_safe_to_open) {
        return Ok(Ok(opened));
    }
    HostDescriptor::drop(&mut state.filesystem(), opened)?;
    Ok(Err(ErrorCode::Access))
}

/// Makes a name at its cost, which is given back where it was not made.
async fn charge_name(
    account: &ResourceAccount,
    making: impl Future<Output = FsResult<()>>,
) -> FsResult<()> {
    if !account.take_disk(DIR_ENTRY_BYTES) {
        return Err(ErrorCode::InsufficientSpace.into());
    }
    let made = making.await;
    account.give_disk(if made.is_ok() { 0 } else { DIR_ENTRY_BYTES });
    made
}

/// Calls that make a name.
fn add_create_calls(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    files.func_wrap_async(
        "[method]descriptor.create-directory-at",
        |mut store: StoreContextMut<'_, StoreState>, (fd, path): (Dir, String)| {
            Box::new(async move {
                let state = store.data_mut();
                let account = Arc::clone(&state.meter.account);
                let mut files = state.filesystem();
                let made = charge_name(&account, files.create_directory_at(fd, path)).await;
                Ok((convert_fs_error(state, made)?,))
            })
        },
    )?;
    files.func_wrap_async(
        "[method]descriptor.symlink-at",
        |mut store: StoreContextMut<'_, StoreState>, (fd, to, path): (Dir, String, String)| {
            Box::new(async move {
                let state = store.data_mut();
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let mut files = state.filesystem();
                let made = charge_name(&account, files.symlink_at(fd, to, path)).await;
                Ok((convert_fs_error(state, made)?,))
            })
        },
    )?;
    type LinkAtArguments = (Dir, PathFlags, String, Dir, String);
    files.func_wrap_async(
        "[method]descriptor.link-at",
        |mut store: StoreContextMut<'_, StoreState>,
         (fd, look, path, to, name): LinkAtArguments| {
            Box::new(async move {
                let state = store.data_mut();
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let mut files = state.filesystem();
                let made = charge_name(&account, files.link_at(fd, look, path, to, name)).await;
                Ok((convert_fs_error(state, made)?,))
            })
        },
    )
}

fn add_rename_call(files: &mut LinkerInstance<'_, StoreState>) -> Result<()> {
    files.func_wrap_async(
        "[method]descriptor.rename-at",
        |mut store: StoreContextMut<'_, StoreState>,
         (fd, path, to, name): (Dir, String, Dir, String)| {
            Box::new(async move {
                let state = store.data_mut();
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let renamed = state.filesystem().rename_at(fd, path, to, name).await;
                Ok((convert_fs_error(state, renamed)?,))
            })
        },
    )
}
