//! What this process and everything below it takes of the machine, and what the machine has left.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::machine::kib_field;

/// Ids of this process and of all its descendants.
fn list_process_tree() -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![std::process::id().to_string()];
    while let Some(pid) = todo.pop() {
        // A child is listed under the thread that made it.
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            todo.extend(children.split_whitespace().map(Into::into));
        }
        found.push(pid);
    }
    found
}

/// What a tree of processes takes at an instant.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResourceUsage {
    /// Resident memory. Files that are shared between processes count once for everybody, so only what is
    /// private counts.
    pub resident_kib: u64,
    /// Memory that is no longer available, including the kernel's own.
    pub unavailable_kib: u64,
    pub processes: u64,
    /// Open descriptors of the process that has most of them.
    pub descriptors: u64,
}

impl ResourceUsage {
    pub fn read() -> Self {
        let mut usage = Self { unavailable_kib: total_kib() - available_kib(), ..Self::default() };
        for pid in list_process_tree() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let field = |name| kib_field(&status, name).unwrap_or(0);
            usage.resident_kib += field("RssAnon:") + field("RssShmem:");
            usage.processes += 1;
            let open = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
            usage.descriptors = usage.descriptors.max(open as u64);
        }
        usage
    }

    /// The difference to what was taken before, divided among so many.
    pub fn each_since(&self, before: &Self, number: usize) -> Self {
        let each = |now: u64, then: u64| now.saturating_sub(then).div_ceil(number.max(1) as u64);
        Self {
            resident_kib: each(self.resident_kib, before.resident_kib),
            unavailable_kib: each(self.unavailable_kib, before.unavailable_kib),
            processes: each(self.processes, before.processes),
            descriptors: each(self.descriptors, before.descriptors),
        }
    }
}

fn memory_kib(name: &str) -> u64 {
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib_field(&told, name).unwrap_or(0)
}

fn total_kib() -> u64 {
    memory_kib("MemTotal:")
}

/// Memory that is to be had.
pub fn available_kib() -> u64 {
    memory_kib("MemAvailable:").min(total_kib())
}

/// Raises the number of descriptors that this process may open to what its owner allows, and returns it.
pub fn raise_descriptor_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}
