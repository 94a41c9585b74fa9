//! The umask of programs of ours, and of threads that create files on behalf of a guest.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use crate::sys;

/// Takes every right of other users away from what this process makes from now on (C-07): the first thing in
/// every program of ours.
pub fn make_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Gives the calling thread a umask of its own, which no other thread of this process has: for what it makes
/// in a guest's stead.
pub fn take_own_umask(umask: Mode) -> Result<(), Errno> {
    sys::unshare_namespaces(UnshareFlags::FS)?;
    rustix::process::umask(umask);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_umask_of_its_own_changes_nobody_elses() {
        let own = || {
            take_own_umask(Mode::RWXO).unwrap();
            rustix::process::umask(Mode::RWXO)
        };
        let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let theirs = std::thread::spawn(own).join().unwrap();
        let ours = rustix::process::umask(before);
        assert_eq!((theirs, ours), (Mode::RWXO, Mode::RWXG | Mode::RWXO));
    }
}
