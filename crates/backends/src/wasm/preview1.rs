//! WASI preview 1: the library's functions, and in front of those that use something up, the limits.

use std::time::Duration;

use wasmtime::{AsContextMut, Caller, Engine, Extern, Linker, Result};
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as wasi, WasiSnapshotPreview1};
use wasmtime_wasi::p1::{add_to_linker_async, types};
use wiggle::{GuestMemory, GuestPtr};

use stockade_core::Signal;

use super::preview1_paths;
use super::state::{StopReason, StoreState};

/// Module name under which programs import this interface.
pub(super) const PREVIEW1_MODULE: &str = "wasi_snapshot_preview1";

/// Error numbers of the interface.
pub(super) const NO_SPACE: i32 = 51;
const INVALID_ARGUMENT: i32 = 28;

/// Random bytes above which a request counts as slow.
const SLOW_RANDOM_BYTES: u32 = 64 << 10;

/// The clocks of the interface that the library does not have.
const PROCESS_TIME: i32 = 2;
const THREAD_TIME: i32 = 3;

/// Linux's number of each signal of the interface; the two differ after the fifteenth.
const LINUX_SIGNALS: [i32; 31] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    27, 29, 30, 31, 31,
];

/// Everything a module may import.
pub(super) fn build_linker(engine: &Engine) -> Result<Linker<StoreState>> {
    let mut linker = Linker::new(engine);
    add_to_linker_async(&mut linker, |state: &mut StoreState| &mut state.wasi)?;
    linker.allow_shadowing(true);
    preview1_paths::add_name_calls(&mut linker)?;
    add_slow_calls(&mut linker)?;
    add_open_file_calls(&mut linker)?;
    add_write_calls(&mut linker)?;
    add_exit_calls(&mut linker)?;
    add_poll_calls(&mut linker)?;
    linker.allow_shadowing(false);
    Ok(linker)
}

/// The program's memory and state, as the library's functions want them.
pub(super) fn split_memory_and_state<'a>(
    caller: &'a mut Caller<'_, StoreState>,
) -> Result<(GuestMemory<'a>, &'a mut StoreState)> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        wasmtime::bail!("the module exports no memory");
    };
    let fuel = caller.as_context_mut().hostcall_fuel();
    let (data, state) = memory.data_and_store_mut(caller);
    state.wasi.set_hostcall_fuel(fuel);
    Ok((GuestMemory::Unshared(data), state))
}

/// Waits for a thread of its own, before something that may take long.
pub(super) fn wait_for_own_thread(
    caller: &Caller<'_, StoreState>,
) -> impl Future<Output = ()> + Send + use<> {
    caller.data().meter.thread.wait_for_own_thread()
}

/// Calls of the library that wait for a file system. There is no file open before the first of them
/// or of [`names1`] was made; what does something to an open file needs no such care.
macro_rules! wait_for_files {
    ($linker:ident, $($name:ident($($given:ident: $kind:ty),*))*) => {$(
        $linker.func_wrap_async(
            PREVIEW1_MODULE,
            stringify!($name),
            |mut caller: Caller<'_, StoreState>, ($($given,)*): ($($kind,)*)| {
                Box::new(async move {
                    wait_for_own_thread(&caller).await;
                    let (mut memory, state) = split_memory_and_state(&mut caller)?;
                    wasi::$name(&mut state.wasi, &mut memory, $($given),*).await
                })
            },
        )?;
    )*};
}

/// Calls that change nothing of what is counted here, but may take long.
fn add_slow_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    wait_for_files! { linker,
        fd_datasync(fd: i32)
        fd_sync(fd: i32)
        fd_filestat_get(fd: i32, out: i32)
        fd_filestat_set_times(fd: i32, access: i64, change: i64, flags: i32)
        fd_readdir(fd: i32, into: i32, most: i32, from: i64, out: i32)
        path_filestat_get(dir: i32, look: i32, path: i32, len: i32, out: i32)
        path_filestat_set_times(
            dir: i32, look: i32, path: i32, len: i32, access: i64, change: i64, flags: i32
        )
        path_readlink(dir: i32, path: i32, len: i32, into: i32, most: i32, out: i32)
        path_remove_directory(dir: i32, path: i32, len: i32)
        path_unlink_file(dir: i32, path: i32, len: i32)
    }
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "random_get",
        |mut caller: Caller<'_, StoreState>, (into, len): (i32, i32)| {
            Box::new(async move {
                if len.cast_unsigned() > SLOW_RANDOM_BYTES {
                    wait_for_own_thread(&caller).await;
                }
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                wasi::random_get(&mut state.wasi, &mut memory, into, len)
            })
        },
    )?;
    Ok(())
}

/// The number of open files is bounded; [`names1`] opens them.
fn add_open_file_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "fd_close",
        |mut caller: Caller<'_, StoreState>, (fd,): (i32,)| {
            Box::new(async move {
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let errno = wasi::fd_close(&mut state.wasi, &mut memory, fd).await?;
                if errno == 0 {
                    state.descriptors.record_close(fd.cast_unsigned());
                }
                Ok(errno)
            })
        },
    )?;
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "fd_renumber",
        |mut caller: Caller<'_, StoreState>, (from, to): (i32, i32)| {
            Box::new(async move {
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let errno = wasi::fd_renumber(&mut state.wasi, &mut memory, from, to).await?;
                if errno == 0 {
                    state.descriptors.record_renumber(from.cast_unsigned(), to.cast_unsigned());
                }
                Ok(errno)
            })
        },
    )?;
    Ok(())
}

/// The size of what a call to write would write at most.
fn requested_bytes(memory: &GuestMemory<'_>, list: i32, count: i32) -> Result<u64> {
    let list = GuestPtr::<types::Ciovec>::new(list.cast_unsigned());
    let mut total = 0_u64;
    for part in list.as_array(count.cast_unsigned()).iter() {
        total = total.saturating_add(u64::from(memory.read(part?)?.buf_len));
    }
    Ok(total)
}

/// What is written is bounded.
fn add_write_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "fd_write",
        |mut caller: Caller<'_, StoreState>, (fd, list, count, out): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let room = match reserve_disk(state, &memory, fd, list, count)? {
                    Ok(room) => room,
                    Err(errno) => return Ok(errno),
                };
                let errno =
                    wasi::fd_write(&mut state.wasi, &mut memory, fd, list, count, out).await;
                refund_unwritten(state, &memory, room, errno?, out)
            })
        },
    )?;
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "fd_pwrite",
        |mut caller: Caller<'_, StoreState>,
         (fd, list, count, at, out): (i32, i32, i32, i64, i32)| {
            Box::new(async move {
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let room = match reserve_disk(state, &memory, fd, list, count)? {
                    Ok(room) => room,
                    Err(errno) => return Ok(errno),
                };
                let ctx = &mut state.wasi;
                let errno = wasi::fd_pwrite(ctx, &mut memory, fd, list, count, at, out).await;
                refund_unwritten(state, &memory, room, errno?, out)
            })
        },
    )?;
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "fd_filestat_set_size",
        |mut caller: Caller<'_, StoreState>, (fd, size): (i32, i64)| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let stat = state.wasi.fd_filestat_get(&mut memory, types::Fd::from(fd)).await;
                let now = stat.map_or(0, |stat| stat.size);
                let more = size.cast_unsigned().saturating_sub(now);
                if !state.meter.account.take_disk(more) {
                    return Ok(NO_SPACE);
                }
                let errno = wasi::fd_filestat_set_size(&mut state.wasi, &mut memory, fd, size);
                let errno = errno.await?;
                if errno != 0 {
                    state.meter.account.give_disk(more);
                }
                Ok(errno)
            })
        },
    )?;
    Ok(())
}

/// Takes room on disk for a write to a file; its streams are counted elsewhere.
fn reserve_disk(
    state: &StoreState,
    memory: &GuestMemory<'_>,
    fd: i32,
    list: i32,
    count: i32,
) -> Result<std::result::Result<u64, i32>> {
    if !state.descriptors.is_file(fd.cast_unsigned()) {
        return Ok(Ok(0));
    }
    let wanted = match requested_bytes(memory, list, count) {
        Ok(wanted) => wanted,
        Err(_) => return Ok(Err(INVALID_ARGUMENT)),
    };
    Ok(if state.meter.account.take_disk(wanted) { Ok(wanted) } else { Err(NO_SPACE) })
}

/// Gives back the room that was not needed.
fn refund_unwritten(
    state: &StoreState,
    memory: &GuestMemory<'_>,
    room: u64,
    errno: i32,
    out: i32,
) -> Result<i32> {
    if room > 0 {
        let written = match errno {
            0 => u64::from(memory.read(GuestPtr::<u32>::new(out.cast_unsigned()))?),
            _ => 0,
        };
        state.meter.account.give_disk(room.saturating_sub(written));
    }
    Ok(errno)
}

/// Ends that the library does not let through, and clocks it does not have.
fn add_exit_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    linker.func_wrap(PREVIEW1_MODULE, "proc_exit", |code: i32| -> Result<()> {
        Err(StopReason::Exit(code).into())
    })?;
    linker.func_wrap(PREVIEW1_MODULE, "proc_raise", |number: i32| -> Result<i32> {
        match usize::try_from(number).ok().and_then(|at| LINUX_SIGNALS.get(at)) {
            Some(0) => Ok(0),
            Some(linux) => Err(StopReason::Raised(Signal(*linux)).into()),
            None => Ok(INVALID_ARGUMENT),
        }
    })?;
    linker.func_wrap(
        PREVIEW1_MODULE,
        "clock_time_get",
        |mut caller: Caller<'_, StoreState>, clock: i32, precision: i64, out: i32| -> Result<i32> {
            let (mut memory, state) = split_memory_and_state(&mut caller)?;
            if clock != PROCESS_TIME && clock != THREAD_TIME {
                return wasi::clock_time_get(&mut state.wasi, &mut memory, clock, precision, out);
            }
            let used = u64::try_from(state.processor_time().as_nanos()).unwrap_or(u64::MAX);
            memory.write(GuestPtr::<u64>::new(out.cast_unsigned()), used)?;
            Ok(0)
        },
    )?;
    Ok(())
}

/// The library sleeps where it stands when there is nothing but a span to wait for; then nothing could
/// end the program.
fn add_poll_calls(linker: &mut Linker<StoreState>) -> Result<()> {
    linker.func_wrap_async(
        PREVIEW1_MODULE,
        "poll_oneoff",
        |mut caller: Caller<'_, StoreState>, (list, events, count, out): (i32, i32, i32, i32)| {
            Box::new(async move {
                wait_for_own_thread(&caller).await;
                let (mut memory, state) = split_memory_and_state(&mut caller)?;
                let span = if count == 1 { read_sleep_time(&memory, list)? } else { None };
                let Some((span, userdata)) = span else {
                    let ctx = &mut state.wasi;
                    return wasi::poll_oneoff(ctx, &mut memory, list, events, count, out).await;
                };
                tokio::time::sleep(span).await;
                let event = types::Event {
                    userdata,
                    error: types::Errno::Success,
                    type_: types::Eventtype::Clock,
                    fd_readwrite: types::EventFdReadwrite {
                        flags: types::Eventrwflags::empty(),
                        nbytes: 0,
                    },
                };
                memory.write(GuestPtr::new(events.cast_unsigned()), event)?;
                memory.write(GuestPtr::<u32>::new(out.cast_unsigned()), 1)?;
                Ok(0)
            })
        },
    )?;
    Ok(())
}

/// The span that a subscription waits for, if it waits for one, with what it is known by.
fn read_sleep_time(memory: &GuestMemory<'_>, at: i32) -> Result<Option<(Duration, u64)>> {
    let wanted = memory.read(GuestPtr::<types::Subscription>::new(at.cast_unsigned()))?;
    Ok(match wanted.u {
        types::SubscriptionU::Clock(clock)
            if !clock.flags.contains(types::Subclockflags::SUBSCRIPTION_CLOCK_ABSTIME) =>
        {
            Some((Duration::from_nanos(clock.timeout), wanted.userdata))
        }
        types::SubscriptionU::Clock(_)
        | types::SubscriptionU::FdRead(_)
        | types::SubscriptionU::FdWrite(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use stockade_core::Limits;
    use wasmtime::{Func, Store, Val, ValType};

    use super::*;
    use crate::wasm::account::ResourceAccount;
    use crate::wasm::engine::{EngineMode, Machines, Supply, WasmMachine};
    use crate::wasm::executor::ProgramThread;
    use crate::wasm::preopens::Preopens;
    use crate::wasm::run::{self, ProgramJob};

    /// Functions that never take long: each looks at nothing but the program's own state, fails at once
    /// for lack of an open file, or gives up its turn by itself where a stream is not ready.
    const SHORT_FUNCTIONS: [&str; 29] = [
        "args_get",
        "args_sizes_get",
        "clock_res_get",
        "clock_time_get",
        "environ_get",
        "environ_sizes_get",
        "fd_advise",
        "fd_allocate",
        "fd_close",
        "fd_fdstat_get",
        "fd_fdstat_set_flags",
        "fd_fdstat_set_rights",
        "fd_pread",
        "fd_prestat_dir_name",
        "fd_prestat_get",
        "fd_pwrite",
        "fd_read",
        "fd_renumber",
        "fd_seek",
        "fd_tell",
        "fd_write",
        "proc_exit",
        "proc_raise",
        // Of few bytes.
        "random_get",
        "sched_yield",
        "sock_accept",
        "sock_recv",
        "sock_send",
        "sock_shutdown",
    ];

    fn store_on_thread(machine: &WasmMachine, thread: Arc<ProgramThread>) -> Store<StoreState> {
        let limits = Limits::defaults();
        let job = ProgramJob {
            argv: Vec::new(),
            env: Vec::new(),
            preopens: Preopens::default(),
            limits,
            account: Arc::new(ResourceAccount::new(&limits)),
            thread,
            streams: Box::new(|_| ()),
        };
        run::build_store(machine, job)
    }

    /// Whether a call, made on its caller's thread, waits for another one.
    fn is_pending_call(store: &mut Store<StoreState>, function: Func, given: &[Val]) -> bool {
        let mut results = vec![Val::I32(0); function.ty(&*store).results().len()];
        let mut context = Context::from_waker(Waker::noop());
        let call = pin!(function.call_async(&mut *store, given, &mut results));
        matches!(call.poll(&mut context), Poll::Pending)
    }

    #[test]
    fn what_may_take_long_is_not_done_on_the_callers_thread() {
        let machine = Machines::new(Supply::Single).get_or_create(EngineMode::Plain).unwrap();
        let mut all = store_on_thread(&machine, ProgramThread::callers());
        let functions: Vec<_> = machine
            .core
            .iter(&mut all)
            .filter_map(|(_, name, item)| Some((name.to_owned(), item.into_func()?)))
            .collect();
        assert!(functions.len() > SHORT_FUNCTIONS.len());
        for (name, function) in functions {
            let zero = |kind: ValType| if kind.is_i64() { Val::I64(0) } else { Val::I32(0) };
            let given: Vec<_> = function.ty(&all).params().map(zero).collect();
            let short = SHORT_FUNCTIONS.contains(&name.as_str());
            assert_eq!(is_pending_call(&mut all, function, &given), !short, "{name}");
        }
    }

    #[test]
    fn many_random_bytes_are_not_made_on_the_callers_thread() {
        let machine = Machines::new(Supply::Single).get_or_create(EngineMode::Plain).unwrap();
        for (thread, leaving) in [(ProgramThread::callers(), true), (ProgramThread::own(), false)] {
            let mut store = store_on_thread(&machine, thread);
            let found = machine.core.get(&mut store, PREVIEW1_MODULE, "random_get").unwrap();
            let given = [Val::I32(0), Val::I32(-1)];
            assert_eq!(is_pending_call(&mut store, found.into_func().unwrap(), &given), leaving);
        }
    }
}
