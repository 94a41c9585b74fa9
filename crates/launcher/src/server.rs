//! The launcher's loop: takes plans, starts their building, reaps what ends; and ends everything when
//! its owner is gone. One thread; it waits for its owner and for its children's ends, and for nothing
//! else: each new process reports to the owner itself.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};

use crate::error::{Failure, Wall};
use crate::idle_memory::release_idle_memory;
use crate::plan::{Cgroup, LaunchPlan};
use crate::sockets::{ConnectRules, SocketDiag, SocketWatch};
use crate::spawn::{BegunLaunch, LaunchWorkshop, Stock};
use crate::sys;
use crate::wire::{self, AGENT_FD, CONTROL_FD, LaunchReply, Message};
use crate::without_namespaces::{BareLauncher, BarePlan};

/// How many control groups are remembered before those that are gone are looked for.
const CGROUP_PRUNE_THRESHOLD: usize = 1024;
/// Time without an event after which memory that is not needed is given back.
const IDLE_MEMORY_DELAY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long the end waits for control groups to empty.
const CGROUP_DRAIN_TIMEOUT: Duration = Duration::from_secs(4);

/// Serves over the inherited control socket until its other end is closed; then ends every sandbox
/// it has launched, and removes the control groups their plans named.
pub fn serve(mode: Mode) -> Result<(), Failure> {
    let inherited = |fd| {
        sys::take_inherited_fd(fd)
            .map_err(|errno| build_server_failure(errno, "inherited descriptors"))
    };
    let (control, agent) = (inherited(CONTROL_FD)?, inherited(AGENT_FD)?);
    sys::close_from(AGENT_FD as u32 + 1, true)
        .map_err(|errno| build_server_failure(errno, "closing"))?;
    serve_over(control, agent, mode)
}

/// The same over a control socket and with an agent that are at hand.
pub(crate) fn serve_over(control: OwnedFd, agent: OwnedFd, mode: Mode) -> Result<(), Failure> {
    let signals = sys::child_signals().map_err(|errno| build_server_failure(errno, "signals"))?;
    let works = match mode {
        Mode::Namespaces => {
            Works::Namespaces(LaunchWorkshop::open(agent, Stock::Always).map(Box::new))
        }
        Mode::Once => Works::Namespaces(LaunchWorkshop::open(agent, Stock::Once).map(Box::new)),
        Mode::Bare => Works::Bare(BareLauncher::open(agent)),
    };
    let (live, left) = (Vec::new(), Vec::new());
    let sockets =
        SocketWatch::new().map_err(|errno| build_server_failure(errno, "an epoll descriptor"))?;
    let memory_released = false;
    let mut server = LaunchServer { control, signals, works, sockets, live, left, memory_released };
    server.run();
    server.end_all();
    Ok(())
}

fn build_server_failure(errno: Errno, detail: &str) -> Failure {
    Failure::new(Wall::Request, errno, detail)
}

/// What a launcher builds with. Decided once: namespaces are entered for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Namespaces, for [`LaunchPlan`]s.
    Namespaces,
    /// The same, with nothing made ready after the first plan: there is no second one to be expected.
    Once,
    /// None, for [`BarePlan`]s.
    Bare,
}

impl Mode {
    /// The launcher's argument that asks for it.
    pub const BARE_ARGUMENT: &str = "bare";
}

/// What launches are made with, or why none can be.
enum Works {
    Namespaces(Result<Box<LaunchWorkshop>, Failure>),
    Bare(Result<BareLauncher, Failure>),
}

impl Works {
    /// Starts a launch. Answers the child that ends last, and the control groups it was given.
    fn begin(
        &mut self,
        text: &[u8],
        pipe: &OwnedFd,
        reply: &OwnedFd,
    ) -> Result<(BegunLaunch, Option<Cgroup>), Failure> {
        let wrong =
            |error: serde_json::Error| Failure::without_errno(Wall::Request, error.to_string());
        match self {
            Works::Namespaces(workshop) => {
                let plan: LaunchPlan = serde_json::from_slice(text).map_err(wrong)?;
                let workshop = workshop.as_mut().map_err(|failure| failure.clone())?;
                Ok((workshop.begin(&plan, pipe, reply)?, plan.cgroup))
            }
            Works::Bare(bare_launcher) => {
                let plan: BarePlan = serde_json::from_slice(text).map_err(wrong)?;
                let bare_launcher = bare_launcher.as_ref().map_err(|failure| failure.clone())?;
                let pid = bare_launcher.begin(&plan, pipe, reply)?;
                Ok((BegunLaunch { pid, asking: None }, plan.cgroup))
            }
        }
    }

    /// Does something where the host's paths can be seen.
    fn on_host(&self, work: impl FnOnce()) {
        match self {
            Works::Namespaces(Ok(workshop)) => {
                let _ = workshop.on_host(|| {
                    work();
                    Ok(())
                });
            }
            Works::Namespaces(Err(_)) => {}
            Works::Bare(_) => work(),
        }
    }

    /// What can be done ahead of time, if anything.
    fn unprepared_workshop(&mut self) -> Option<&mut LaunchWorkshop> {
        match self {
            Works::Namespaces(Ok(workshop)) if !workshop.is_prepared() => Some(workshop),
            Works::Namespaces(_) | Works::Bare(_) => None,
        }
    }

    /// The signal at which a child ends with everything in it: a warden has something to do first.
    fn ending_signal(&self) -> Signal {
        match self {
            Works::Namespaces(_) => Signal::KILL,
            Works::Bare(_) => Signal::TERM,
        }
    }
}

/// A child, from its birth to its burial.
struct LiveChild {
    pid: Pid,
    cgroups: Vec<PathBuf>,
}

struct LaunchServer {
    control: OwnedFd,
    signals: OwnedFd,
    works: Works,
    /// Sandboxes that connect by asking.
    sockets: SocketWatch,
    live: Vec<LiveChild>,
    /// Control groups of sandboxes that have ended.
    left: Vec<PathBuf>,
    /// Whether memory was given back since the last plan.
    memory_released: bool,
}

/// What one round of waiting found.
struct ReadyEvents {
    control: bool,
    children: bool,
    sockets: bool,
}

impl LaunchServer {
    fn run(&mut self) {
        loop {
            let Ok(ready) = self.next() else { return };
            if ready.children {
                self.reap_children();
            }
            if ready.sockets {
                self.sockets.serve();
            }
            if ready.control && !self.accept() {
                return;
            }
        }
    }

    /// What there is to do; and while there is nothing, what can be done ahead.
    fn next(&mut self) -> Result<ReadyEvents, Errno> {
        if self.works.unprepared_workshop().is_some() {
            let ready = self.wait(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if ready.control || ready.children || ready.sockets {
                return Ok(ready);
            }
            if let Some(workshop) = self.works.unprepared_workshop() {
                workshop.prepare();
            }
        }
        if !self.memory_released {
            let ready = self.wait(Some(&IDLE_MEMORY_DELAY))?;
            if ready.control || ready.children || ready.sockets {
                return Ok(ready);
            }
            release_idle_memory();
            self.memory_released = true;
        }
        self.wait(None)
    }

    fn wait(&self, timeout: Option<&Timespec>) -> Result<ReadyEvents, Errno> {
        let mut watched = [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.sockets, PollFlags::IN),
        ];
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [control, children, sockets] = watched.map(|fd| !fd.revents().is_empty());
        Ok(ReadyEvents { control, children, sockets })
    }

    /// Takes one plan. False when the owner is gone.
    fn accept(&mut self) -> bool {
        match wire::receive_message(&self.control, RecvFlags::empty()) {
            Ok(Some(message)) => self.take(message),
            Ok(None) | Err(Errno::CONNRESET) => return false,
            // A message that breaks the bounds is dropped with its descriptors, which tells its
            // sender; the next one may be fine.
            Err(_) => {}
        }
        true
    }

    fn take(&mut self, message: Message) {
        self.memory_released = false;
        let mut fds = message.fds.into_iter();
        let (Some(pipe), Some(reply), host) = (fds.next(), fds.next(), fds.next()) else { return };
        if let Err(failure) = self.begin(&message.text, &pipe, &reply, host.map(SocketDiag::of)) {
            // An error is ignored: the peer to be told is gone.
            let _ = wire::send_reply(&reply, &LaunchReply::Failed(failure), None);
        }
    }

    fn begin(
        &mut self,
        text: &[u8],
        pipe: &OwnedFd,
        reply: &OwnedFd,
        host: Option<SocketDiag>,
    ) -> Result<(), Failure> {
        let (BegunLaunch { pid, asking }, cgroup) = self.works.begin(text, pipe, reply)?;
        if let Some((hand, guest)) = asking {
            // On an error no process replies to the filter, and connecting fails.
            let _ = self.sockets.expect_listener(pid, hand, ConnectRules { guest, host });
        }
        let cgroups = cgroup.iter().flat_map(|group| group.directories().to_vec()).collect();
        self.live.push(LiveChild { pid, cgroups });
        Ok(())
    }

    /// Buries every child that has ended, so that none stays behind as a zombie.
    fn reap_children(&mut self) {
        let mut record = [0; 128];
        while rustix::io::read(&self.signals, &mut record).is_ok_and(|count| count > 0) {}
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            self.sockets.forget_sandbox(pid);
            self.sockets.forget_child(pid);
            let ended = self.live.extract_if(.., |live| live.pid == pid);
            self.left.extend(ended.flat_map(|live| live.cgroups));
        }
        if self.left.len() > CGROUP_PRUNE_THRESHOLD {
            self.forget_removed();
        }
    }

    /// The owner removes the groups of sandboxes that ended; what it has removed is forgotten.
    fn forget_removed(&mut self) {
        let left = &mut self.left;
        self.works.on_host(|| left.retain(|directory| rustix::fs::stat(directory).is_ok()));
    }

    /// The owner is gone: so is everything it had.
    fn end_all(&mut self) {
        for live in &self.live {
            let _ = kill_process(live.pid, self.works.ending_signal());
        }
        self.thaw_cgroups();
        self.sockets.end_all();
        for live in std::mem::take(&mut self.live) {
            let _ = waitpid(Some(live.pid), WaitOptions::empty());
            self.left.extend(live.cgroups);
        }
        self.remove_cgroups(&self.left);
    }

    /// What stands still does not end. In the unified hierarchy it does.
    fn thaw_cgroups(&self) {
        let groups: Vec<&PathBuf> = self.live.iter().flat_map(|live| &live.cgroups).collect();
        if groups.is_empty() {
            return;
        }
        self.works.on_host(|| {
            for directory in groups {
                // Only one of the older hierarchies has this file.
                let _ = std::fs::write(directory.join("freezer.state"), "THAWED");
            }
        });
    }

    /// A group can be removed once its last process is buried, which a pid namespace's end promises
    /// for its members but not to the microsecond.
    fn remove_cgroups(&self, directories: &[PathBuf]) {
        if directories.is_empty() {
            return;
        }
        let deadline = Instant::now() + CGROUP_DRAIN_TIMEOUT;
        self.works.on_host(|| {
            for directory in directories {
                while rustix::fs::rmdir(directory) == Err(Errno::BUSY) && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
    }
}
