//! The second wall for files: even where a mount or a permission should let a write through, only
//! the writable places of the plan accept one. Also ties signals, abstract sockets and TCP down.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, fstat};
use rustix::io::Errno;

use crate::error::{At, Failure, Wall};
use crate::open::format_path;
use crate::plan::{LaunchPlan, PlanNetwork};
use crate::sys::{self, RulesetAttr};

const ACCESS_FS_EXECUTE: u64 = 1;
const ACCESS_FS_WRITE_FILE: u64 = 1 << 1;
const ACCESS_FS_READ_FILE: u64 = 1 << 2;
const ACCESS_FS_READ_DIR: u64 = 1 << 3;
const ACCESS_FS_MAKE_CHAR: u64 = 1 << 6;
const ACCESS_FS_MAKE_SOCK: u64 = 1 << 9;
const ACCESS_FS_MAKE_FIFO: u64 = 1 << 10;
const ACCESS_FS_MAKE_BLOCK: u64 = 1 << 11;
const ACCESS_FS_MAKE_SYM: u64 = 1 << 12;
const ACCESS_FS_TRUNCATE: u64 = 1 << 14;
const ACCESS_FS_IOCTL_DEV: u64 = 1 << 15;
/// To connect to a socket by its path. Never allowed by a rule: those that are made under the same rules can be
/// connected to without.
const ACCESS_FS_RESOLVE_UNIX: u64 = 1 << 16;

const READ_ACCESS: u64 = ACCESS_FS_EXECUTE | ACCESS_FS_READ_FILE | ACCESS_FS_READ_DIR;
/// The rights that apply to files that are not directories.
const FILE_ACCESS: u64 = ACCESS_FS_EXECUTE
    | ACCESS_FS_WRITE_FILE
    | ACCESS_FS_READ_FILE
    | ACCESS_FS_TRUNCATE
    | ACCESS_FS_IOCTL_DEV;
/// Rights that no rule gives: to make device nodes, and to connect to sockets of others.
const FORBIDDEN_ACCESS: u64 = ACCESS_FS_MAKE_CHAR | ACCESS_FS_MAKE_BLOCK | ACCESS_FS_RESOLVE_UNIX;
/// Rights to make what is neither a file nor a directory.
const SPECIAL_ACCESS: u64 = ACCESS_FS_MAKE_SOCK | ACCESS_FS_MAKE_FIFO | ACCESS_FS_MAKE_SYM;

/// Binding and connecting.
pub(crate) const BOTH_TCP: u64 = 0b11;
const SCOPE_SIGNAL: u64 = 0b10;
const BOTH_SCOPES: u64 = 0b11;
/// The first version that can keep signals and abstract sockets inside.
pub(crate) const SCOPES_SINCE: u32 = 6;

/// The first version that can keep sockets of the host out of reach that have a path (C-25).
pub(crate) const SOCKETS_SINCE: u32 = 9;

/// What this kernel's version handles of files.
fn file_rights(abi: u32) -> u64 {
    let highest = match abi {
        0 => return 0,
        1 => 12,
        2 => 13,
        3 | 4 => 14,
        5..SOCKETS_SINCE => 15,
        _ => 16,
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

/// A rule set in the making: what it handles is refused wherever no rule allows it.
pub(crate) struct Rules {
    ruleset: OwnedFd,
    handled: u64,
}

impl Rules {
    /// Handles every file right that this kernel's version knows, the TCP rights given, and signals and
    /// abstract sockets to processes outside the same rules.
    pub(crate) fn new(abi: u32, tcp: u64) -> Result<Rules, Failure> {
        let handled = file_rights(abi);
        let attr = RulesetAttr {
            handled_access_fs: handled,
            handled_access_net: tcp,
            scoped: BOTH_SCOPES,
        };
        let ruleset = sys::landlock_ruleset(&attr, attribute_size(abi));
        Ok(Rules { ruleset: ruleset.at(Wall::Landlock, "a rule set")?, handled })
    }

    /// Allows reading and executing below a place.
    pub(crate) fn read(&self, place: impl AsFd) -> Result<(), Errno> {
        self.add_rule(place, READ_ACCESS)
    }

    /// Allows the use of a device, or of all below a directory.
    pub(crate) fn allow_device(&self, place: impl AsFd) -> Result<(), Errno> {
        self.add_rule(
            place,
            READ_ACCESS | ACCESS_FS_WRITE_FILE | ACCESS_FS_TRUNCATE | ACCESS_FS_IOCTL_DEV,
        )
    }

    /// Allows everything below a place, but making devices.
    pub(crate) fn write(&self, place: impl AsFd) -> Result<(), Errno> {
        self.add_rule(place, self.handled & !FORBIDDEN_ACCESS)
    }

    /// Allows the same, but making anything other than files and directories.
    fn write_plain_files(&self, place: impl AsFd) -> Result<(), Errno> {
        self.add_rule(place, self.handled & !FORBIDDEN_ACCESS & !SPECIAL_ACCESS)
    }

    fn add_rule(&self, place: impl AsFd, access: u64) -> Result<(), Errno> {
        let directory = fstat(&place)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let access = if directory { access } else { access & FILE_ACCESS };
        sys::landlock_allow(self.ruleset.as_fd(), place.as_fd(), access & self.handled)
    }

    /// Puts the process under them, for good.
    pub(crate) fn enforce_rules(&self) -> Result<(), Failure> {
        sys::landlock_restrict(self.ruleset.as_fd()).at(Wall::Landlock, "the restriction")
    }
}

/// Opens a place for a rule.
pub(crate) fn open_rule_path(path: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Puts the process under its rules. Comes after the last mount, which Landlock would refuse.
pub(crate) fn restrict_process(
    abi: u32,
    plan: &LaunchPlan,
    writable: &[PathBuf],
) -> Result<(), Failure> {
    let wall = Wall::Landlock;
    let tcp = match plan.network {
        PlanNetwork::None => BOTH_TCP,
        PlanNetwork::Loopback | PlanNetwork::Helper => 0,
    };
    let rules = Rules::new(abi, tcp)?;
    open_rule_path("/").and_then(|root| rules.read(root)).at(wall, "/")?;
    open_rule_path("/dev").and_then(|devices| rules.allow_device(devices)).at(wall, "/dev")?;
    for path in writable {
        let allow = |found: OwnedFd| match plan.plain_files.contains(path) {
            true => rules.write_plain_files(found),
            false => rules.write(found),
        };
        let path = format_path(path);
        open_rule_path(&path).and_then(allow).at(wall, &path)?;
    }
    rules.enforce_rules()
}

/// Keeps signals of this process and all its descendants among themselves, and nothing else.
pub(crate) fn keep_signals() -> Result<(), Failure> {
    let attr = RulesetAttr { handled_access_fs: 0, handled_access_net: 0, scoped: SCOPE_SIGNAL };
    let ruleset = sys::landlock_ruleset(&attr, attribute_size(SCOPES_SINCE));
    let ruleset = ruleset.at(Wall::Landlock, "a rule set for signals")?;
    sys::landlock_restrict(ruleset.as_fd()).at(Wall::Landlock, "the scope of signals")
}

/// Asks for something that Landlock refuses before anybody else does, and in its own way: a block device in a
/// place that is writable, which without it would be refused for want of a capability. Not the empty node by
/// which overlays mark deletions: newer kernels take that for a plain file.
pub(crate) fn prove_landlock() -> Result<String, Failure> {
    const PROBE_PATH: &str = "/tmp/.stockade-probe";
    let kind = rustix::fs::FileType::BlockDevice;
    let made = rustix::fs::mknodat(CWD, PROBE_PATH, kind, Mode::from_raw_mode(0o600), 0);
    match made {
        Err(Errno::ACCESS) => Ok("a device node in /tmp is refused".to_owned()),
        Err(errno) => Err(Failure::new(Wall::Landlock, errno, "the probe was refused otherwise")),
        Ok(()) => Err(Failure::without_errno(Wall::Landlock, "a device node could be made")),
    }
}
