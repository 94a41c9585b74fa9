//! What a sandbox uses, seen from outside by walking its processes: for hosts without control groups.
//! The first process is the ancestor of all others, since orphans fall back to it.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use stockade_fs::read_kernel_file;

use super::cgroup::is_swap_on;

/// What is used right now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Memory of all processes: resident, swapped out, and for page tables; pages they share count for each.
    pub memory: u64,
    /// Processor time of all, and of those that were waited for.
    pub cpu: Duration,
    /// Processes and threads.
    pub tasks: u64,
}

/// A sandbox cannot have more processes than this and still be walked.
const MAX_PROCESSES: usize = 1 << 16;

/// Address space up to which a process's page tables are not looked at: they take at most a 512th of it.
const SMALL_ADDRESS_SPACE_BYTES: u64 = 256 << 20;
/// What a process's page tables and its memory in swap are called where the kernel tells of them, in kibibytes.
const UNSEEN_MEMORY_FIELDS: [&str; 2] = [PAGE_TABLES_FIELD, "VmSwap:"];
const PAGE_TABLES_FIELD: &str = "VmPTE:";

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
    let sockets = read_kernel_file(format!("/proc/{pid}/net/sockstat"));
    let sockets = sockets.ok().as_deref().and_then(sockets_used).unwrap_or(0);
    let each = read_kernel_file(MAX_BUFFER).ok().and_then(|most| most.trim().parse().ok());
    let each: u64 = each.unwrap_or(212_992);
    sockets.saturating_sub(FREE_SOCKETS).saturating_mul(each.saturating_mul(2))
}

/// Whether a process is in the same network namespace as this one.
pub(super) fn shares_network(pid: i32) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    network(&pid.to_string()).is_some_and(|theirs| network("self") == Some(theirs))
}

fn sockets_used(sockstat: &str) -> Option<u64> {
    sockstat.lines().find_map(|line| line.strip_prefix("sockets: used "))?.trim().parse().ok()
}

/// Adds up a process and everything below it.
pub(crate) fn tally_process_tree(pid: i32) -> Tally {
    let (page, tick) = (rustix::param::page_size() as u64, rustix::param::clock_ticks_per_second());
    let mut total = Tally::default();
    let swap_is_on = is_swap_on();
    for pid in process_tree(pid) {
        if let Some(stat) = read_stat(pid) {
            let unseen = unseen_memory(pid, &stat, swap_is_on, &UNSEEN_MEMORY_FIELDS);
            total.memory += stat.pages * page + unseen;
            total.cpu += Duration::from_millis(stat.ticks * 1000 / tick.max(1));
            total.tasks += stat.threads;
        }
    }
    total
}

/// Memory of a process that is not resident: its page tables, which grow by reading what was only reserved, and
/// what it has had swapped out, which it can ask for itself.
fn unseen_memory(pid: i32, stat: &Stat, swap_is_on: bool, fields: &[&str]) -> u64 {
    if !swap_is_on && stat.address_space <= SMALL_ADDRESS_SPACE_BYTES {
        return 0;
    }
    let status = read_kernel_file(format!("/proc/{pid}/status"));
    status.map_or(0, |status| sum_unseen_memory(&status, fields))
}

fn sum_unseen_memory(status: &str, fields: &[&str]) -> u64 {
    // The name, which is the guest's choice, comes first and holds no line break.
    let values = status.lines().filter_map(|line| {
        let value = fields.iter().find_map(|field| line.strip_prefix(*field))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    values.fold(0, u64::saturating_add).saturating_mul(1024)
}

/// Memory of a process and everything below it, where pages that several of them share count once.
/// Takes far longer than [`tally_process_tree`]: the kernel looks at every page. A process that may not be asked counts
/// with all it has.
pub(crate) fn proportional_memory(pid: i32) -> u64 {
    let page = rustix::param::page_size() as u64;
    let swap_is_on = is_swap_on();
    let of = |pid| {
        let stat = read_stat(pid)?;
        let rollup = read_kernel_file(format!("/proc/{pid}/smaps_rollup")).ok();
        let shares = rollup.and_then(|rollup| sum_proportional_memory(&rollup));
        Some(match shares {
            Some(shares) => shares + unseen_memory(pid, &stat, swap_is_on, &[PAGE_TABLES_FIELD]),
            None => {
                stat.pages * page + unseen_memory(pid, &stat, swap_is_on, &UNSEEN_MEMORY_FIELDS)
            }
        })
    };
    process_tree(pid).into_iter().filter_map(of).sum()
}

/// A process's shares in pages that are resident, and in those that are in swap.
fn sum_proportional_memory(rollup: &str) -> Option<u64> {
    let field = |name: &str| {
        let value = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    Some(field("Pss:")?.saturating_add(field("SwapPss:")?).saturating_mul(1024))
}

/// The bytes that a process and everything below it have written to files on disk, as far as this user may ask.
/// What is only set aside, or written through memory, is not in it.
pub(crate) fn bytes_written(pid: i32) -> u64 {
    let of = |pid: i32| {
        let text = read_kernel_file(format!("/proc/{pid}/io")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?;
        line.trim().parse::<u64>().ok()
    };
    process_tree(pid).into_iter().filter_map(of).fold(0, u64::saturating_add)
}

/// The keeper of a program: the process between it and the agent. `program` is its number as the sandbox
/// counts, which is how its first process counts too.
pub(crate) fn keeper_of(first: i32, program: u32) -> Option<i32> {
    let level = namespace_pids(first)?.len().checked_sub(1)?;
    let is_program = |pid: i32| {
        namespace_pids(pid).is_some_and(|pids| pids.get(level).copied() == Some(program))
    };
    // A warden may stand above the agent.
    let keepers = list_children(first).into_iter().flat_map(|pid| {
        let below = list_children(pid);
        std::iter::once(pid).chain(below)
    });
    keepers.into_iter().find(|keeper| list_children(*keeper).into_iter().any(is_program))
}

/// The numbers of a process, from this process's namespace inwards.
fn namespace_pids(pid: i32) -> Option<Vec<u32>> {
    let text = read_kernel_file(format!("/proc/{pid}/status")).ok()?;
    // The name, which is the guest's choice, comes first and holds no line break.
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// A process and everything below it.
fn process_tree(pid: i32) -> HashSet<i32> {
    let mut seen = HashSet::new();
    let mut todo = vec![pid];
    while let Some(pid) = todo.pop() {
        if seen.len() < MAX_PROCESSES && seen.insert(pid) {
            todo.extend(list_children(pid));
        }
    }
    seen
}

fn list_children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| read_kernel_file(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// What the kernel tells of one process.
struct Stat {
    /// Processor time, own and waited for.
    ticks: u64,
    threads: u64,
    /// Bytes of its address space, used or not.
    address_space: u64,
    /// Resident.
    pages: u64,
}

fn read_stat(pid: i32) -> Option<Stat> {
    let text = read_kernel_file(format!("/proc/{pid}/stat")).ok()?;
    // The name is the guest's choice and may hold anything: the fields start behind its last bracket.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = (11..=14).filter_map(field).sum();
    Some(Stat { ticks, threads: field(17)?, address_space: field(20)?, pages: field(21)? })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn own() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn sockets_are_counted_by_what_the_kernel_tells() {
        let told = "sockets: used 300\nTCP: inuse 4 orphan 0 tw 0 alloc 9 mem 1\n";
        assert_eq!(sockets_used(told), Some(300));
        assert_eq!(sockets_used("TCP: inuse 4"), None);
    }

    #[test]
    fn page_tables_and_swap_are_memory() {
        let told =
            "Name:\tVmPTE: 9 kB\nVmRSS:\t    9848 kB\nVmPTE:\t  525380 kB\nVmSwap:\t 20 kB\n";
        assert_eq!(sum_unseen_memory(told, &UNSEEN_MEMORY_FIELDS), 525_400 * 1024);
        assert_eq!(sum_unseen_memory(told, &[PAGE_TABLES_FIELD]), 525_380 * 1024);
        let kernel_thread = "Name:\tkthreadd\nThreads:\t1\n";
        assert_eq!(sum_unseen_memory(kernel_thread, &UNSEEN_MEMORY_FIELDS), 0);
    }

    #[test]
    fn pages_in_swap_that_processes_share_count_once() {
        let rollup = "Pss:  100 kB\nPss_Anon: 7 kB\nSwap:  800 kB\nSwapPss:  200 kB\n";
        assert_eq!(sum_proportional_memory(rollup), Some(300 * 1024));
        assert_eq!(sum_proportional_memory(""), None);
    }

    #[test]
    fn a_process_and_its_children_are_added_up() {
        let tally = tally_process_tree(own());
        assert!(tally.memory > 0 && tally.tasks > 0, "{tally:?}");
    }

    #[test]
    fn shared_pages_count_once() {
        let (resident, proportional) =
            (tally_process_tree(own()).memory, proportional_memory(own()));
        assert!(proportional > 0 && proportional <= resident, "{proportional} of {resident}");
    }

    #[test]
    fn a_program_is_found_below_its_keeper() {
        // The shell stands for the keeper, what it waits for is the program.
        let line = "exec 3<&0; cat <&3 & echo $!; wait";
        let mut keeper = Command::new("sh")
            .args(["-c", line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        let mut heard = std::io::BufReader::new(keeper.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut heard, &mut told).unwrap();
        let found = keeper_of(own(), told.trim().parse().unwrap());
        let expected = keeper.id().cast_signed();
        drop(keeper.stdin.take());
        keeper.wait().unwrap();
        assert_eq!(found, Some(expected));
        assert_eq!(keeper_of(own(), u32::MAX), None);
    }
}
