//! Watches on files: the kernel counts instances and watches for all of a user's processes together, so that a
//! guest could take all that its user has. A user namespace can be held to less.

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::base_namespaces::write_file;
use crate::error::{Failure, Wall};

/// The divisor of a user's limits that gives the share of one sandbox.
const SHARE_DIVISOR: u64 = 8;

/// What a sandbox may have of each, by the file in its user namespace; absent where the host does not say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InotifyBounds {
    instances: Option<u64>,
    watches: Option<u64>,
}

impl InotifyBounds {
    /// Looks at what the host allows a user; once.
    pub(crate) fn of_host() -> InotifyBounds {
        let share = |name: &str| {
            let most = read_number(&format!("/proc/sys/fs/inotify/{name}"))?;
            Some((most / SHARE_DIVISOR).max(1))
        };
        InotifyBounds { instances: share("max_user_instances"), watches: share("max_user_watches") }
    }

    fn files(self) -> [(&'static str, Option<u64>); 2] {
        [
            ("/proc/sys/user/max_inotify_instances", self.instances),
            ("/proc/sys/user/max_inotify_watches", self.watches),
        ]
    }

    /// Holds this process's user namespace to them. Where the host's settings cannot be written to from any
    /// namespace, as in some containers, the guest shares what its user has.
    pub(crate) fn set(self) -> Result<(), Failure> {
        for (file, most) in self.files() {
            let Some(most) = most else { continue };
            match write_file(file, &most.to_string()) {
                Ok(()) | Err(Errno::ROFS | Errno::NOENT | Errno::ACCESS) => {}
                Err(errno) => return Err(Failure::new(Wall::Rlimits, errno, file)),
            }
        }
        Ok(())
    }
}

fn read_number(path: &str) -> Option<u64> {
    let file =
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 32];
    let length = rustix::io::read(file, &mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}
