//! Reads every wall back from the kernel, as the last thing before the agent's first instruction. A
//! wall that is not there is named, and the sandbox ends. Trusts nothing that the builders said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, parent_process_death_signal};

use crate::error::{At, Failure, Wall};
use crate::ground::{Ground, namespace_inode};
use crate::plan::LaunchPlan;
use crate::walls::{landlock, rlimits};
use crate::wire::Proof;

/// What the kernel should say.
pub(crate) struct Expected<'a> {
    pub plan: &'a LaunchPlan,
    pub ground: &'a Ground,
    /// Every mount point there is, the root included.
    pub mounts: Vec<PathBuf>,
    /// Those of them that may have mounts of the host's below.
    pub deep: Vec<PathBuf>,
    pub landlock: Option<u32>,
}

fn missing<T>(wall: Wall, detail: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::without_errno(wall, detail))
}

/// All of them, in the order in which they were built.
pub(crate) fn read_back(expected: &Expected<'_>) -> Result<Vec<Proof>, Failure> {
    let status = Status::read()?;
    let mounts = read("/proc/self/mountinfo", Wall::Root)?;
    let mounts = Mounts::parse(&mounts);
    let plan = expected.plan;
    let proofs = [
        (Wall::Namespaces, namespaces(expected.ground)?),
        (Wall::Identity, identity(plan)?),
        (Wall::ParentDeath, parent_death()?),
        (Wall::Cgroup, cgroup(plan)?),
        (Wall::Hostname, hostname(plan)?),
        (Wall::Root, root(plan, expected, &mounts)?),
        (Wall::Workspace, workspace(plan, &mounts)?),
        (Wall::Mounts, extra(plan, &mounts)?),
        (Wall::Proc, mounts.has(Wall::Proc, Path::new("/proc"), "ro")?),
        (Wall::Descriptors, descriptors()?),
        (Wall::Rlimits, rlimits::prove(&plan.rlimits)?),
        (Wall::Capabilities, capabilities(&status)?),
        (Wall::Landlock, second_wall(expected.landlock)?),
        (Wall::Seccomp, status.is(Wall::Seccomp, "Seccomp", "2")?),
    ];
    Ok(proofs.into_iter().map(|(wall, evidence)| Proof { wall, evidence }).collect())
}

fn read(path: &str, wall: Wall) -> Result<String, Failure> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .at(wall, path)?;
    let mut text = Vec::with_capacity(16 * 1024);
    let mut piece = [0; 16 * 1024];
    loop {
        match rustix::io::read(&file, &mut piece).at(wall, path)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            count => text.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}

/// `/proc/self/status`, read once.
struct Status(String);

impl Status {
    fn read() -> Result<Status, Failure> {
        read("/proc/self/status", Wall::Capabilities).map(Status)
    }

    fn field(&self, name: &str) -> &str {
        let line = |line: &'_ str| -> Option<usize> {
            line.strip_prefix(name)?.strip_prefix(':').map(|_| name.len() + 1)
        };
        let found = self.0.lines().find_map(|text| text.get(line(text)?..));
        found.unwrap_or_default().trim()
    }

    fn is(&self, wall: Wall, name: &str, value: &str) -> Result<String, Failure> {
        match self.field(name) {
            found if found == value => Ok(format!("{name}: {found}")),
            found => missing(wall, format!("{name} is {found:?} and should be {value:?}")),
        }
    }
}

fn namespaces(ground: &Ground) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for (name, outside) in &ground.namespaces {
        match namespace_inode(name) {
            Some(inside) if inside != *outside => evidence.push(format!("{name}:{inside}")),
            Some(_) | None => return missing(Wall::Namespaces, format!("{name} is shared")),
        }
    }
    Ok(evidence.join(" "))
}

fn identity(plan: &LaunchPlan) -> Result<String, Failure> {
    let uid = (rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw());
    let gid = (rustix::process::getgid().as_raw(), rustix::process::getegid().as_raw());
    if uid != (plan.uid, plan.uid) || gid != (plan.gid, plan.gid) {
        return missing(Wall::Identity, format!("the ids are {uid:?} and {gid:?}"));
    }
    for (file, id) in [("uid_map", plan.uid), ("gid_map", plan.gid)] {
        let map = read(&format!("/proc/self/{file}"), Wall::Identity)?;
        let fields: Vec<&str> = map.split_whitespace().collect();
        if !matches!(fields.as_slice(), [inside, _, "1"] if *inside == id.to_string()) {
            return missing(Wall::Identity, format!("{file} maps more than one id: {map:?}"));
        }
    }
    Ok(format!("uid {} gid {}, one of each mapped", plan.uid, plan.gid))
}

fn parent_death() -> Result<String, Failure> {
    match parent_process_death_signal().at(Wall::ParentDeath, "asking")? {
        Some(Signal::KILL) => Ok("SIGKILL".to_owned()),
        _ => missing(Wall::ParentDeath, "no signal is set"),
    }
}

/// Inside, a group that was joined before the namespace was made is the top: `/`.
fn cgroup(plan: &LaunchPlan) -> Result<String, Failure> {
    let Some(asked) = &plan.cgroup else { return Ok("none asked for".to_owned()) };
    let text = read("/proc/self/cgroup", Wall::Cgroup)?;
    match text.lines().all(|line| line.ends_with(":/")) {
        true => Ok(format!("member of {}", asked.directories().len())),
        false => missing(Wall::Cgroup, "a control group lies outside of its namespace"),
    }
}

fn hostname(plan: &LaunchPlan) -> Result<String, Failure> {
    match rustix::system::uname().nodename().to_str() {
        Ok(name) if name == plan.hostname => Ok(name.to_owned()),
        _ => missing(Wall::Hostname, "the name was not set"),
    }
}

/// Mount points with their options, the topmost of each place.
struct Mounts(BTreeMap<PathBuf, String>);

impl Mounts {
    fn parse(text: &str) -> Mounts {
        let entry = |line: &str| {
            let mut fields = line.split(' ').skip(4);
            Some((PathBuf::from(unescape(fields.next()?)), fields.next()?.to_owned()))
        };
        Mounts(text.lines().filter_map(entry).collect())
    }

    fn has(&self, wall: Wall, place: &Path, option: &str) -> Result<String, Failure> {
        let place_name = place.display();
        match self.0.get(place) {
            Some(options) if options.split(',').any(|o| o == option) => {
                Ok(format!("{place_name} {options}"))
            }
            Some(options) => missing(wall, format!("{place_name} is {options}, not {option}")),
            None => missing(wall, format!("{place_name} is not mounted")),
        }
    }
}

/// The kernel writes space, tab, newline and backslash in octal.
fn unescape(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn root(plan: &LaunchPlan, expected: &Expected<'_>, mounts: &Mounts) -> Result<String, Failure> {
    for place in mounts.0.keys() {
        let known = expected.mounts.contains(place)
            || expected.deep.iter().any(|deep| place.starts_with(deep));
        if !known {
            return missing(Wall::Root, format!("{} should not be mounted", place.display()));
        }
    }
    if plan.copy_on_write.is_some() {
        return mounts.has(Wall::Root, Path::new("/"), "nosuid");
    }
    let evidence = mounts.has(Wall::Root, Path::new("/"), "ro")?;
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, "/.stockade-probe", flags, Mode::from_raw_mode(0o600)) {
        Err(Errno::ROFS | Errno::ACCESS) => Ok(format!("{evidence}, {} mounts", mounts.0.len())),
        Err(errno) => Err(Failure::new(Wall::Root, errno, "the probe was refused otherwise")),
        Ok(_) => missing(Wall::Root, "a file could be made in it"),
    }
}

fn workspace(plan: &LaunchPlan, mounts: &Mounts) -> Result<String, Failure> {
    let option = if plan.read_only { "ro" } else { "rw" };
    mounts.has(Wall::Workspace, &plan.workspace_target, "nosuid")?;
    mounts.has(Wall::Workspace, &plan.workspace_target, option)
}

fn extra(plan: &LaunchPlan, mounts: &Mounts) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for mount in &plan.mounts {
        let option = if mount.read_only { "ro" } else { "rw" };
        mounts.has(Wall::Mounts, &mount.target, "nosuid")?;
        evidence.push(mounts.has(Wall::Mounts, &mount.target, option)?);
    }
    Ok(evidence.join("; "))
}

/// The three standard streams, the pipe, the agent, the report, and the one that lists them.
fn descriptors() -> Result<String, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, "/proc/self/fd", flags, Mode::empty())
        .at(Wall::Descriptors, "/proc/self/fd")?;
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = rustix::fs::RawDir::new(&open, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.at(Wall::Descriptors, "/proc/self/fd")?;
        count += usize::from(!entry.file_name().to_bytes().starts_with(b"."));
    }
    match count {
        7 => Ok("0-2 of its own, the pipe, and what execution closes".to_owned()),
        count => missing(Wall::Descriptors, format!("{count} are open and should be 7")),
    }
}

fn capabilities(status: &Status) -> Result<String, Failure> {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        status.is(Wall::Capabilities, set, "0000000000000000")?;
    }
    let privileges = status.is(Wall::Capabilities, "NoNewPrivs", "1")?;
    Ok(format!("all five sets are empty, {privileges}"))
}

fn second_wall(abi: Option<u32>) -> Result<String, Failure> {
    match abi {
        Some(abi) => landlock::prove().map(|evidence| format!("version {abi}: {evidence}")),
        None => Ok("absent: given up, the kernel has none".to_owned()),
    }
}
