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
    fn a_process_and_its_children_are_added_up() {
        let own = below(std::process::id().cast_signed());
        assert!(own.memory > 0);
    }
}
