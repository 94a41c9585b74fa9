//! The machine that was measured on, and the versions of the programs that took part.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Programs whose versions are told if they are installed.
const VERSIONED_PROGRAMS: [&str; 10] = [
    "bwrap",
    "docker",
    "firejail",
    "nsjail",
    "podman",
    "qemu-system-x86_64",
    "rg",
    "runc",
    "runsc",
    "unshare",
];

const MAX_VERSION_CHARS: usize = 100;

/// What a reader must know to judge the figures.
#[derive(Debug, Clone)]
pub struct MachineFacts {
    pub date: String,
    pub kernel: String,
    pub processor: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub cgroups: &'static str,
    pub user: &'static str,
}

impl MachineFacts {
    pub fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let model =
            processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            date: time::OffsetDateTime::now_utc().date().to_string(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: model.map_or("not told", |(_, model)| model.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            memory_mib: kib_field(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0) / 1024,
            cgroups: cgroup_version(),
            user: if rustix::process::geteuid().is_root() { "root" } else { "an ordinary user" },
        }
    }
}

/// A number of a file of the kernel that has one field in each line.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cgroup_version() -> &'static str {
    let is_there = |path| fs::exists(path).unwrap_or(false);
    match (is_there("/sys/fs/cgroup/cgroup.controllers"), is_there("/sys/fs/cgroup/memory")) {
        (true, _) => "version 2",
        (false, true) => "version 1",
        (false, false) => "none",
    }
}

/// A program that is installed, and what it says of its version.
#[derive(Debug, Clone)]
pub struct ProgramVersion {
    pub program: &'static str,
    pub version: Option<String>,
}

/// The versions of Stockade and of every peer that is installed.
pub fn read_versions() -> Vec<ProgramVersion> {
    let beside = std::env::current_exe().map(|exe| exe.with_file_name("stockade"));
    let own = beside.ok().and_then(|path| ask_version("stockade", path));
    let peers =
        VERSIONED_PROGRAMS.into_iter().filter_map(|program| ask_version(program, program.into()));
    own.into_iter().chain(peers).collect()
}

fn ask_version(program: &'static str, path: PathBuf) -> Option<ProgramVersion> {
    let told = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&told.stdout);
    let version = told.status.success().then(|| first_line(&text)).filter(|line| !line.is_empty());
    Some(ProgramVersion { program, version })
}

/// The first line of a program's output, cleaned for terminals and pages.
pub fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(MAX_VERSION_CHARS).collect()
}
