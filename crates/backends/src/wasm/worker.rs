//! The worker: a process inside native walls that compiles or runs one program. It holds no key and
//! trusts no file: it runs code only if its digest is the one it was told.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode as Access, OFlags, ResolveFlags, openat};
use sha2::{Digest as _, Sha256};
use stockade_core::{Bytes, Exit, ExitStatus, Limits, Span, StartFailure};
use stockade_fs::open_beneath;
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::cli::OutputFile;

use super::account::ResourceAccount;
use super::check::{self, MAX_PROGRAM_BYTES, ProgramKind, UnfitProgram};
use super::code::Trusted;
use super::disk_quota::DiskQuota;
use super::engine::{Machines, Supply};
use super::executor::ProgramThread;
use super::preopens::{Preopen, Preopens};
use super::program;
use super::report::{WORKER_DIR, WorkerAnswer, WorkerMode, WorkerOrder};
use super::run::{self, ProgramJob};
use super::{cache, disk_quota, find};

/// The worker's own exit codes; a program's is in its answer.
const EXIT_DONE: i32 = 0;
const EXIT_MISUSED: i32 = 2;
pub(super) const EXIT_MALFORMED: i32 = 3;
pub(super) const EXIT_TOO_MUCH: i32 = 4;

/// Does what the arguments say: `compile MODE`, or `run`, which reads its order from its input. Answers
/// the code to exit with.
pub fn worker(mut arguments: impl Iterator<Item = String>) -> i32 {
    match arguments.next().as_deref() {
        Some("compile") => arguments.next().map_or(EXIT_MISUSED, |way| compile_stdin(&way)),
        Some("run") => WorkerOrder::read_from(std::io::stdin()).map_or(EXIT_MISUSED, run_order),
        Some(_) | None => EXIT_MISUSED,
    }
}

/// A module on standard input, its code on standard output: one byte for its kind, then the code.
fn compile_stdin(way: &str) -> i32 {
    let Ok(way) = serde_json::from_value::<WorkerMode>(way.into()) else { return EXIT_MISUSED };
    let mut given = Vec::new();
    if std::io::stdin().take(MAX_PROGRAM_BYTES + 1).read_to_end(&mut given).is_err() {
        return EXIT_MISUSED;
    }
    let compiled = check::to_binary(given.into()).and_then(|binary| {
        let kind = check::validate_binary(&binary)?;
        let machine = Machines::new(Supply::Single).get_or_create(way.into());
        let machine =
            machine.ok_or_else(|| UnfitProgram::TooMuch("cannot be compiled here".into()))?;
        program::compile_only(&machine, kind, &binary).map(|code| (kind, code))
    });
    let (code, said) = match compiled {
        Ok((kind, code)) => (EXIT_DONE, [vec![tag_of_kind(kind)], code].concat()),
        Err(UnfitProgram::Malformed(why)) => (EXIT_MALFORMED, why.into_bytes()),
        Err(UnfitProgram::TooMuch(why)) => (EXIT_TOO_MUCH, why.into_bytes()),
    };
    let mut out = std::io::stdout();
    if out.write_all(&said).and_then(|()| out.flush()).is_err() { EXIT_MISUSED } else { code }
}

/// Tag byte before the code: which kind of program it is.
const CORE_TAG: u8 = b'm';
const COMPONENT_TAG: u8 = b'c';

fn tag_of_kind(kind: ProgramKind) -> u8 {
    match kind {
        ProgramKind::Core => CORE_TAG,
        ProgramKind::Component => COMPONENT_TAG,
    }
}

/// What a compiler's answer begins with.
pub(super) fn kind_of_tag(tag: u8) -> Option<ProgramKind> {
    match tag {
        CORE_TAG => Some(ProgramKind::Core),
        COMPONENT_TAG => Some(ProgramKind::Component),
        _ => None,
    }
}

fn run_order(order: WorkerOrder) -> i32 {
    let limits = Limits {
        memory: order.memory.map(Bytes),
        open_files: order.open_files,
        fuel: order.fuel,
        cpu_time: order.cpu_time.map(Span::millis),
        ..Limits::default()
    };
    let path = answers_dir().join(&order.answer);
    let exit = execute_order(order, limits)
        .unwrap_or_else(|failure| ExitStatus::StartFailed(failure).into());
    let answer = WorkerAnswer::of(&exit);
    let written = serde_json::to_vec(&answer)
        .map_err(std::io::Error::from)
        .and_then(|text| std::fs::write(path, text));
    if written.is_ok() { EXIT_DONE } else { EXIT_MISUSED }
}

fn answers_dir() -> PathBuf {
    Path::new(WORKER_DIR).join("answers")
}

fn execute_order(mut order: WorkerOrder, limits: Limits) -> Result<Exit, StartFailure> {
    let lacking = |what: &str| StartFailure::NoResources(what.to_owned());
    let machines = Machines::new(Supply::Single);
    let machine =
        machines.get_or_create(order.mode.into()).ok_or_else(|| lacking("no virtual machine"))?;
    let (kind, code) = read_order_code(&order)?;
    let name = order.argv.first().cloned().unwrap_or_default();
    let program = program::load_compiled(&machine, kind, &code)
        .map_err(|unfit| find::to_start_failure(&name, &unfit))?;
    let account = match order.disk {
        true => DiskQuota::open(&answers_dir().join(disk_quota::QUOTA_FILE_NAME))
            .map(|quota| ResourceAccount::with_quota(&limits, quota))
            .map_err(|error| lacking(&error.to_string()))?,
        false => ResourceAccount::new(&limits),
    };
    let job = ProgramJob {
        preopens: open_places(&order).map_err(|error| lacking(&error.to_string()))?,
        argv: std::mem::take(&mut order.argv),
        env: std::mem::take(&mut order.env),
        limits,
        account: Arc::new(account),
        thread: ProgramThread::own(),
        streams: Box::new(inherit_stdio),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| lacking(&error.to_string()))?;
    Ok(runtime.block_on(run::run_program(
        &machine,
        &program,
        job,
        std::future::pending::<ExitStatus>(),
    )))
}

/// The code that was ordered. Read as a whole before it is compared, so that no later change counts.
fn read_order_code(order: &WorkerOrder) -> Result<(ProgramKind, Trusted), StartFailure> {
    let path = Path::new(WORKER_DIR).join("code").join(&order.code);
    let whole = cache::read_bounded_file(&path, cache::MAX_ENTRY_BYTES)
        .map_err(|error| StartFailure::NoResources(error.to_string()))?;
    let same = cache::encode_hex(&Sha256::digest(&whole)) == order.code;
    match whole.split_first() {
        Some((tag, code)) if same => {
            let kind =
                kind_of_tag(*tag).ok_or_else(|| StartFailure::NoResources("of no kind".into()))?;
            Ok((kind, Trusted::vouched(code.to_vec())))
        }
        Some(_) | None => {
            Err(StartFailure::NoResources("its code is not what was compiled".into()))
        }
    }
}

fn open_places(order: &WorkerOrder) -> wasmtime::Result<Preopens> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &str| openat(CWD, path, flags, Access::empty());
    let mut preopens = Vec::new();
    for (at, path, read_only) in &order.places {
        preopens.push(Preopen {
            dir: Arc::new(open(path)?),
            at: at.clone(),
            read_only: *read_only,
        });
    }
    let (number, rest) = &order.start;
    let place = preopens
        .get(*number)
        .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidInput))?;
    let within = ResolveFlags::BENEATH;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = Arc::new(open_beneath(&place.dir, rest, flags, Access::empty(), within)?);
    let read_only = place.read_only;
    preopens.push(Preopen { dir, at: ".".into(), read_only });
    Preopens::of(&preopens)
}

/// The worker's own streams, which the walls count and bound.
fn inherit_stdio(builder: &mut WasiCtxBuilder) {
    builder.stdin(std::io::stdin());
    let own = |stream: std::io::Result<OwnedFd>| stream.map(|fd| OutputFile::new(File::from(fd)));
    if let Ok(out) = own(std::io::stdout().as_fd().try_clone_to_owned()) {
        builder.stdout(out);
    }
    if let Ok(err) = own(std::io::stderr().as_fd().try_clone_to_owned()) {
        builder.stderr(err);
    }
}
