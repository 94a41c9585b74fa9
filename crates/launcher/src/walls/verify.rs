//! Reads every wall back from the kernel, as the last thing before the agent's first instruction. A
//! wall that is not there is named, and the sandbox ends. Trusts nothing that the builders said.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Signal, parent_process_death_signal};

use crate::base_namespaces::{Ground, read_namespace_id};
use crate::error::{At, Failure, Wall};
use crate::plan::{LaunchPlan, PlanWorkspace};
use crate::walls::{landlock, overlay, parent, rlimits};
use crate::wire::Proof;

/// What the kernel should say.
pub(crate) struct Expected<'a> {
    pub plan: &'a LaunchPlan,
    pub ground: &'a Ground,
    /// Every mount point there is, the root included, but for those in `deep`.
    pub mounts: Vec<&'a str>,
    /// Mount points that may have mounts of the host's below.
    pub deep: Vec<&'a Path>,
    pub landlock: Option<u32>,
}

pub(crate) fn refuse_missing_wall<T>(wall: Wall, detail: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::without_errno(wall, detail))
}

/// All of them, in the order in which they were built.
pub(crate) fn read_back(expected: &Expected<'_>) -> Result<Vec<Proof>, Failure> {
    let process = ProcessFiles::open()?;
    let status = ProcessStatus(process.read("status", Wall::Capabilities)?);
    let mountinfo = process.read("mountinfo", Wall::Root)?;
    let mounts = VerifiedMounts::parse(&mountinfo);
    let plan = expected.plan;
    let proofs = [
        (Wall::Namespaces, verify_namespaces(&process, expected.ground)?),
        (Wall::Identity, verify_identity(&process, plan)?),
        (Wall::Session, parent::prove_group()?),
        (Wall::ParentDeath, parent_death()?),
        (Wall::Cgroup, verify_cgroup(&process, plan)?),
        (Wall::Hostname, verify_hostname(plan)?),
        (Wall::Root, verify_root(plan, expected, &mounts)?),
        (Wall::Workspace, verify_workspace(plan, &mounts)?),
        (Wall::Mounts, verify_extra_mounts(plan, &mounts)?),
        (Wall::Proc, mounts.has(Wall::Proc, Path::new("/proc"), "ro")?),
        (Wall::Descriptors, verify_descriptors(&process)?),
        (Wall::Rlimits, rlimits::prove_rlimits(&plan.rlimits)?),
        (Wall::Capabilities, verify_capabilities(&status)?),
        (Wall::Landlock, second_wall(expected.landlock)?),
        (Wall::Seccomp, status.is(Wall::Seccomp, "Seccomp", "2")?),
    ];
    Ok(proofs.into_iter().map(|(wall, evidence)| Proof { wall, evidence }).collect())
}

/// What the kernel says about this process, behind one open directory.
pub(crate) struct ProcessFiles(pub OwnedFd);

impl ProcessFiles {
    pub(crate) fn open() -> Result<ProcessFiles, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, "/proc/self", flags, Mode::empty());
        opened.map(ProcessFiles).at(Wall::Proc, "/proc/self")
    }

    fn read(&self, name: &str, wall: Wall) -> Result<String, Failure> {
        let file =
            rustix::fs::openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .at(wall, name)?;
        read_all(&file, name, wall)
    }
}

/// The whole text of a kernel file that is open.
pub(crate) fn read_all(file: &OwnedFd, name: &str, wall: Wall) -> Result<String, Failure> {
    let mut text = Vec::new();
    loop {
        text.reserve(4096);
        let room = rustix::buffer::spare_capacity(&mut text);
        if rustix::io::read(file, room).at(wall, name)? == 0 {
            break;
        }
    }
    String::from_utf8(text).or_else(|_| refuse_missing_wall(wall, format!("{name} is not text")))
}

/// `/proc/self/status`, read once.
pub(crate) struct ProcessStatus(pub String);

impl ProcessStatus {
    fn field(&self, name: &str) -> &str {
        let of = |line: &'_ str| -> Option<usize> {
            line.strip_prefix(name)?.strip_prefix(':').map(|_| name.len() + 1)
        };
        let found = self.0.lines().find_map(|line| line.get(of(line)?..));
        found.unwrap_or_default().trim()
    }

    pub(crate) fn is(&self, wall: Wall, name: &str, value: &str) -> Result<String, Failure> {
        match self.field(name) {
            found if found == value => Ok(format!("{name}: {found}")),
            found => {
                refuse_missing_wall(wall, format!("{name} is {found:?} and should be {value:?}"))
            }
        }
    }
}

fn verify_namespaces(process: &ProcessFiles, ground: &Ground) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for (name, outside) in &ground.namespaces {
        match read_namespace_id(&process.0, name) {
            Some(inside) if inside != *outside => evidence.push(inside),
            Some(_) | None => {
                return refuse_missing_wall(Wall::Namespaces, format!("{name} is shared"));
            }
        }
    }
    Ok(evidence.join(" "))
}

fn verify_identity(process: &ProcessFiles, plan: &LaunchPlan) -> Result<String, Failure> {
    let uid = (rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw());
    let gid = (rustix::process::getgid().as_raw(), rustix::process::getegid().as_raw());
    if uid != (plan.uid, plan.uid) || gid != (plan.gid, plan.gid) {
        return refuse_missing_wall(Wall::Identity, format!("the ids are {uid:?} and {gid:?}"));
    }
    for (file, id) in [("uid_map", plan.uid), ("gid_map", plan.gid)] {
        let map = process.read(file, Wall::Identity)?;
        let fields: Vec<&str> = map.split_whitespace().collect();
        if !matches!(fields.as_slice(), [inside, _, "1"] if *inside == id.to_string()) {
            return refuse_missing_wall(
                Wall::Identity,
                format!("{file} maps more than one id: {map:?}"),
            );
        }
    }
    Ok(format!("uid {} gid {}, one of each mapped", plan.uid, plan.gid))
}

pub(crate) fn parent_death() -> Result<String, Failure> {
    match parent_process_death_signal().at(Wall::ParentDeath, "asking")? {
        Some(Signal::KILL) => Ok("SIGKILL".to_owned()),
        _ => refuse_missing_wall(Wall::ParentDeath, "no signal is set"),
    }
}

/// Inside, a group that was joined before the namespace was made is the top: `/`.
fn verify_cgroup(process: &ProcessFiles, plan: &LaunchPlan) -> Result<String, Failure> {
    let Some(asked) = &plan.cgroup else { return Ok("none asked for".to_owned()) };
    let text = process.read("cgroup", Wall::Cgroup)?;
    match text.lines().all(|line| line.ends_with(":/")) {
        true => Ok(format!("member of {}", asked.directories().len())),
        false => refuse_missing_wall(Wall::Cgroup, "a control group lies outside of its namespace"),
    }
}

fn verify_hostname(plan: &LaunchPlan) -> Result<String, Failure> {
    match rustix::system::uname().nodename().to_str() {
        Ok(name) if name == plan.hostname => Ok(name.to_owned()),
        _ => refuse_missing_wall(Wall::Hostname, "the name was not set"),
    }
}

/// Mount points with their options and the kind of their file system. Newer kernels list them in the order in
/// which they were made, which says nothing about what lies on top.
struct VerifiedMounts<'a>(Vec<VerifiedMount<'a>>);

struct VerifiedMount<'a> {
    id: &'a str,
    /// What it is mounted on.
    parent: &'a str,
    place: &'a str,
    options: &'a str,
    kind: &'a str,
}

impl<'a> VerifiedMounts<'a> {
    fn parse(text: &'a str) -> VerifiedMounts<'a> {
        let entry = |line: &'a str| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut fields = mount.split(' ');
            let (id, parent) = (fields.next()?, fields.next()?);
            let mut fields = fields.skip(2);
            let kind = file_system.split(' ').next()?;
            Some(VerifiedMount { id, parent, place: fields.next()?, options: fields.next()?, kind })
        };
        VerifiedMounts(text.lines().filter_map(entry).collect())
    }

    fn has(&self, wall: Wall, place: &Path, option: &str) -> Result<String, Failure> {
        let (name, options) = (place.display(), self.find(wall, place)?.options);
        match options.split(',').any(|found| found == option) {
            true => Ok(format!("{name} {options}")),
            false => refuse_missing_wall(wall, format!("{name} is {options}, not {option}")),
        }
    }

    fn find(&self, wall: Wall, place: &Path) -> Result<&VerifiedMount<'a>, Failure> {
        let escaped = escape_mount_path(place);
        let here = || self.0.iter().filter(|mounted| mounted.place == escaped);
        let found = here().find(|one| here().all(|other| other.parent != one.id));
        found.map_or_else(
            || refuse_missing_wall(wall, format!("{} is not mounted", place.display())),
            Ok,
        )
    }
}

/// The kernel writes space, tab, newline and backslash in octal.
fn escape_mount_path(place: &Path) -> String {
    let escapes = [("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")];
    let text = place.to_string_lossy().into_owned();
    escapes.iter().fold(text, |text, (from, to)| match text.contains(from) {
        true => text.replace(from, to),
        false => text,
    })
}

/// Whether a mount point is one of these, or lies below one.
fn below_any(deep: &[String], place: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    deep.iter().any(|top| place.strip_prefix(top.as_str()).is_some_and(below))
}

fn verify_root(
    plan: &LaunchPlan,
    expected: &Expected<'_>,
    mounts: &VerifiedMounts<'_>,
) -> Result<String, Failure> {
    let deep: Vec<String> = expected.deep.iter().map(|place| escape_mount_path(place)).collect();
    for VerifiedMount { place, .. } in &mounts.0 {
        if !expected.mounts.contains(place) && !below_any(&deep, place) {
            return refuse_missing_wall(Wall::Root, format!("{place} should not be mounted"));
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
        Ok(_) => refuse_missing_wall(Wall::Root, "a file could be made in it"),
    }
}

fn verify_workspace(plan: &LaunchPlan, mounts: &VerifiedMounts<'_>) -> Result<String, Failure> {
    let (wall, target) = (Wall::Workspace, plan.workspace_target.as_path());
    let option = if plan.read_only { "ro" } else { "rw" };
    mounts.has(wall, target, "nosuid")?;
    let evidence = mounts.has(wall, target, option)?;
    if let Some(alias) = &plan.workspace_alias {
        mounts.has(wall, alias, "nosuid")?;
        mounts.has(wall, alias, option)?;
    }
    match &plan.workspace {
        PlanWorkspace::Ephemeral { .. } | PlanWorkspace::Local { .. } => Ok(evidence),
        PlanWorkspace::Overlay { .. } | PlanWorkspace::Trial => {
            match mounts.find(wall, target)?.kind {
                overlay::OVERLAY_FS_TYPE => Ok(format!("{evidence}, an overlay")),
                kind => refuse_missing_wall(
                    wall,
                    format!("{} is a {kind}, not an overlay", target.display()),
                ),
            }
        }
    }
}

fn verify_extra_mounts(plan: &LaunchPlan, mounts: &VerifiedMounts<'_>) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for mount in &plan.mounts {
        let option = if mount.read_only { "ro" } else { "rw" };
        mounts.has(Wall::Mounts, &mount.target, "nosuid")?;
        evidence.push(mounts.has(Wall::Mounts, &mount.target, option)?);
    }
    Ok(evidence.join("; "))
}

/// The three standard streams, the pipe, the agent, the report, and the two that ask.
fn verify_descriptors(process: &ProcessFiles) -> Result<String, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::openat(&process.0, "fd", flags, Mode::empty())
        .at(Wall::Descriptors, "/proc/self/fd")?;
    count_descriptors(&open)
}

/// Counts what is open, through a directory of descriptors that was opened for it.
pub(crate) fn count_descriptors(open: &OwnedFd) -> Result<String, Failure> {
    let mut buffer = Vec::with_capacity(1024);
    let mut entries = rustix::fs::RawDir::new(open, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.at(Wall::Descriptors, "/proc/self/fd")?;
        count += usize::from(!entry.file_name().to_bytes().starts_with(b"."));
    }
    match count {
        8 => Ok("0-2 of its own, the pipe, and what execution closes".to_owned()),
        count => {
            refuse_missing_wall(Wall::Descriptors, format!("{count} are open and should be 8"))
        }
    }
}

fn verify_capabilities(status: &ProcessStatus) -> Result<String, Failure> {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        status.is(Wall::Capabilities, set, "0000000000000000")?;
    }
    let privileges = status.is(Wall::Capabilities, "NoNewPrivs", "1")?;
    Ok(format!("all five sets are empty, {privileges}"))
}

fn second_wall(abi: Option<u32>) -> Result<String, Failure> {
    match abi {
        Some(abi) => {
            landlock::prove_landlock().map(|evidence| format!("version {abi}: {evidence}"))
        }
        None => Ok("absent: given up, the kernel has none".to_owned()),
    }
}

/// The test's own process has no walls: every proof must refuse it, by the right name.
#[cfg(test)]
mod tests {
    use super::*;

    fn refused_wall<T>(result: Result<T, Failure>) -> Wall {
        result.err().map(|failure| failure.wall).unwrap()
    }

    #[test]
    fn a_process_without_walls_is_refused_by_every_proof() {
        let process = ProcessFiles::open().unwrap();
        let status = ProcessStatus(process.read("status", Wall::Capabilities).unwrap());
        let text = process.read("mountinfo", Wall::Root).unwrap();
        let mounts = VerifiedMounts::parse(&text);
        let plan = LaunchPlan { uid: u32::MAX - 1, hostname: "other".into(), ..Default::default() };
        assert_eq!(refused_wall(verify_identity(&process, &plan)), Wall::Identity);
        assert_eq!(refused_wall(parent::prove_group()), Wall::Session);
        assert_eq!(refused_wall(parent_death()), Wall::ParentDeath);
        assert_eq!(refused_wall(verify_hostname(&plan)), Wall::Hostname);
        assert_eq!(refused_wall(verify_workspace(&plan, &mounts)), Wall::Workspace);
        assert_eq!(refused_wall(mounts.has(Wall::Proc, Path::new("/proc"), "ro")), Wall::Proc);
        assert_eq!(refused_wall(verify_capabilities(&status)), Wall::Capabilities);
        assert_eq!(refused_wall(status.is(Wall::Seccomp, "Seccomp", "2")), Wall::Seccomp);
        let _more = [(); 4].map(|()| ProcessFiles::open().unwrap());
        assert_eq!(refused_wall(verify_descriptors(&process)), Wall::Descriptors);
    }

    #[test]
    fn what_lies_on_top_is_found_in_whatever_order_mounts_are_listed() {
        let root = "1 0 0:1 / / ro - tmpfs none ro\n";
        let below = "2 1 0:2 / /workspace ro - erofs x ro\n";
        let top = "3 2 0:3 / /workspace rw - ext4 x rw\n";
        for text in [[root, below, top].concat(), [top, root, below].concat()] {
            let mounts = VerifiedMounts::parse(&text);
            assert!(mounts.has(Wall::Workspace, Path::new("/workspace"), "rw").is_ok(), "{text}");
        }
    }

    #[test]
    fn a_mount_that_nobody_asked_for_is_not_expected() {
        let text = "1 0 0:1 / / ro - tmpfs none ro\n2 1 0:2 / /usr/lib rw - ext4 x rw\n";
        let mounts = VerifiedMounts::parse(text);
        let deep = [escape_mount_path(Path::new("/usr"))];
        let known = |place: &str| below_any(&deep, place) || place == "/";
        assert!(mounts.0.iter().all(|mounted| known(mounted.place)));
        assert!(!known("/usrlocal"));
        assert!(!known("/old_root"));
        assert_eq!(escape_mount_path(Path::new("/a b\\c")), "/a\\040b\\134c");
    }
}
