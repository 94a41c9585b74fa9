//! The process that connects in the stead of one sandbox's guest. What the guest's memory says is copied once;
//! what it names is opened, judged, and connected to by descriptor.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open,
    set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use stockade_fs::open_beneath;

use super::diag::{Bound, SocketDiag};
use super::waiting::{ConnectOutcome, GuestConnect, WaitingConnect};
use super::{ConnectRules, SocketGuest, watch};
use crate::sys;
use crate::walls::scratch::PRIVATE_DIRECTORIES;
use crate::without_namespaces::calls;

/// The longest address that the kernel takes.
const MAX_ADDRESS: usize = 128;

/// Starts one for the sandbox of this listener.
pub(super) fn start_server(listener: &OwnedFd, rules: ConnectRules) -> Result<Pid, Errno> {
    let listener = rustix::io::fcntl_dupfd_cloexec(listener, 3)?;
    watch::fork_worker(move || {
        let alone = set_parent_process_death_signal(Some(Signal::KILL))
            .and_then(|()| close_all_but(listener, rules));
        if let Ok((listener, rules)) = alone {
            serve_listener(&listener, rules);
        }
    })
}

/// Closes the launcher's descriptors: a pipe held open here would hide its end from the peer.
fn close_all_but(
    listener: OwnedFd,
    ConnectRules { guest, host }: ConnectRules,
) -> Result<(OwnedFd, ConnectRules), Errno> {
    let Some(host) = host else {
        let [listener] = sys::keep_only([listener])?;
        return Ok((listener, ConnectRules { guest, host: None }));
    };
    let [listener, host] = sys::keep_only([listener, host.into_fd()])?;
    Ok((listener, ConnectRules { guest, host: Some(SocketDiag::of(host)) }))
}

/// Returns when the listener hangs up: no guest process is left to serve.
fn serve_listener(listener: &OwnedFd, ConnectRules { guest, host }: ConnectRules) {
    let mut server = SocketServer { guest, host, diag: None, waiting: Vec::new() };
    loop {
        let timeout = server.next_try();
        let mut ready = vec![PollFd::new(listener, PollFlags::IN)];
        ready.extend(server.waiting.iter().filter_map(WaitingConnect::poll_fd));
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let events = ready[0].revents();
        drop(ready);
        if events.contains(PollFlags::IN) {
            server.take_call(listener);
        } else if !events.is_empty() {
            return;
        }
        server.go_on(listener);
    }
}

struct SocketServer {
    guest: SocketGuest,
    host: Option<SocketDiag>,
    /// Opened at the first call, in the network namespace of the calling process.
    diag: Option<SocketDiag>,
    waiting: Vec<WaitingConnect>,
}

impl SocketServer {
    fn next_try(&self) -> Option<rustix::event::Timespec> {
        self.waiting.iter().map(WaitingConnect::interval).min()
    }

    fn take_call(&mut self, listener: &OwnedFd) {
        // The caller may have been killed before its notification was received.
        let Ok(call) = calls::next_call(listener.as_fd()) else { return };
        match self.connect(listener, &call) {
            Ok(ConnectOutcome::Waits(waiting)) => self.waiting.push(waiting),
            Ok(ConnectOutcome::Done(result)) => {
                calls::reply_to_call(listener.as_fd(), call.id, result)
            }
            Err(errno) => calls::reply_to_call(listener.as_fd(), call.id, Err(errno)),
        }
    }

    /// Tries again what could not be done at once.
    fn go_on(&mut self, listener: &OwnedFd) {
        for waiting in std::mem::take(&mut self.waiting) {
            if !calls::still_waits(listener.as_fd(), waiting.call) {
                continue;
            }
            let call = waiting.call;
            match waiting.try_again() {
                ConnectOutcome::Waits(waiting) => self.waiting.push(waiting),
                ConnectOutcome::Done(result) => {
                    calls::reply_to_call(listener.as_fd(), call, result)
                }
            }
        }
    }

    fn connect(
        &mut self,
        listener: &OwnedFd,
        call: &libc::seccomp_notif,
    ) -> Result<ConnectOutcome, Errno> {
        let [number, pointer, length, ..] = call.data.args;
        let address = copy_address(call.pid, pointer, length)?;
        let socket = socket_of(call.pid, number)?;
        // Numbers are used again: what was found may be another process's.
        if !calls::still_waits(listener.as_fd(), call.id) {
            return Err(Errno::SRCH);
        }
        let local = sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
        let target = match path_in(&address).filter(|_| local) {
            Some(path) => Some(self.open_own(call.pid, path)?),
            None => None,
        };
        let attempt = GuestConnect { socket, address, target, guest: self.guest };
        Ok(attempt.begin(call.id))
    }

    /// Opens the socket that a path of the guest's names, if it was made in the sandbox.
    fn open_own(&mut self, pid: u32, path: &Path) -> Result<OwnedFd, Errno> {
        let target = resolve_for_process(pid, path)?;
        let found = rustix::fs::fstat(&target)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(Errno::CONNREFUSED);
        }
        let mount = SocketMount::of(pid, &target, found.st_dev)?;
        let inode = SocketInode {
            device: mount.device,
            told_device: mount.told_device,
            number: found.st_ino,
        };
        let own = match self.bound(pid) {
            Ok(own) => inode.is_own(&own, self.bound_on_host()?.as_ref()),
            // The kernel does not tell of sockets: then none but those in the sandbox's own places.
            Err(Errno::NOENT) => mount.is_private(),
            Err(errno) => return Err(errno),
        };
        match own {
            true => Ok(target),
            // As a permission would: programs take a refused connection for a stale socket and replace it.
            false => Err(Errno::ACCESS),
        }
    }

    /// Where sockets of the host's programs are bound; none where the kernel does not tell.
    fn bound_on_host(&self) -> Result<Option<BTreeSet<Bound>>, Errno> {
        match self.host.as_ref().map(SocketDiag::bound).transpose() {
            Err(Errno::NOENT) => Ok(None),
            bound => bound,
        }
    }

    /// Where sockets of the sandbox's own network namespace are bound.
    fn bound(&mut self, pid: u32) -> Result<BTreeSet<Bound>, Errno> {
        let diag = match self.diag.take() {
            Some(diag) => diag,
            None => {
                enter_network_of(pid)?;
                SocketDiag::open()?
            }
        };
        let all = diag.bound();
        // Kept though it may have failed: it will fail again in the same way.
        self.diag = Some(diag);
        all
    }
}

fn copy_address(pid: u32, pointer: u64, length: u64) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from((length as u32).cast_signed()).map_err(|_| Errno::INVAL)?;
    if length > MAX_ADDRESS {
        return Err(Errno::INVAL);
    }
    let mut address = vec![0; length];
    if length > 0 && calls::read_memory(pid, pointer, &mut address)? != length {
        return Err(Errno::FAULT);
    }
    Ok(address)
}

/// The guest's socket, as a descriptor of this process's own.
fn socket_of(pid: u32, number: u64) -> Result<OwnedFd, Errno> {
    let number = (number as u32).cast_signed();
    let thread = Pid::from_raw(pid.cast_signed()).ok_or(Errno::SRCH)?;
    // Of a thread that shares no descriptors with its process, the kernel tells only where it knows threads.
    let process = match pidfd_open(thread, PidfdFlags::from_bits_retain(libc::O_EXCL as u32)) {
        Err(Errno::INVAL) => pidfd_open(leader_of(pid)?, PidfdFlags::empty())?,
        opened => opened?,
    };
    pidfd_getfd(process, number, PidfdGetfdFlags::empty())
}

fn leader_of(thread: u32) -> Result<Pid, Errno> {
    let status =
        std::fs::read_to_string(format!("/proc/{thread}/status")).map_err(|_| Errno::SRCH)?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    leader.and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// The path in a local address; nothing where it has none, or a name that no file has.
fn path_in(address: &[u8]) -> Option<&Path> {
    let family = u16::from_ne_bytes(*address.first_chunk()?);
    let rest = address.get(2..).filter(|_| family == libc::AF_UNIX as u16)?;
    let path = rest.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// Opens what a path means to a process, only to name it.
fn resolve_for_process(pid: u32, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty())?;
    let whole = match path.is_absolute() {
        true => path.to_owned(),
        // It may have been moved since: then another file is found and judged, as if it had been named.
        false => working_directory(pid)?.join(path),
    };
    open_beneath(root, whole, flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

fn working_directory(pid: u32) -> Result<PathBuf, Errno> {
    let link = rustix::fs::readlink(format!("/proc/{pid}/cwd"), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

/// A socket's inode.
struct SocketInode {
    /// The device of its file system, as the kernel numbers it in what it tells of bound sockets.
    device: u32,
    /// The device that programs are told: another one on file systems of several parts, such as subvolumes of btrfs.
    told_device: u32,
    number: u64,
}

impl SocketInode {
    /// Whether it was bound in the sandbox. Of bound sockets the kernel tells half of the inode's number and no part of the
    /// file system, so that a guest may have bound another one that looks the same: in a subvolume of its own, or with a
    /// number 2^32 away. What looks like one of the host's is none of the guest's.
    fn is_own(&self, own: &BTreeSet<Bound>, host: Option<&BTreeSet<Bound>>) -> bool {
        let bound = (self.device, self.number as u32);
        let is_alone = match host {
            Some(host) => !host.contains(&bound),
            None => self.device == self.told_device && u32::try_from(self.number).is_ok(),
        };
        is_alone && own.contains(&bound)
    }
}

/// The mount that an object lies on.
struct SocketMount {
    /// The device of its file system, as the kernel itself numbers it: what programs are told is another one on
    /// file systems of several parts.
    device: u32,
    told_device: u32,
    /// Where it is, unless something else is mounted at the same place.
    place: Option<String>,
}

impl SocketMount {
    fn of(pid: u32, object: &OwnedFd, told: u64) -> Result<SocketMount, Errno> {
        let device = |major: u32, minor: u32| major << 20 | minor;
        let told_device = device(rustix::fs::major(told), rustix::fs::minor(told));
        let found = rustix::fs::statx(object, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
        let mounts = mounts.map_err(|_| Errno::SRCH)?;
        let mounted = mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [number, _, numbers, _, place, ..] = fields[..] else { return None };
            let (major, minor) = numbers.split_once(':')?;
            let this = number.parse() == Ok(found.stx_mnt_id);
            let alone =
                mounts.lines().filter(|line| line.split(' ').nth(4) == Some(place)).count() == 1;
            let device = device(major.parse().ok()?, minor.parse().ok()?);
            let place = alone.then(|| place.to_owned());
            this.then_some(SocketMount { device, told_device, place })
        });
        Ok(mounted.unwrap_or(SocketMount { device: told_device, told_device, place: None }))
    }

    /// Whether it is one of those that every sandbox has to itself, and nothing else is mounted over it.
    fn is_private(&self) -> bool {
        self.place
            .as_ref()
            .is_some_and(|at| PRIVATE_DIRECTORIES.iter().any(|(place, _)| place == at))
    }
}

fn enter_network_of(pid: u32) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let network = openat(CWD, format!("/proc/{pid}/ns/net"), flags, Mode::empty())?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
}

/// The name by which this process reaches what one of its descriptors names.
pub(super) fn name_of(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: SocketInode = SocketInode { device: 7, told_device: 7, number: 309 };

    #[test]
    fn only_what_the_sandbox_alone_has_bound_is_its_own() {
        let (none, same) = (BTreeSet::new(), BTreeSet::from([(7, 309)]));
        let other = BTreeSet::from([(8, 309), (7, 308)]);
        assert!(TARGET.is_own(&same, Some(&none)));
        assert!(TARGET.is_own(&same, Some(&other)));
        assert!(!TARGET.is_own(&other, Some(&none)));
        // As a guest makes it that advances the numbers of a subvolume of its own.
        assert!(!TARGET.is_own(&same, Some(&same)));
        // As a guest makes it whose file has a number 2^32 away.
        let far = SocketInode { number: (1 << 32) + 309, ..TARGET };
        assert!(!far.is_own(&same, Some(&same)));
        assert!(far.is_own(&same, Some(&none)));
    }

    #[test]
    fn what_may_look_like_another_is_not_its_own_where_the_hosts_are_not_known() {
        let same = BTreeSet::from([(7, 309)]);
        assert!(TARGET.is_own(&same, None));
        let subvolume = SocketInode { told_device: 43, ..TARGET };
        assert!(!subvolume.is_own(&same, None));
        let far = SocketInode { number: (1 << 32) + 309, ..TARGET };
        assert!(!far.is_own(&same, None));
    }
}
