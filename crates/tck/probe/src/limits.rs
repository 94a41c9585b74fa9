//! Verbs that use something up.

use std::fs::File;
use std::io;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::process::build_self_command;
use crate::{Args, VerbOutcome, number_of, report_attempt, report_success};

const PAGE_BYTES: usize = 4096;

/// `contexts`: tries to take one of the host's contexts for asynchronous I/O.
pub fn take_aio_context() -> io::Result<VerbOutcome> {
    Ok(report_attempt(crate::raw::io_context().map(|()| json!({}))))
}

/// `huge-pages`: tries to open a file in the host's huge pages, whether any are free or not.
pub fn open_huge_pages() -> io::Result<VerbOutcome> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::HUGETLB;
    let opened = rustix::fs::memfd_create("huge", flags);
    Ok(report_attempt(opened.map(|_| json!({})).map_err(io::Error::from)))
}

/// `burn MS`: uses that much processor time.
pub fn burn_cpu_time(args: &Args) -> io::Result<VerbOutcome> {
    let wanted = args.span(0)?;
    Ok(spin_while(|| used_cpu_time() < wanted))
}

/// `burn-for MS`: uses as much processor time as it gets for so long, and says how much that was.
pub fn burn_for(args: &Args) -> io::Result<VerbOutcome> {
    let until = Instant::now() + args.span(0)?;
    Ok(spin_while(|| Instant::now() < until))
}

fn spin_while(busy: impl Fn() -> bool) -> VerbOutcome {
    let mut mixed = 1u64;
    while busy() {
        for _ in 0..10_000 {
            mixed = std::hint::black_box(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
    }
    report_success(json!({ "ms": used_cpu_time().as_millis() as u64 }))
}

fn used_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// `burn-children COUNT MS`: lets each of so many children use that much, one after the other.
pub fn burn_children(args: &Args) -> io::Result<VerbOutcome> {
    for _ in 0..args.number(0)? {
        build_self_command(["burn", args.text(1)])?.spawn()?.wait()?;
    }
    Ok(report_success(json!({})))
}

/// `allocate BYTES [STAY]`: touches every page; says how far it got, after so many milliseconds.
pub fn allocate_memory(args: &Args) -> io::Result<VerbOutcome> {
    let wanted = usize::try_from(args.number(0)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut got = 0;
    while got < wanted {
        let mut piece = Vec::new();
        let size = (wanted - got).min(1 << 20);
        if piece.try_reserve_exact(size).is_err() {
            return Ok(VerbOutcome::Facts(
                json!({ "ok": false, "bytes": got, "errno": libc::ENOMEM }),
            ));
        }
        piece.resize(size, 1u8);
        for at in (0..size).step_by(PAGE_BYTES) {
            piece[at] = std::hint::black_box(at as u8);
        }
        held.push(piece);
        got += size;
    }
    stay_if_told(args, 1)?;
    Ok(report_success(json!({ "bytes": held.iter().map(Vec::len).sum::<usize>() })))
}

/// Keeps what it has, if an argument says for how long: for a limit that is only looked at now and then.
pub fn stay_if_told(args: &Args, at: usize) -> io::Result<()> {
    thread::sleep(Duration::from_millis(args.number_or(at, 0)?));
    Ok(())
}

/// `open-files N`: how many could be open at once.
pub fn open_files(args: &Args) -> io::Result<VerbOutcome> {
    let mut open = Vec::new();
    let mut errno = None;
    for _ in 0..args.number(0)? {
        match File::open(".") {
            Ok(file) => open.push(file),
            Err(error) => {
                errno = Some(number_of(&error));
                break;
            }
        }
    }
    Ok(VerbOutcome::Facts(json!({ "ok": errno.is_none(), "count": open.len(), "errno": errno })))
}

/// `fork-many N [MS]`: how many processes could live at once. All are gone before it ends, and if there is room
/// for all, after MS.
pub fn fork_many(args: &Args) -> io::Result<VerbOutcome> {
    let mut children: Vec<Child> = Vec::new();
    let mut errno = None;
    for _ in 0..args.number(0)? {
        match build_self_command(["sleep", "600000"])?.spawn() {
            Ok(child) => children.push(child),
            Err(error) => {
                errno = Some(number_of(&error));
                break;
            }
        }
    }
    let count = children.len();
    if errno.is_none() {
        std::thread::sleep(args.span(1).unwrap_or_default());
    }
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    Ok(VerbOutcome::Facts(json!({ "ok": errno.is_none(), "count": count, "errno": errno })))
}
