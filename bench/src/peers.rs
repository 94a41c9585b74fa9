//! Other tools that do the same: run one program in a new sandbox and wait for it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::machine::first_line;
use crate::native::ProgramDir;

/// Another tool, as a command line.
pub struct Peer {
    pub name: &'static str,
    pub rounds: usize,
    words: Vec<OsString>,
    dir: PathBuf,
}

impl Peer {
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir(&self.dir);
        command
    }
}

/// The tools that are there, and why the others are not.
pub fn peers(place: &ProgramDir) -> (Vec<Peer>, Vec<String>) {
    let all = [
        stockade(place),
        unshare(place),
        bwrap(place),
        nsjail(place),
        firejail(place),
        runc(place),
        runsc(place),
        podman(place),
        docker(place),
    ];
    let mut present = Vec::new();
    let mut absent = Vec::new();
    for peer in all {
        match peer {
            Ok(peer) => present.push(peer),
            Err(reason) => absent.push(reason),
        }
    }
    (present, absent)
}

pub fn peer(name: &'static str, rounds: usize, dir: &Path, words: &[&str]) -> Result<Peer, String> {
    let found = Command::new(words[0])
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match found {
        Ok(_) => {
            let words = words.iter().map(OsString::from).collect();
            Ok(Peer { name, rounds, words, dir: dir.to_owned() })
        }
        Err(error) => Err(format!("{name}: {}: {error}", words[0])),
    }
}

/// The command itself, built beside this program.
fn stockade(place: &ProgramDir) -> Result<Peer, String> {
    let beside =
        std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("stockade");
    let path = beside.to_str().ok_or("stockade run: its path is not text")?;
    peer(
        "stockade run",
        usize::MAX,
        place.workspace(),
        &[path, "run", "--backend", "native", "--", "./true"],
    )
}

fn bwrap(place: &ProgramDir) -> Result<Peer, String> {
    let dir = place.workspace().to_str().ok_or("bwrap: the directory's name is not text")?;
    let words = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--symlink",
        "usr/bin",
        "/bin",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--bind",
        dir,
        "/workspace",
        "--chdir",
        "/workspace",
        "./true",
    ];
    peer("bwrap", usize::MAX, place.workspace(), &words)
}

/// The namespaces alone, with a `/proc` of their own: no root, no filter, no limit.
fn unshare(place: &ProgramDir) -> Result<Peer, String> {
    let words = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--uts",
        "--cgroup",
        "--time",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "./true",
    ];
    peer("unshare", usize::MAX, place.workspace(), &words).and_then(tried)
}

/// All of its namespaces are its default.
fn nsjail(place: &ProgramDir) -> Result<Peer, String> {
    let dir = place.workspace().to_str().ok_or("nsjail: the directory's name is not text")?;
    let workspace = format!("{dir}:/workspace");
    let words = [
        "nsjail",
        "--mode",
        "o",
        "--really_quiet",
        "--bindmount_ro",
        "/usr",
        "--symlink",
        "usr/lib:/lib",
        "--symlink",
        "usr/lib64:/lib64",
        "--symlink",
        "usr/bin:/bin",
        "--bindmount",
        "/dev/null",
        "--tmpfsmount",
        "/tmp",
        "--bindmount",
        &workspace,
        "--cwd",
        "/workspace",
        "--",
        "/workspace/true",
    ];
    peer("nsjail", usize::MAX, place.workspace(), &words).and_then(tried)
}

/// No profile, and what is nearest to the others' walls. It has no user namespace where its caller is root.
fn firejail(place: &ProgramDir) -> Result<Peer, String> {
    let words = [
        "firejail",
        "--quiet",
        "--noprofile",
        "--net=none",
        "--ipc-namespace",
        "--private-dev",
        "--caps.drop=all",
        "--nonewprivs",
        "--seccomp",
        "--",
        "./true",
    ];
    peer("firejail", 50, place.workspace(), &words).and_then(tried)
}

/// A tool whose command line was seen to work here: it may lack rights that being installed does not tell.
fn tried(peer: Peer) -> Result<Peer, String> {
    let name = peer.name;
    let done = peer.command().stdin(Stdio::null()).output();
    let done = done.map_err(|error| format!("{name}: {error}"))?;
    match done.status.success() {
        true => Ok(peer),
        false => {
            let reason = first_line(&String::from_utf8_lossy(&done.stderr));
            Err(format!("{name}: {}: {reason}", done.status))
        }
    }
}

fn runc(place: &ProgramDir) -> Result<Peer, String> {
    let bundle = lay_bundle(place, "runc")?;
    let name = format!("stockade-bench-{}", std::process::id());
    peer("runc run", 30, &bundle, &["runc", "run", &name])
}

/// On the platform that is its default, as root: without, it has neither this network nor these walls.
fn runsc(place: &ProgramDir) -> Result<Peer, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("runsc run: it is measured as root only".into());
    }
    let bundle = lay_bundle(place, "runsc")?;
    let root = format!("--root={}", place.workspace().join("runsc-root").display());
    let name = format!("stockade-bench-{}", std::process::id());
    let words = ["runsc", &root, "--network=none", "run", &name];
    peer("runsc run", 10, &bundle, &words).and_then(tried)
}

/// The bundle that a runtime describes by itself, with the program as all of its root.
fn lay_bundle(place: &ProgramDir, runtime: &str) -> Result<PathBuf, String> {
    let bundle = place.workspace().join(format!("{runtime}-bundle"));
    let rootfs = bundle.join("rootfs");
    let prepared = fs::create_dir_all(rootfs.join("proc"))
        .and_then(|()| fs::copy(&place.program, rootfs.join("true")).map(drop));
    prepared.map_err(|error| format!("{runtime}: its bundle: {error}"))?;
    let failed = |error: std::io::Error| format!("{runtime}: {error}");
    Command::new(runtime).arg("spec").current_dir(&bundle).status().map_err(failed)?;
    let config = bundle.join("config.json");
    let text = fs::read_to_string(&config).map_err(failed)?;
    let text =
        text.replace("\"terminal\": true", "\"terminal\": false").replace("\"sh\"", "\"/true\"");
    fs::write(&config, text).map_err(failed)?;
    Ok(bundle)
}

/// Podman has no engine that must run first.
fn podman(place: &ProgramDir) -> Result<Peer, String> {
    import_image("podman", place)
        .map_err(|reason| format!("podman run: {reason} (remedy: install podman)"))?;
    // Its own defaults are more than hosts allow that have lowered theirs.
    let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
    let run = ["podman", "run", "--rm", "--network", "none"];
    let program = ["localhost/stockade-bench:latest", "/true"];
    let words = [run.as_slice(), &limits, &program].concat();
    peer("podman run", 10, place.workspace(), &words).and_then(tried)
}

/// A running Docker engine, with an image made from the program alone.
pub fn docker(place: &ProgramDir) -> Result<Peer, String> {
    import_image("docker", place)
        .map_err(|_| "docker run: no engine answers (remedy: start dockerd)")?;
    let words = ["docker", "run", "--rm", "--network", "none", "stockade-bench:latest", "/true"];
    peer("docker run", 10, place.workspace(), &words)
}

fn import_image(engine: &str, place: &ProgramDir) -> Result<(), String> {
    let script = format!(
        "tar -C '{}' -c true | {engine} import - stockade-bench:latest",
        place.workspace().display()
    );
    let made = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("its image: {status}")),
        Err(error) => Err(error.to_string()),
    }
}
