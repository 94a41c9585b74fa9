//! Becomes somebody else than the machine that this one is a copy of: before anything of a guest runs here.
#![allow(unsafe_code, reason = "one request to the kernel's random numbers has no safe form")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::system::sethostname;
use rustix::thread::LinkNameSpaceType;
use rustix::time::{ClockId, Timespec, clock_settime};
use stockade_backends::across::guest::Identity;
use stockade_backends::native::Own;

/// Where the files lie that sandboxes see in place of those that all copies have in common.
const OWN: &str = "/run/own";
/// Takes what was added into use at once: RNDRESEEDCRNG.
const RESEED: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(b'R', 7);

/// Takes it on.
pub fn take(identity: &Identity) -> io::Result<()> {
    reseed(&unhex(&identity.seed)?)?;
    sethostname(identity.hostname.as_bytes())?;
    let now = Timespec {
        tv_sec: i64::try_from(identity.clock / 1_000_000_000).map_err(io::Error::other)?,
        tv_nsec: (identity.clock % 1_000_000_000) as i64,
    };
    clock_settime(ClockId::Realtime, now)?;
    fs::create_dir_all(OWN)?;
    let own = Path::new(OWN);
    fs::write(own.join("machine-id"), format!("{}\n", identity.machine_id))?;
    fs::write(own.join("boot-id"), format!("{}\n", dashed(&identity.boot_id)))
}

/// Has the sandbox of this process be called otherwise.
pub fn rename(process: i32, hostname: &str) -> io::Result<()> {
    let names = File::open(format!("/proc/{process}/ns/uts"))?;
    let rename = || {
        // This thread is there until it ends.
        let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
        rustix::thread::move_into_link_name_space(names.as_fd(), kind)?;
        Ok(sethostname(hostname.as_bytes())?)
    };
    let ended = std::thread::scope(|scope| scope.spawn(rename).join());
    ended.unwrap_or_else(|_| Err(io::Error::other("a thread ended")))
}

/// What sandboxes are told of it.
pub fn own(identity: &Identity) -> Own {
    let own = Path::new(OWN);
    Own {
        hostname: identity.hostname.clone(),
        machine_id: own.join("machine-id"),
        boot_id: own.join("boot-id"),
    }
}

fn reseed(seed: &[u8]) -> io::Result<()> {
    let mut pool = File::options().write(true).open("/dev/urandom")?;
    pool.write_all(seed)?;
    // SAFETY: this request takes no argument and returns nothing.
    unsafe { rustix::ioctl::ioctl(&pool, rustix::ioctl::NoArg::<RESEED>::new()) }?;
    Ok(())
}

fn unhex(text: &str) -> io::Result<Vec<u8>> {
    let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// As the kernel writes them.
fn dashed(id: &str) -> String {
    let part = |from: usize, to: usize| id.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
