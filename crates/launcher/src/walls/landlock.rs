//! The second wall for files: even where a mount or a permission should let a write through, only
//! the writable places of the plan accept one. Also ties signals, abstract sockets and TCP down.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, fstat};
use rustix::io::Errno;

use crate::error::{At, Failure, Wall};
use crate::open::name;
use crate::plan::Network;
use crate::sys::{self, RulesetAttr};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

const READ: u64 = EXECUTE | READ_FILE | READ_DIR;
const ON_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// Device nodes are never made, wherever one may write.
const NEVER: u64 = MAKE_CHAR | MAKE_BLOCK;

const BOTH_TCP: u64 = 0b11;
const BOTH_SCOPES: u64 = 0b11;

/// What this kernel's version handles of files.
fn file_rights(abi: u32) -> u64 {
    let highest = match abi {
        0 => return 0,
        1 => 12,
        2 => 13,
        3 | 4 => 14,
        _ => 15,
    };
    (1 << (highest + 1)) - 1
}

/// The rule set's struct grew with the versions; older kernels take the shorter one.
fn attribute_size(abi: u32) -> usize {
    match abi {
        0..=3 => 8,
        4 | 5 => 16,
        _ => 24,
    }
}

/// Puts the process under its rules. Comes after the last mount, which Landlock would refuse.
pub(crate) fn restrict(abi: u32, network: Network, writable: &[PathBuf]) -> Result<(), Failure> {
    let wall = Wall::Landlock;
    let handled = file_rights(abi);
    let tcp = match network {
        Network::None => BOTH_TCP,
        Network::Loopback => 0,
    };
    let attr =
        RulesetAttr { handled_access_fs: handled, handled_access_net: tcp, scoped: BOTH_SCOPES };
    let ruleset = sys::landlock_ruleset(&attr, attribute_size(abi)).at(wall, "a rule set")?;
    let allow = |path: &str, access: u64| -> Result<(), Errno> {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let directory = fstat(&place)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let access = if directory { access } else { access & ON_FILES };
        sys::landlock_allow(ruleset.as_fd(), place.as_fd(), access & handled)
    };
    allow("/", READ).at(wall, "/")?;
    allow("/dev", READ | WRITE_FILE | TRUNCATE | IOCTL_DEV).at(wall, "/dev")?;
    for path in writable {
        allow(&name(path), handled & !NEVER).at(wall, &name(path))?;
    }
    sys::landlock_restrict(ruleset.as_fd()).at(wall, "the restriction")
}

/// Asks for something that only Landlock refuses: an empty node of the kind that overlays use to mark
/// deletions, which needs no capability, in a place that is writable.
pub(crate) fn prove() -> Result<String, Failure> {
    const PROBE: &str = "/tmp/.stockade-probe";
    let kind = rustix::fs::FileType::CharacterDevice;
    let made = rustix::fs::mknodat(CWD, PROBE, kind, Mode::from_raw_mode(0o600), 0);
    match made {
        Err(Errno::ACCESS) => Ok("a device node in /tmp is refused".to_owned()),
        Err(errno) => Err(Failure::new(Wall::Landlock, errno, "the probe was refused otherwise")),
        Ok(()) => Err(Failure::without_errno(Wall::Landlock, "a device node could be made")),
    }
}
