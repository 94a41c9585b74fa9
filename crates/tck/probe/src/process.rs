//! Verbs about processes: ending, hiding, outliving, finding others.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::json;

use crate::{Args, VerbOutcome, report_attempt, signals};

/// Interval at which a detached process shows that it lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(10);

/// This very program with other arguments, connected to nothing.
pub fn build_self_command<const N: usize>(args: [&str; N]) -> io::Result<Command> {
    let fallback = || std::env::args().next().map(Into::into);
    let program = std::env::current_exe().ok().or_else(fallback).ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

fn print_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{text}")?;
    out.flush()
}

/// `sleep MS`: says `ready`, then does nothing.
pub fn sleep_after_ready(args: &Args) -> io::Result<VerbOutcome> {
    print_line("ready")?;
    thread::sleep(args.span(0)?);
    Ok(VerbOutcome::Code(0))
}

/// `signal-self N`: ends by that signal.
pub fn signal_self(args: &Args) -> io::Result<VerbOutcome> {
    let number = i32::try_from(args.number(0)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    signals::restore_default(number);
    let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
    kill_process(getpid(), signal)?;
    thread::sleep(Duration::from_secs(10));
    Ok(VerbOutcome::Code(0))
}

/// `ignore-signals-then-sleep MS`: says `ready` when nothing polite can end it any more.
pub fn ignore_signals_then_sleep(args: &Args) -> io::Result<VerbOutcome> {
    signals::ignore_all();
    sleep_after_ready(args)
}

/// `close-fds-then-sleep MS`: gives its output up, so that end of file on it does not mark its exit.
pub fn close_fds_then_sleep(args: &Args) -> io::Result<VerbOutcome> {
    print_line("ready")?;
    let null = std::fs::File::open(".")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    thread::sleep(args.span(0)?);
    Ok(VerbOutcome::Code(0))
}

/// `spawn-detached MARKER MS [STAY-MS]`: leaves a process in a session of its own, orphaned, ignoring
/// every signal, that writes to MARKER for MS; goes on once it does, and stays for STAY-MS.
pub fn spawn_detached(args: &Args) -> io::Result<VerbOutcome> {
    let mut middle = build_self_command(["detach", args.text(0), args.text(1)])?.spawn()?;
    if !middle.wait()?.success() {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let until = Instant::now() + Duration::from_secs(20);
    while std::fs::metadata(args.text(0)).map_or(0, |found| found.len()) == 0 {
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    print_line(r#"{"ok":true}"#)?;
    thread::sleep(Duration::from_millis(args.number_or(2, 0)?));
    Ok(VerbOutcome::Code(0))
}

/// `detach MARKER MS`: the process in between, whose end orphans the one that stays.
pub fn spawn_orphan(args: &Args) -> io::Result<VerbOutcome> {
    signals::begin_session()?;
    signals::ignore_all();
    let orphan: Child = build_self_command(["heartbeat", args.text(0), args.text(1)])?.spawn()?;
    drop(orphan);
    Ok(VerbOutcome::Code(0))
}

/// `heartbeat MARKER MS`: adds a byte to MARKER every ten milliseconds.
pub fn write_heartbeats(args: &Args) -> io::Result<VerbOutcome> {
    signals::ignore_all();
    let until = Instant::now() + args.span(1)?;
    let mut marker = OpenOptions::new().create(true).append(true).open(args.text(0))?;
    while Instant::now() < until {
        marker.write_all(b".")?;
        thread::sleep(HEARTBEAT_INTERVAL);
    }
    Ok(VerbOutcome::Code(0))
}

/// `tick MS`: prints a dot every ten milliseconds.
pub fn print_ticks(args: &Args) -> io::Result<VerbOutcome> {
    let until = Instant::now() + args.span(0)?;
    while Instant::now() < until {
        io::stdout().write_all(b".")?;
        io::stdout().flush()?;
        thread::sleep(HEARTBEAT_INTERVAL);
    }
    Ok(VerbOutcome::Code(0))
}

/// `kill PID SIGNAL`.
pub fn kill_pid(args: &Args) -> io::Result<VerbOutcome> {
    let pid = i32::try_from(args.number(0)?).ok().and_then(Pid::from_raw);
    let signal = i32::try_from(args.number(1)?).ok().and_then(Signal::from_named_raw);
    let (pid, signal) = pid.zip(signal).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(report_attempt(kill_process(pid, signal).map(|()| json!({})).map_err(Into::into)))
}

/// `find-process TEXT`: how many other processes have TEXT in their arguments or environment.
pub fn find_process(args: &Args) -> io::Result<VerbOutcome> {
    let wanted = args.text(0).as_bytes();
    let holds = |path: String| {
        std::fs::read(path).is_ok_and(|held| held.windows(wanted.len()).any(|part| part == wanted))
    };
    // As `/proc` numbers it, which may be that of a namespace further out.
    let named = std::fs::read_link("/proc/self").ok().and_then(|own| own.to_str()?.parse().ok());
    let me = named.unwrap_or_else(|| getpid().as_raw_nonzero().get());
    let found = list_pids().into_iter().filter(|pid| {
        *pid != me
            && (holds(format!("/proc/{pid}/cmdline")) || holds(format!("/proc/{pid}/environ")))
    });
    Ok(report_attempt(Ok(json!({ "found": found.count() }))))
}

/// The processes that can be seen.
pub fn list_pids() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
