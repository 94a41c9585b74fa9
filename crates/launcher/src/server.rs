//! The launcher's loop: takes plans, starts their building, answers when each agent has started,
//! reaps what ends; and ends everything when its owner is gone. One thread; it waits only for the
//! owner and for its own children.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, pidfd_send_signal, wait, waitpid};

use crate::error::{Failure, Wall};
use crate::plan::LaunchPlan;
use crate::spawn::{Building, Workshop};
use crate::sys;
use crate::wire::{self, AGENT_FD, CONTROL_FD, MESSAGE_LIMIT, Message, Proof, Reply};

/// How many sandboxes may be in building at once; further plans wait in the socket.
const AT_ONCE: usize = 64;
/// A building that takes longer hangs on something, such as a dead network file system.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many control groups are remembered before those that are gone are looked for.
const FORGETTING: usize = 1024;
/// How long the end waits for control groups to empty.
const EMPTYING: Duration = Duration::from_secs(4);

/// Serves over the inherited control socket until its other end is closed; then ends every sandbox
/// it has launched, and removes the control groups their plans named.
pub fn serve() -> Result<(), Failure> {
    let inherited = |fd| sys::inherited(fd).map_err(|errno| failed(errno, "inherited descriptors"));
    let (control, agent) = (inherited(CONTROL_FD)?, inherited(AGENT_FD)?);
    sys::close_from(AGENT_FD as u32 + 1, true).map_err(|errno| failed(errno, "closing"))?;
    let signals = sys::child_signals().map_err(|errno| failed(errno, "signals"))?;
    let workshop = Workshop::open(agent);
    let (pending, live, left) = (Vec::new(), Vec::new(), Vec::new());
    let mut server = Server { control, signals, workshop, pending, live, left };
    server.run();
    server.end_all();
    Ok(())
}

fn failed(errno: Errno, detail: &str) -> Failure {
    Failure::new(Wall::Request, errno, detail)
}

/// A launch that was not answered yet.
struct PendingLaunch {
    building: Building,
    reply: OwnedFd,
    report: Vec<u8>,
    deadline: Instant,
}

/// A child, from its birth to its burial.
struct Live {
    pid: Pid,
    cgroups: Vec<PathBuf>,
}

struct Server {
    control: OwnedFd,
    signals: OwnedFd,
    workshop: Result<Workshop, Failure>,
    pending: Vec<PendingLaunch>,
    live: Vec<Live>,
    /// Control groups of sandboxes that have ended.
    left: Vec<PathBuf>,
}

/// What one round of waiting found.
#[derive(Default)]
struct Ready {
    something: bool,
    control: bool,
    reports: Vec<usize>,
    abandoned: Vec<usize>,
}

impl Server {
    fn run(&mut self) {
        loop {
            let Ok(ready) = self.next() else { return };
            self.reap();
            self.progress(&ready);
            if ready.control && !self.accept() {
                return;
            }
        }
    }

    /// What there is to do; and while there is nothing, what can be done ahead.
    fn next(&mut self) -> Result<Ready, Errno> {
        let idle = self.pending.is_empty();
        if let Ok(workshop) = &self.workshop
            && idle
            && !workshop.is_prepared()
        {
            let ready = self.wait(Some(Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if ready.something {
                return Ok(ready);
            }
            if let Ok(workshop) = &mut self.workshop {
                workshop.prepare();
            }
        }
        self.wait(self.timeout())
    }

    /// Waits for the owner, for a report, for an owner that gave up, or for a child's end.
    fn wait(&self, timeout: Option<Timespec>) -> Result<Ready, Errno> {
        let mut watched = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let room = self.pending.len() < AT_ONCE;
        let wanted = if room { PollFlags::IN } else { PollFlags::empty() };
        watched.push(PollFd::new(&self.control, wanted));
        for launch in &self.pending {
            watched.push(PollFd::new(&launch.building.report, PollFlags::IN));
            watched.push(PollFd::new(&launch.reply, PollFlags::empty()));
        }
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let found: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        Ok(Ready::from(&found))
    }

    fn timeout(&self) -> Option<Timespec> {
        let next = self.pending.iter().map(|launch| launch.deadline).min()?;
        let left = next.saturating_duration_since(Instant::now());
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    /// Takes one plan. False when the owner is gone.
    fn accept(&mut self) -> bool {
        match wire::receive(&self.control) {
            Ok(Some(message)) => self.take(message),
            Ok(None) | Err(Errno::CONNRESET) => return false,
            // A message that breaks the bounds is dropped with its descriptors, which tells its
            // sender; the next one may be fine.
            Err(_) => {}
        }
        true
    }

    fn take(&mut self, message: Message) {
        let Ok([pipe, reply]) = <[OwnedFd; 2]>::try_from(message.fds) else { return };
        match self.begin(&message.text, &pipe) {
            Err(failure) => answer(&reply, &Reply::Failed(failure), None),
            Ok(building) => {
                let deadline = Instant::now() + PATIENCE;
                let report = Vec::new();
                self.pending.push(PendingLaunch { building, reply, report, deadline });
            }
        }
    }

    fn begin(&mut self, text: &[u8], pipe: &OwnedFd) -> Result<Building, Failure> {
        let plan: LaunchPlan = serde_json::from_slice(text)
            .map_err(|error| Failure::without_errno(Wall::Request, error.to_string()))?;
        let workshop = self.workshop.as_mut().map_err(|failure| failure.clone())?;
        let building = workshop.begin(&plan, pipe)?;
        let cgroups = plan.cgroup.iter().flat_map(|group| group.directories().to_vec()).collect();
        self.live.push(Live { pid: building.pid, cgroups });
        Ok(building)
    }

    /// Moves every pending launch on: answers the finished, kills the given up and the overdue.
    fn progress(&mut self, ready: &Ready) {
        let now = Instant::now();
        let mut index = 0;
        self.pending.retain_mut(|launch| {
            let (reported, abandoned) =
                (ready.reports.contains(&index), ready.abandoned.contains(&index));
            index += 1;
            if abandoned || now >= launch.deadline {
                launch.give_up();
                return false;
            }
            !(reported && launch.read_report())
        });
    }

    /// Buries every child that has ended, so that none stays behind as a zombie.
    fn reap(&mut self) {
        let mut record = [0; 128];
        while rustix::io::read(&self.signals, &mut record).is_ok_and(|count| count > 0) {}
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            let ended = self.live.extract_if(.., |live| live.pid == pid);
            self.left.extend(ended.flat_map(|live| live.cgroups));
        }
        if self.left.len() > FORGETTING {
            self.forget_removed();
        }
    }

    /// The owner removes the groups of sandboxes that ended; what it has removed is forgotten.
    fn forget_removed(&mut self) {
        let Ok(workshop) = &self.workshop else { return };
        let left = &mut self.left;
        let _ = workshop.on_host(|| {
            left.retain(|directory| rustix::fs::stat(directory).is_ok());
            Ok(())
        });
    }

    /// The owner is gone: so is everything it had.
    fn end_all(&mut self) {
        for live in &self.live {
            let _ = kill_process(live.pid, Signal::KILL);
        }
        for live in std::mem::take(&mut self.live) {
            let _ = waitpid(Some(live.pid), WaitOptions::empty());
            self.left.extend(live.cgroups);
        }
        self.remove_cgroups(&self.left);
    }

    /// A group can be removed once its last process is buried, which a pid namespace's end promises
    /// for its members but not to the microsecond.
    fn remove_cgroups(&self, directories: &[PathBuf]) {
        let Ok(workshop) = &self.workshop else { return };
        let deadline = Instant::now() + EMPTYING;
        let _ = workshop.on_host(|| {
            for directory in directories {
                while rustix::fs::rmdir(directory) == Err(Errno::BUSY) && Instant::now() < deadline
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Ok(())
        });
    }
}

impl Ready {
    fn from(found: &[bool]) -> Ready {
        let mut ready = Ready {
            something: found.contains(&true),
            control: found.get(1) == Some(&true),
            ..Ready::default()
        };
        for (index, pair) in found.get(2..).unwrap_or_default().chunks(2).enumerate() {
            ready.reports.extend((pair.first() == Some(&true)).then_some(index));
            ready.abandoned.extend((pair.get(1) == Some(&true)).then_some(index));
        }
        ready
    }
}

impl PendingLaunch {
    /// Ends the building. Whoever still listens learns that it took too long.
    fn give_up(&self) {
        let _ = pidfd_send_signal(&self.building.pidfd, Signal::KILL);
        let detail = format!("the walls did not stand within {} s", PATIENCE.as_secs());
        let failure = Failure::new(Wall::Request, Errno::TIMEDOUT, detail);
        answer(&self.reply, &Reply::Failed(failure), None);
    }

    /// Reads on; true when the report is complete and has been answered.
    fn read_report(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match rustix::io::read(&self.building.report, &mut piece) {
            Ok(0) | Err(_) => {
                self.answer();
                true
            }
            Ok(count) => {
                self.report.extend_from_slice(piece.get(..count).unwrap_or_default());
                let too_long = self.report.len() > MESSAGE_LIMIT;
                if too_long {
                    // The walls' evidence is far smaller: what writes more is not our code.
                    let _ = pidfd_send_signal(&self.building.pidfd, Signal::KILL);
                }
                too_long
            }
        }
    }

    /// The proofs alone mean that the agent has started; a failure, first or last, that it has not.
    fn answer(&self) {
        let lines: Vec<&[u8]> = self.report.split(|byte| *byte == b'\n').collect();
        let failure = lines.iter().find_map(|line| serde_json::from_slice::<Failure>(line).ok());
        let walls = lines.first().and_then(|line| serde_json::from_slice::<Vec<Proof>>(line).ok());
        let pid = self.building.pid.as_raw_nonzero().get().unsigned_abs();
        match (failure, walls) {
            (Some(failure), _) => answer(&self.reply, &Reply::Failed(failure), None),
            (None, Some(walls)) => {
                let pidfd = self.building.pidfd.as_fd();
                answer(&self.reply, &Reply::Launched { pid, walls }, Some(pidfd));
            }
            (None, None) => {
                let failure =
                    Failure::without_errno(Wall::Namespaces, "the process ended while building");
                answer(&self.reply, &Reply::Failed(failure), None);
            }
        }
    }
}

fn answer(reply: &OwnedFd, what: &Reply, pidfd: Option<BorrowedFd<'_>>) {
    if let Ok(text) = serde_json::to_vec(what) {
        let fds: Vec<BorrowedFd<'_>> = pidfd.into_iter().collect();
        // An owner that no longer listens learns nothing, and its pipe's end ends the agent.
        let _ = wire::send(reply, &text, &fds);
    }
}
