//! Groups without an owner. Those made only for a probe have no lease, so that their names must tell which
//! process made them. Of others the lease may be gone, with the state directory of an engine that was killed.
//! What is left of either, the next engine removes.

use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The prefixes of throwaway names, which are given to nothing else.
const THROWAWAY_PREFIXES: [&str; 2] = ["probe", "trial"];

/// The age of an empty group that will never be used again: a sandbox enters its group within
/// seconds of its making, and leaves it only at its end.
const MIN_ABANDONED_AGE: Duration = Duration::from_secs(60);

/// A name for something this process makes only to see whether it can.
pub(crate) fn throwaway_name(kind: &'static str, number: u32) -> String {
    format!("{kind}{}n{number}", std::process::id())
}

/// Removes groups without an owner. The kernel keeps a group that has a process in it.
pub(super) fn remove_forsaken_groups(parent: &Path) {
    // The kernel counts a group as a link of the one that it lies in: with two there is none to be looked at.
    if fs::metadata(parent).is_ok_and(|found| found.nlink() == 2) {
        return;
    }
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for group in groups.filter(|group| is_orphan(group) || is_old(group)) {
        let _ = fs::remove_dir(group.path());
    }
}

fn is_orphan(group: &DirEntry) -> bool {
    group.file_name().to_str().is_some_and(is_forsaken)
}

/// Whether it is the name of something that was made only for a probe, by a process that is gone.
pub(crate) fn is_forsaken(name: &str) -> bool {
    parse_maker_pid(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn is_old(group: &DirEntry) -> bool {
    let made = group.metadata().and_then(|found| found.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MIN_ABANDONED_AGE))
}

/// The process that made something of this name, if it is such a name.
fn parse_maker_pid(name: &str) -> Option<u32> {
    let rest = THROWAWAY_PREFIXES.iter().find_map(|kind| name.strip_prefix(kind))?;
    let (pid, number) = rest.split_once('n')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_will_come_back_for_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        // Beyond what the kernel gives out.
        let (dead, alive) = ("probe4194305n3", throwaway_name("trial", 1));
        for group in [dead, &alive, "sandboxid", "probexn1", "oldone"] {
            fs::create_dir(parent.path().join(group)).unwrap();
        }
        let old = fs::File::open(parent.path().join("oldone")).unwrap();
        old.set_modified(std::time::SystemTime::now() - 2 * MIN_ABANDONED_AGE).unwrap();
        remove_forsaken_groups(parent.path());
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["probexn1", "sandboxid", &alive]);
    }
}
