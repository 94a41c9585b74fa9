//! Looking for what is left of a sandbox from outside, without asking the backend. An observer must
//! never change anything.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::SandboxId;

/// Sees from outside what is left of a sandbox.
pub trait Observer: Send + Sync {
    /// What of this sandbox is still on the host: processes, mounts, cgroups, sockets, directories.
    fn leftovers(&self, id: &SandboxId) -> Vec<String>;

    /// What still carries this text, which the kit puts into the environment of everything it runs.
    fn marked(&self, mark: &str) -> Vec<String>;

    /// What of this sandbox other users of the host could read or change, with its mode.
    fn exposed(&self, id: &SandboxId) -> Vec<String> {
        HostObserver::new([std::env::temp_dir()]).exposed(id)
    }
}

/// Scans the host: processes by arguments, environment and cgroup; mounts; cgroups; abstract sockets;
/// and the names in the directories it was given.
#[derive(Debug, Clone, Default)]
pub struct HostObserver {
    directories: Vec<PathBuf>,
}

/// Depth to which a cgroup hierarchy or a directory is searched.
const MAX_SEARCH_DEPTH: usize = 8;

impl HostObserver {
    /// An observer that also looks into these directories: temporary files, run-time state.
    pub fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { directories: directories.into_iter().collect() }
    }

    /// What carries any of these texts, found in one pass.
    pub fn search(&self, needles: &[&str]) -> Vec<String> {
        let mut found = find_processes(needles);
        found.extend(find_mounts(needles));
        found.extend(find_sockets(needles));
        find_names(Path::new("/sys/fs/cgroup"), needles, MAX_SEARCH_DEPTH, &mut found);
        for directory in self.directories.iter().cloned().chain(private_places()) {
            find_names(&directory, needles, MAX_SEARCH_DEPTH, &mut found);
        }
        found
    }
}

impl Observer for HostObserver {
    fn leftovers(&self, id: &SandboxId) -> Vec<String> {
        self.search(&[id.as_str()])
    }

    fn marked(&self, mark: &str) -> Vec<String> {
        self.search(&[mark])
    }

    fn exposed(&self, id: &SandboxId) -> Vec<String> {
        let mut found = Vec::new();
        for directory in self.directories.iter().cloned().chain(private_places()) {
            if !fs::metadata(&directory).is_ok_and(|seen| seen.mode() & OTHERS_PASSAGE != 0) {
                continue;
            }
            find_exposed(&directory, Some(id.as_str()), MAX_SEARCH_DEPTH, &mut found);
        }
        found
    }
}

/// Rights of the group and of others to read or write.
const OTHERS_ACCESS: u32 = 0o066;
/// Rights of the group and of others to pass through a directory.
const OTHERS_PASSAGE: u32 = 0o011;

/// Entries that other users have a right to and can get to, under a name with this text in it and below; all
/// of them without a text.
fn find_exposed(directory: &Path, needle: Option<&str>, depth: usize, found: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // The mode of a symbolic link says nothing; what it leads to is looked at where it lies.
        let Ok(seen) = entry.metadata() else { continue };
        if seen.is_symlink() {
            continue;
        }
        let name = entry.file_name();
        let sought = needle.filter(|needle| !contains_any(name.as_encoded_bytes(), &[*needle]));
        if sought.is_none() && seen.mode() & OTHERS_ACCESS != 0 {
            found.push(format!("{} (mode {:o})", entry.path().display(), seen.mode() & 0o7777));
        }
        if seen.is_dir() && seen.mode() & OTHERS_PASSAGE != 0 {
            find_exposed(&entry.path(), sought, depth, found);
        }
    }
}

/// Where backends keep private directories of this user's sandboxes, independent of TMPDIR.
fn private_places() -> impl Iterator<Item = PathBuf> {
    let own = format!("stockade-{}", rustix::process::geteuid().as_raw());
    let entries =
        ["/var/tmp", "/tmp"].into_iter().flat_map(|shared| fs::read_dir(shared).into_iter());
    let is_own = move |name: &str| {
        name.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let named = entries.flatten().flatten();
    named
        .filter(move |entry| entry.file_name().to_str().is_some_and(&is_own))
        .map(|entry| entry.path())
}

fn contains_any(haystack: &[u8], needles: &[&str]) -> bool {
    let holds =
        |needle: &&str| haystack.windows(needle.len()).any(|part| part == needle.as_bytes());
    needles.iter().any(holds)
}

fn list_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn find_processes(needles: &[&str]) -> Vec<String> {
    let told = |pid: u32| {
        let from = ["cmdline", "environ", "cgroup"].into_iter().find(|file| {
            fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|held| contains_any(&held, needles))
        });
        from.map(|file| format!("process {pid} (by its {file})"))
    };
    list_pids().filter(|pid| *pid != std::process::id()).filter_map(told).collect()
}

/// Mounts of every mount namespace there is, each looked at once.
fn find_mounts(needles: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for pid in list_pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let lines = table.lines().filter(|line| contains_any(line.as_bytes(), needles));
        found.extend(lines.map(|line| format!("mount seen by process {pid}: {line}")));
    }
    found
}

fn find_sockets(needles: &[&str]) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let lines = table.lines().filter(|line| contains_any(line.as_bytes(), needles));
    lines.map(|line| format!("socket: {line}")).collect()
}

fn find_names(directory: &Path, needles: &[&str], depth: usize, found: &mut Vec<String>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if contains_any(entry.file_name().as_encoded_bytes(), needles) {
            found.push(entry.path().display().to_string());
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find_names(&entry.path(), needles, depth, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_environment_and_gone_with_it() {
        let mark = format!("observed{}", std::process::id());
        let mut child = std::process::Command::new("cat")
            .env("STOCKADE_TEST_MARK", &mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Only once it answers has the kernel set up its environment.
        child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let observer = HostObserver::default();
        let seen = observer.marked(&mark);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.iter().any(|found| found.contains(&child.id().to_string())), "{seen:?}");
        assert_eq!(observer.marked(&mark), Vec::<String>::new());
    }

    #[test]
    fn what_others_can_get_to_and_have_a_right_to_is_exposed_and_nothing_else() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let path = root.path().join(name);
            match name.ends_with("-dir") {
                true => fs::create_dir(&path).unwrap(),
                false => fs::write(&path, "").unwrap(),
            }
            (path, fs::Permissions::from_mode(mode))
        };
        let made = [
            make("passed-sandboxabc-dir", 0o711),
            make("passed-sandboxabc-dir/closed", 0o600),
            make("passed-sandboxabc-dir/read", 0o604),
            make("passed-sandboxabc-dir/written", 0o620),
            make("closed-sandboxabc-dir", 0o700),
            make("closed-sandboxabc-dir/out-of-reach", 0o666),
            make("of-another-sandbox", 0o666),
        ];
        made.into_iter().for_each(|(path, mode)| fs::set_permissions(path, mode).unwrap());
        let observer = HostObserver::new([root.path().to_owned()]);
        let mut seen = observer.exposed(&"sandboxabc".parse().unwrap());
        seen.sort();
        let shown = |name: &str, mode: &str| {
            format!(
                "{} (mode {mode})",
                root.path().join("passed-sandboxabc-dir").join(name).display()
            )
        };
        assert_eq!(seen, [shown("read", "604"), shown("written", "620")]);
    }

    #[test]
    fn a_directory_is_found_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("a/sandboxabc");
        fs::create_dir_all(&below).unwrap();
        let observer = HostObserver::new([root.path().to_owned()]);
        let seen = observer.leftovers(&"sandboxabc".parse().unwrap());
        assert_eq!(seen, [below.display().to_string()]);
    }
}
