//! The tree of processes below one, and killing all of it.
//!
//! Killing a process that forks is a race; stopping first wins it: a stopped process makes no children, so
//! once a scan finds no new process, all of them are known and can be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::sys;

/// Censuses in one go. Each finds at least one new process or is the last.
const MAX_CENSUS_ROUNDS: usize = 64;
/// How long the agent tries to end all its descendants before it ends itself.
const KILL_ALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The processes that live now, by parent.
struct Census(BTreeMap<i32, Vec<i32>>);

impl Census {
    fn take_census() -> Self {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for pid in fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        {
            if let Some(parent) = parent_of(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        Self(children)
    }

    fn list_children(&self, of: i32) -> &[i32] {
        self.0.get(&of).map_or(&[], Vec::as_slice)
    }

    fn list_descendants(&self, of: i32) -> Vec<i32> {
        // A set, because numbers reused while looking could make this a circle.
        let mut found = BTreeSet::new();
        let mut next = vec![of];
        while let Some(pid) = next.pop() {
            next.extend(self.list_children(pid).iter().filter(|child| found.insert(**child)));
        }
        found.into_iter().collect()
    }
}

/// The parent of a process that is not already dead.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold any byte, so count from the last one.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let mut fields = stat.get(after..)?.split(|byte| *byte == b' ');
    let dead = matches!(fields.next()?, b"Z" | b"X");
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    (!dead).then_some(parent)
}

/// Sends a signal to every descendant of a process.
pub fn signal_descendants(of: i32, number: i32) {
    for pid in Census::take_census().list_descendants(of) {
        sys::send_signal(pid, number);
    }
}

/// Stops, then kills every descendant of a process. Returns whether there were any.
pub fn kill_descendants(of: i32) -> bool {
    kill_processes(|census| census.list_descendants(of))
}

/// The same for the children of the agent that it did not start itself: what a killed keeper left.
pub fn kill_strays(known: &BTreeSet<i32>) -> bool {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    kill_processes(|census| {
        let strays = census.list_children(me).iter().filter(|pid| !known.contains(pid));
        strays.flat_map(|pid| [vec![*pid], census.list_descendants(*pid)].concat()).collect()
    })
}

fn kill_processes(prey: impl Fn(&Census) -> Vec<i32>) -> bool {
    let mut stopped = BTreeSet::new();
    for _ in 0..MAX_CENSUS_ROUNDS {
        let found = prey(&Census::take_census());
        let new: Vec<_> = found.into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        new.iter().for_each(|pid| sys::send_signal(*pid, libc::SIGSTOP));
        stopped.extend(new);
    }
    stopped.iter().for_each(|pid| sys::send_signal(*pid, libc::SIGKILL));
    !stopped.is_empty()
}

/// Ends everybody below the agent, where its own end would not: outside a pid namespace of its own.
pub fn end_all_descendants(children: &OwnedFd) {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let end = Instant::now() + KILL_ALL_TIMEOUT;
    while Instant::now() < end {
        kill_descendants(me);
        loop {
            match sys::reap_child(false) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        let moment = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = poll(&mut [PollFd::new(children, PollFlags::IN)], Some(&moment));
        let _ = rustix::io::read(children, &mut [0; 1024]);
    }
}
