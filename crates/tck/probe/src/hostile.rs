//! Verbs of programs that mean harm: each tries one way of using up, outliving or disturbing what is
//! around it. All are bounded in what they could do to a host without walls.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, getppid, kill_process};
use serde_json::json;

use crate::limits::stay_if_told;
use crate::process::build_self_command;
use crate::{Args, VerbOutcome, number_of, raw, report_attempt, report_success, signals};

/// Lifetime of a bomb: it ends by itself, so that a host without isolation survives it.
const BOMB_LIFETIME: Duration = Duration::from_secs(120);
/// Processes a bomb leaves behind for good, at most.
const MAX_BOMB_PROCESSES: u64 = 20_000;
/// Size of one write to a memfd or a file.
const WRITE_CHUNK_BYTES: usize = 1 << 20;

/// `fork-bomb`: every process makes another one, for ever.
pub fn fork_bomb() -> io::Result<VerbOutcome> {
    let until = Instant::now() + BOMB_LIFETIME;
    let mut made = 0;
    while Instant::now() < until {
        match raw::fork_process() {
            Ok(Some(_)) if made < MAX_BOMB_PROCESSES => made += 1,
            Ok(None) => made = 0,
            Ok(Some(_)) | Err(_) => thread::yield_now(),
        }
    }
    Ok(VerbOutcome::Code(0))
}

/// `zombies MS`: children that exit and are not reaped, until there is no room; then sleeps.
pub fn spawn_zombies(args: &Args) -> io::Result<VerbOutcome> {
    let mut count = 0;
    let errno = loop {
        match raw::fork_process() {
            Ok(Some(_)) if count < MAX_BOMB_PROCESSES => count += 1,
            Ok(Some(_)) => break 0,
            Ok(None) => raw::exit_process(),
            Err(error) => break number_of(&error),
        }
    };
    print_facts(&json!({ "ok": true, "count": count, "errno": errno }))?;
    thread::sleep(args.span(0)?);
    Ok(VerbOutcome::Code(0))
}

fn print_facts(facts: &serde_json::Value) -> io::Result<()> {
    writeln!(io::stdout(), "{facts}")?;
    io::stdout().flush()
}

/// `allocate-many COUNT BYTES [STAY]`: children that hold BYTES each, all at once; how many got them, and how
/// many were ended before. They are kept for so many milliseconds.
pub fn allocate_many(args: &Args) -> io::Result<VerbOutcome> {
    let mut children: Vec<Child> = Vec::new();
    let (mut ready, mut lost) = (0, 0);
    for _ in 0..args.number(0)? {
        let mut child =
            match build_self_command(["hold", args.text(1)])?.stdout(Stdio::piped()).spawn() {
                Ok(child) => child,
                Err(error) => {
                    lost += 1;
                    if number_of(&error) == libc::EAGAIN {
                        break;
                    }
                    continue;
                }
            };
        let mut said = [0];
        let heard = child.stdout.as_mut().map_or(Ok(0), |out| out.read(&mut said))?;
        ready += u64::from(heard > 0);
        lost += u64::from(heard == 0);
        children.push(child);
    }
    stay_if_told(args, 2)?;
    for mut child in children {
        // A child that had its memory and has exited was killed so that another could have it.
        lost += u64::from(child.try_wait()?.is_some());
        child.kill()?;
        child.wait()?;
    }
    Ok(report_success(json!({ "ready": ready, "lost": lost })))
}

/// `hold BYTES`: touches that much memory, says a byte, and keeps it.
pub fn hold_memory(args: &Args) -> io::Result<VerbOutcome> {
    let size = usize::try_from(args.number(0)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    let held = std::hint::black_box(vec![1u8; size]);
    io::stdout().write_all(b".")?;
    io::stdout().flush()?;
    thread::sleep(BOMB_LIFETIME);
    Ok(VerbOutcome::Code(u8::from(held.is_empty())))
}

/// `fill-memory-files BYTES`: memory that no process maps, in files without a name.
pub fn fill_memory_files(args: &Args) -> io::Result<VerbOutcome> {
    let wanted = args.number(0)?;
    let piece = vec![0x5a; WRITE_CHUNK_BYTES];
    let mut held = Vec::new();
    let mut done = 0;
    while done < wanted {
        let mut file = File::from(memfd_create("filler", MemfdFlags::CLOEXEC)?);
        for _ in 0..32 {
            if let Err(error) = file.write_all(&piece) {
                return Ok(short_write_facts(done, &error));
            }
            done += WRITE_CHUNK_BYTES as u64;
        }
        held.push(file);
    }
    Ok(report_success(json!({ "bytes": done })))
}

fn short_write_facts(bytes: u64, error: &io::Error) -> VerbOutcome {
    VerbOutcome::Facts(json!({ "ok": false, "bytes": bytes, "errno": number_of(error) }))
}

/// `fill-many DIRECTORY BYTES`: many files, so that no limit on one of them helps.
pub fn fill_many(args: &Args) -> io::Result<VerbOutcome> {
    let (directory, wanted) = (Path::new(args.text(0)), args.number(1)?);
    let piece = vec![0x5a; WRITE_CHUNK_BYTES];
    let (mut done, mut number) = (0, 0);
    while done < wanted {
        let written = File::create(directory.join(format!("filler-{number}")))
            .and_then(|mut file| (0..8).try_for_each(|_| file.write_all(&piece)));
        if let Err(error) = written {
            return Ok(short_write_facts(done, &error));
        }
        done += 8 * WRITE_CHUNK_BYTES as u64;
        number += 1;
    }
    Ok(report_success(json!({ "bytes": done })))
}

/// `deep-tree DEPTH BYTES`: directories in directories, deeper than a path can name, and that much in
/// the deepest one.
pub fn deep_tree(args: &Args) -> io::Result<VerbOutcome> {
    let name = "d".repeat(64);
    for depth in 0..args.number(0)? {
        if let Err(error) = fs::create_dir(&name).and_then(|()| std::env::set_current_dir(&name)) {
            return Ok(VerbOutcome::Facts(
                json!({ "ok": false, "depth": depth, "errno": number_of(&error) }),
            ));
        }
    }
    fill_many(&Args(vec![".".into(), args.text(1).into()]))
}

/// `many-links DIRECTORY COUNT`: symbolic links to the root of everything.
pub fn many_links(args: &Args) -> io::Result<VerbOutcome> {
    let directory = Path::new(args.text(0));
    for number in 0..args.number(1)? {
        if let Err(error) = symlink("/", directory.join(format!("link-{number}"))) {
            return Ok(VerbOutcome::Facts(
                json!({ "ok": false, "count": number, "errno": number_of(&error) }),
            ));
        }
    }
    Ok(report_success(json!({ "count": args.number(1)? })))
}

/// `kill-everybody SIGNAL MS`: signals every process in reach, then sleeps if it still can. Only where it
/// cannot reach the host: elsewhere it does nothing.
pub fn kill_everybody(args: &Args) -> io::Result<VerbOutcome> {
    let number = i32::try_from(args.number(0)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    if crate::process::list_pids().len() > 64 {
        return Ok(VerbOutcome::Facts(json!({ "ok": false, "errno": libc::EPERM })));
    }
    raw::signal_everybody(number)?;
    thread::sleep(args.span(1)?);
    Ok(VerbOutcome::Code(0))
}

/// `signal-parent SIGNAL MS`: disturbs who started it, and then sleeps.
pub fn signal_parent(args: &Args) -> io::Result<VerbOutcome> {
    let number = i32::try_from(args.number(0)?).ok().and_then(Signal::from_named_raw);
    let (parent, signal) = getppid().zip(number).ok_or(io::ErrorKind::InvalidInput)?;
    let sent = kill_process(parent, signal);
    print_facts(&json!({ "ok": sent.is_ok() }))?;
    thread::sleep(args.span(1)?);
    Ok(VerbOutcome::Code(0))
}

/// `trace-parent`: tries to take control of who started it.
pub fn trace_parent() -> io::Result<VerbOutcome> {
    let parent = getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    Ok(report_attempt(raw::attach_tracer(parent).map(|()| json!({}))))
}

/// `hold-output MS CODE [flood]`: ends with CODE, while a process in a session of its own keeps the
/// output open for MS, silent or writing all the time.
pub fn hold_output(args: &Args) -> io::Result<VerbOutcome> {
    let verb = if args.text(2) == "flood" { "holder-flood" } else { "holder" };
    let holders = if args.text(2) == "flood" { 4 } else { 1 };
    for _ in 0..holders {
        drop(build_self_command([verb, args.text(0)])?.stdout(Stdio::inherit()).spawn()?);
    }
    Ok(VerbOutcome::Code(u8::try_from(args.number(1)?).map_err(|_| io::ErrorKind::InvalidInput)?))
}

/// `holder MS`, `holder-flood MS`: the process that stays.
pub fn keep_output_open(args: &Args, flood: bool) -> io::Result<VerbOutcome> {
    signals::ignore_all();
    signals::begin_session()?;
    let until = Instant::now() + args.span(0)?;
    let piece = vec![b'x'; 64 << 10];
    while Instant::now() < until {
        match flood {
            true => io::stdout().write_all(&piece)?,
            false => thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(VerbOutcome::Code(0))
}

/// `write-after-close`: what a write says once the output was closed, told on standard error.
pub fn write_after_close() -> io::Result<VerbOutcome> {
    io::stdout().flush()?;
    raw::close_descriptor(1);
    let written = rustix::io::write(io::stdout(), b"too late");
    let errno = written.err().map(|errno| errno.raw_os_error());
    writeln!(io::stderr(), "{}", json!({ "ok": errno.is_none(), "errno": errno }))?;
    Ok(VerbOutcome::Code(0))
}

/// `flood-fast STREAM BYTES`: as much as possible, as fast as possible.
pub fn flood_fast(args: &Args) -> io::Result<VerbOutcome> {
    let piece = vec![b'f'; 256 << 10];
    let mut left = args.number(1)?;
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    let stream: &mut dyn Write = if args.text(0) == "stderr" { &mut err } else { &mut out };
    while left > 0 {
        let size = left.min(piece.len() as u64);
        stream.write_all(&piece[..size as usize])?;
        left -= size;
    }
    stream.flush()?;
    Ok(VerbOutcome::Code(0))
}
