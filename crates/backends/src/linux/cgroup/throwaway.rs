//! Groups made only to see whether it can be done. No lease speaks of them, so that their names must
//! say whose they are: what a process left that is gone, the next one removes.

use std::fs;
use std::path::Path;

/// The beginnings of names that are given to nothing else.
const KINDS: [&str; 2] = ["probe", "trial"];

/// A name for something this process makes only to see whether it can.
pub(crate) fn name(kind: &'static str, number: u32) -> String {
    format!("{kind}{}n{number}", std::process::id())
}

/// Removes what processes left that are gone. The kernel keeps a group that has anybody in it.
pub(super) fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let maker = entry.file_name().to_str().and_then(maker);
        if maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that made something of this name, if it is such a name.
fn maker(name: &str) -> Option<u32> {
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(kind))?;
    let (pid, number) = rest.split_once('n')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        // Beyond what the kernel gives out.
        let (dead, alive) = ("probe4194305n3", name("trial", 1));
        for group in [dead, &alive, "sandboxid", "probexn1"] {
            fs::create_dir(parent.path().join(group)).unwrap();
        }
        sweep(parent.path());
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["probexn1", "sandboxid", &alive]);
    }
}
