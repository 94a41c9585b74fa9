//! What a sandbox uses, seen from outside by walking its processes: for hosts without control groups.
//! The first process is the ancestor of all others, since orphans fall back to it.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

/// What is used right now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Resident memory of all processes; pages they share count for each.
    pub memory: u64,
    /// Processor time of all, and of those that were waited for.
    pub cpu: Duration,
}

/// A sandbox cannot have more processes than this and still be walked.
const MOST: usize = 1 << 16;

/// How many sockets a sandbox may have before their buffers count as memory: most hold next to nothing.
const FREE_SOCKETS: u64 = 64;
/// The most that the kernel lets a program choose for the buffer of a socket; it keeps twice as much.
const MAX_BUFFER: &str = "/proc/sys/net/core/wmem_max";

/// What the buffers of a sandbox's sockets may hold. The kernel counts them for control groups alone: where
/// there is none, each socket counts as if it were full, since a guest can fill it at any moment.
pub(crate) fn socket_buffers(pid: i32) -> u64 {
    if shares_network(pid) {
        // The count would be the host's.
        return 0;
    }
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/sockstat"));
    let sockets = sockets.ok().as_deref().and_then(sockets_used).unwrap_or(0);
    let each = fs::read_to_string(MAX_BUFFER).ok().and_then(|most| most.trim().parse().ok());
    let each: u64 = each.unwrap_or(212_992);
    sockets.saturating_sub(FREE_SOCKETS).saturating_mul(each.saturating_mul(2))
}

fn shares_network(pid: i32) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    network(&pid.to_string()).is_some_and(|theirs| network("self") == Some(theirs))
}

fn sockets_used(sockstat: &str) -> Option<u64> {
    sockstat.lines().find_map(|line| line.strip_prefix("sockets: used "))?.trim().parse().ok()
}

/// Adds up a process and everything below it.
pub(crate) fn below(pid: i32) -> Tally {
    let (page, tick) = (rustix::param::page_size() as u64, rustix::param::clock_ticks_per_second());
    let mut total = Tally::default();
    let mut seen = HashSet::new();
    let mut todo = vec![pid];
    while let Some(pid) = todo.pop() {
        if seen.len() >= MOST || !seen.insert(pid) {
            continue;
        }
        todo.extend(children(pid));
        if let Some((ticks, pages)) = stat(pid) {
            total.memory += pages * page;
            total.cpu += Duration::from_millis(ticks * 1000 / tick.max(1));
        }
    }
    total
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Processor ticks (own and waited for) and resident pages.
fn stat(pid: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is the guest's choice and may hold anything: the fields start behind its last bracket.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = (11..=14).filter_map(field).sum();
    Some((ticks, field(21)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_by_what_the_kernel_tells() {
        let told = "sockets: used 300\nTCP: inuse 4 orphan 0 tw 0 alloc 9 mem 1\n";
        assert_eq!(sockets_used(told), Some(300));
        assert_eq!(sockets_used("TCP: inuse 4"), None);
    }

    #[test]
    fn a_process_and_its_children_are_added_up() {
        let own = below(std::process::id().cast_signed());
        assert!(own.memory > 0);
    }
}
