//! Engines with a sandbox on another host, killed where they stand: nothing is left there or here, as
//! counted from outside (C-31).

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sample;
use crate::sshd::Sshd;
use stockade_tck::{ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, MARK_VARIABLE, probe_bytes};

/// Rounds in which an engine is killed: in a sample, and in a long run.
const KILL_ROUNDS: [usize; 2] = [10, 50];
/// The time that C-31 allows.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Numbers without luck: the same ones each time.
struct SshKillTimingRng(u64);

impl SshKillTimingRng {
    fn next_below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn spawn_engine(sshd: &Sshd, base: &std::path::Path, mark: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_stockade-tck-engine"))
        .args(["ssh", "churn"])
        .env("STOCKADE_TCK_SSH_CONFIG", sshd.config())
        .env(ENGINE_STATE, base.join("state"))
        .env(ENGINE_WORKSPACE, base.join("workspace"))
        .env(MARK_VARIABLE, mark)
        // So that the connection's own processes can be told apart from everybody else's.
        .env("XDG_RUNTIME_DIR", base.join("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What is still there of anything that carries one of these texts, of the program that was carried there,
/// and of directories.
fn find_leftovers(sshd: &Sshd, needles: &[&str]) -> Vec<String> {
    let mut found = HostObserver::default().search(needles);
    found.extend(
        sshd.list_carried().iter().map(|pid| format!("process {pid} that was carried there")),
    );
    let dirs = fs::read_dir(sshd.cache().join("stockade/sandboxes")).into_iter().flatten();
    found.extend(dirs.flatten().map(|entry| entry.path().display().to_string()));
    found
}

#[test]
fn nothing_is_left_of_engines_killed_at_any_instant() {
    let sshd = Sshd::start();
    let base = tempfile::Builder::new().prefix("stockade-killed-").tempdir().unwrap();
    let workspace = base.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("probe"), probe_bytes()).unwrap();
    fs::set_permissions(workspace.join("probe"), fs::Permissions::from_mode(0o755)).unwrap();
    let mark = format!("sshkilled{}", std::process::id());
    // The connection stays for a moment in case another client wants it: its end is waited for now and
    // then, the end of everything else each time.
    let run = base.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    let connection = run.to_str().unwrap();
    let (mut dice, mut slowest) = (SshKillTimingRng(0x5eed), Duration::ZERO);
    let kills = sample::pick_rounds(KILL_ROUNDS);
    for round in 0..kills {
        let mut child = spawn_engine(&sshd, base.path(), &mark);
        if dice.next_below(4) > 0 {
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
            sleep(Duration::from_micros(dice.next_below(400_000)));
        } else {
            sleep(Duration::from_micros(dice.next_below(100_000)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        loop {
            let needles = [mark.as_str(), connection];
            let found = find_leftovers(&sshd, &needles[..if round % 10 == 0 { 2 } else { 1 }]);
            if found.is_empty() {
                break;
            }
            assert!(
                killed.elapsed() < CLEANUP_TIMEOUT,
                "round {round}, after {CLEANUP_TIMEOUT:?}: {found:?}"
            );
            sleep(Duration::from_millis(20));
        }
        slowest = slowest.max(killed.elapsed());
        let names = fs::read_dir(&workspace).unwrap().flatten().map(|entry| entry.file_name());
        let drafts = names.filter(|name| name.to_string_lossy().starts_with(".stockade"));
        assert_eq!(drafts.count(), 0, "something half-written is left in the workspace");
    }
    println!("{kills} kills: nothing left, the slowest after {slowest:?}");
}
