//! Gives a copy of a machine an identity of its own: before anything of a guest runs here.
#![allow(unsafe_code, reason = "one request to the kernel's random numbers has no safe form")]

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use rustix::system::sethostname;
use rustix::thread::LinkNameSpaceType;
use rustix::time::{ClockId, Timespec, clock_settime};
use stockade_backends::native::Own;
use stockade_backends::peer::guest::Identity;

/// The directory of the identity files that sandboxes see in place of those that all copies share.
const IDENTITY_DIR: &str = "/run/own";
const MACHINE_ID_FILE: &str = "machine-id";
const BOOT_ID_FILE: &str = "boot-id";
/// The ioctl RNDRESEEDCRNG: reseeds the random generator from the pool at once.
const RESEED_IOCTL: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(b'R', 7);

/// The files that a new identity is written to, opened before the machine is copied: in software, every way
/// through the kernel that a copy goes for the first time costs it milliseconds.
pub struct Papers {
    pool: File,
    machine_id: File,
    boot_id: File,
    /// The names of this process and of the sandbox.
    names: (File, Option<File>),
}

impl Papers {
    pub fn prepare() -> io::Result<Self> {
        fs::create_dir_all(IDENTITY_DIR)?;
        let own = |name: &str| {
            let file = File::create(Path::new(IDENTITY_DIR).join(name))?;
            // Every guest reads them.
            file.set_permissions(Permissions::from_mode(0o644))?;
            Ok::<_, io::Error>(file)
        };
        Ok(Self {
            pool: File::options().write(true).open("/dev/urandom")?,
            machine_id: own(MACHINE_ID_FILE)?,
            boot_id: own(BOOT_ID_FILE)?,
            names: (File::open("/proc/self/ns/uts")?, None),
        })
    }

    /// There is a sandbox, whose first process this is.
    pub fn open_sandbox_uts(&mut self, first: i32) -> io::Result<()> {
        self.names.1 = Some(File::open(format!("/proc/{first}/ns/uts"))?);
        Ok(())
    }

    /// Takes it on, and the sandbox with it if there is one.
    pub fn apply_identity(&self, identity: &Identity) -> io::Result<()> {
        self.reseed_random(&decode_hex(&identity.seed)?)?;
        sethostname(identity.hostname.as_bytes())?;
        let now = Timespec {
            tv_sec: i64::try_from(identity.clock / 1_000_000_000).map_err(io::Error::other)?,
            tv_nsec: (identity.clock % 1_000_000_000) as i64,
        };
        clock_settime(ClockId::Realtime, now)?;
        // Always of one length: nothing of what was there before shows.
        self.machine_id.write_all_at(format!("{:32.32}\n", identity.machine_id).as_bytes(), 0)?;
        self.boot_id
            .write_all_at(format!("{:36.36}\n", format_uuid(&identity.boot_id)).as_bytes(), 0)?;
        self.set_sandbox_hostname(&identity.hostname)
    }

    /// Has the sandbox be called otherwise.
    fn set_sandbox_hostname(&self, hostname: &str) -> io::Result<()> {
        let (own, Some(sandbox)) = &self.names else { return Ok(()) };
        let enter = |names: &File| {
            let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
            rustix::thread::move_into_link_name_space(names.as_fd(), kind)
        };
        enter(sandbox)?;
        let renamed = sethostname(hostname.as_bytes());
        // Nothing else runs on this thread meanwhile, and nothing may if there is no way back.
        if enter(own).is_err() {
            std::process::abort();
        }
        Ok(renamed?)
    }

    fn reseed_random(&self, seed: &[u8]) -> io::Result<()> {
        (&self.pool).write_all(seed)?;
        // SAFETY: this request takes no argument and returns nothing.
        unsafe { rustix::ioctl::ioctl(&self.pool, rustix::ioctl::NoArg::<RESEED_IOCTL>::new()) }?;
        Ok(())
    }
}

/// What sandboxes are told of it.
pub fn sandbox_identity(identity: &Identity) -> Own {
    let own = Path::new(IDENTITY_DIR);
    Own {
        hostname: identity.hostname.clone(),
        machine_id: own.join(MACHINE_ID_FILE),
        boot_id: own.join(BOOT_ID_FILE),
    }
}

fn decode_hex(text: &str) -> io::Result<Vec<u8>> {
    let digit = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// As the kernel writes them.
fn format_uuid(id: &str) -> String {
    let part = |from: usize, to: usize| id.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
