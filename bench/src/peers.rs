//! Other tools that do the same: run one program in a new sandbox and wait for it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::native::Place;

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
pub fn peers(place: &Place) -> (Vec<Peer>, Vec<String>) {
    let all = [stockade(place), bwrap(place), runc(place), docker(place)];
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
fn stockade(place: &Place) -> Result<Peer, String> {
    let beside =
        std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("stockade");
    let path = beside.to_str().ok_or("stockade run: its path is not text")?;
    peer("stockade run", usize::MAX, place.workspace(), &[path, "run", "--", "./true"])
}

fn bwrap(place: &Place) -> Result<Peer, String> {
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

fn runc(place: &Place) -> Result<Peer, String> {
    let bundle = place.workspace().join("bundle");
    let rootfs = bundle.join("rootfs");
    let prepared = fs::create_dir_all(rootfs.join("proc"))
        .and_then(|()| fs::copy(&place.program, rootfs.join("true")).map(drop));
    prepared.map_err(|error| format!("runc: its bundle: {error}"))?;
    let made = Command::new("runc").arg("spec").current_dir(&bundle).status();
    made.map_err(|error| format!("runc: {error}"))?;
    let config = bundle.join("config.json");
    let text = fs::read_to_string(&config).map_err(|error| format!("runc: {error}"))?;
    let text =
        text.replace("\"terminal\": true", "\"terminal\": false").replace("\"sh\"", "\"/true\"");
    fs::write(&config, text).map_err(|error| format!("runc: {error}"))?;
    let name = format!("stockade-bench-{}", std::process::id());
    peer("runc run", 30, &bundle, &["runc", "run", &name])
}

/// A running Docker engine, with an image made from the program alone.
pub fn docker(place: &Place) -> Result<Peer, String> {
    let script = format!(
        "tar -C '{}' -c true | docker import - stockade-bench:latest",
        place.workspace().display()
    );
    let made = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => {
            let words =
                ["docker", "run", "--rm", "--network", "none", "stockade-bench:latest", "/true"];
            peer("docker run", 10, place.workspace(), &words)
        }
        Ok(_) | Err(_) => Err("docker run: no engine answers (remedy: start dockerd)".into()),
    }
}
