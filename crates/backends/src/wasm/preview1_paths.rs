//! WASI preview 1, calls that give or use a name: what is opened is a file or a directory and nothing
//! else, and a new name takes room on disk.

use std::sync::Arc;

use wasmtime::{Caller, Linker, Result};
use wasmtime_wasi::p1::types;
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as wasi, WasiSnapshotPreview1};
use wiggle::{GuestMemory, GuestPtr};

use super::account::{DIR_ENTRY_BYTES, ResourceAccount};
use super::preview1::{NO_SPACE, PREVIEW1_MODULE, split_memory_and_state, wait_for_own_thread};
use super::state::StoreState;

const ACCESS_DENIED: i32 = 2;
const TOO_MANY_FILES: i32 = 33;
/// Open flag: create the file if it does not exist.
const OPEN_CREATE: i32 = 1;

pub(super) fn add_name_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    add_open_call(linker)?;
    add_create_calls(linker)?;
    add_rename_call(linker)
}

/// Whether something can be opened without waiting for anybody, and without an effect of its own.
fn is_safe_to_open(kind: types::Filetype) -> bool {
    match kind {
        types::Filetype::RegularFile
        | types::Filetype::Directory
        | types::Filetype::SymbolicLink => true,
        types::Filetype::Unknown
        | types::Filetype::BlockDevice
        | types::Filetype::CharacterDevice
        | types::Filetype::SocketDgram
        | types::Filetype::SocketStream => false,
    }
}

/// What opening a path leads to.
enum Fate {
    There,
    New,
    Unsuitable,
}

async fn predict_open(
    state: &mut StoreState,
    memory: &mut GuestMemory<'_>,
    (dir, look, path, len): (i32, i32, i32, i32),
) -> Fate {
    let flags = types::Lookupflags::from_bits_truncate(look.cast_unsigned());
    let path = GuestPtr::<str>::new((path.cast_unsigned(), len.cast_unsigned()));
    match state.wasi.path_filestat_get(memory, types::Fd::from(dir), flags, path).await {
        Ok(found) if is_safe_to_open(found.filetype) => Fate::There,
        Ok(_) => Fate::Unsuitable,
        // Opening it reports what is wrong with it.
        Err(_) => Fate::New,
    }
}

fn add_open_call(linker: &mut Linker<StoreState>) -> Result<()> {
    type PathOpenArguments = (i32, i32, i32, i32, i32, i64, i64, i32, i32);
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "path_open",
        |mut caller: Caller<'_, StoreState>,
         (dir, look, path, len, how, base, inherit, flags, out): PathOpenArguments| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                if state.descriptors.is_full() {
                    return Ok(TOO_MANY_FILES);
                }
                let account = Arc::clone(&state.meter.account);
                // Another program of the sandbox must not swap what was looked at.
                let _steady = account.names.read().await;
                let cost = match predict_open(state, &mut memory, (dir, look, path, len)).await {
                    Fate::Unsuitable => return Ok(ACCESS_DENIED),
                    Fate::New if how & OPEN_CREATE != 0 => DIR_ENTRY_BYTES,
                    Fate::There | Fate::New => 0,
                };
                if !account.take_disk(cost) {
                    return Ok(NO_SPACE);
                }
                let ctx = &mut state.wasi;
                let errno = wasi::path_open(
                    ctx,
                    &mut memory,
                    dir,
                    look,
                    path,
                    len,
                    how,
                    base,
                    inherit,
                    flags,
                    out,
                )
                .await?;
                if errno != 0 {
                    account.give_disk(cost);
                    return Ok(errno);
                }
                let number = memory.read(GuestPtr::<u32>::new(out.cast_unsigned()))?;
                keep_if_safe(state, &mut memory, number).await
            })
        },
    )?;
    Ok(())
}

/// Keeps an opened descriptor if its type is still safe: a process outside may have swapped the file.
async fn keep_if_safe(
    state: &mut StoreState,
    memory: &mut GuestMemory<'_>,
    number: u32,
) -> Result<i32> {
    let found = state.wasi.fd_filestat_get(memory, types::Fd::from(number)).await;
    if found.is_ok_and(|found| is_safe_to_open(found.filetype)) {
        state.descriptors.record_open(number);
        return Ok(0);
    }
    wasi::fd_close(&mut state.wasi, memory, number.cast_signed()).await?;
    Ok(ACCESS_DENIED)
}

/// Makes a name at its cost, which is given back where it was not made.
async fn charge_name<E>(
    account: &ResourceAccount,
    making: impl Future<Output = std::result::Result<i32, E>>,
) -> Result<i32>
where
    wasmtime::Error: From<E>,
{
    if !account.take_disk(DIR_ENTRY_BYTES) {
        return Ok(NO_SPACE);
    }
    let errno = making.await?;
    account.give_disk(if errno == 0 { 0 } else { DIR_ENTRY_BYTES });
    Ok(errno)
}

/// Calls that make a name.
fn add_create_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "path_create_directory",
        |mut caller: Caller<'_, StoreState>, (dir, path, len): (i32, i32, i32)| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let account = Arc::clone(&state.meter.account);
                let ctx = &mut state.wasi;
                let making = wasi::path_create_directory(ctx, &mut memory, dir, path, len);
                charge_name(&account, making).await
            })
        },
    )?;
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "path_symlink",
        |mut caller: Caller<'_, StoreState>,
         (to, to_len, dir, path, len): (i32, i32, i32, i32, i32)| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let ctx = &mut state.wasi;
                let making = wasi::path_symlink(ctx, &mut memory, to, to_len, dir, path, len);
                charge_name(&account, making).await
            })
        },
    )?;
    type PathLinkArguments = (i32, i32, i32, i32, i32, i32, i32);
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "path_link",
        |mut caller: Caller<'_, StoreState>,
         (dir, look, path, len, to, name, name_len): PathLinkArguments| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let ctx = &mut state.wasi;
                let making =
                    wasi::path_link(ctx, &mut memory, dir, look, path, len, to, name, name_len);
                charge_name(&account, making).await
            })
        },
    )?;
    Ok(())
}

fn add_rename_call(linker: &mut Linker<StoreState>) -> Result<()> {
    type Rename = (i32, i32, i32, i32, i32, i32);
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "path_rename",
        |mut caller: Caller<'_, StoreState>, (dir, path, len, to, name, name_len): Rename| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let account = Arc::clone(&state.meter.account);
                let _alone = account.names.write().await;
                let ctx = &mut state.wasi;
                wasi::path_rename(ctx, &mut memory, dir, path, len, to, name, name_len).await
            })
        },
    )?;
    Ok(())
}
