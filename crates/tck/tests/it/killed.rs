//! Engines killed where they stand, hundreds of times, at random instants: nothing is left, as
//! counted from outside (C-31).

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{ordinary, sample};
use rustix::process::{Pid, Signal, kill_process};
use stockade_backends::native::Native;
use stockade_core::Backend;
use stockade_engine::{Engine, EngineConfig, Verdict};
use stockade_tck::{ENGINE_STATE, ENGINE_WORKSPACE, HostObserver, MARK_VARIABLE, probe_bytes};

/// Rounds in which an engine is killed: in a sample, and in a long run.
const KILL_ROUNDS: [usize; 2] = [60, 252];
/// Engines that run and are killed at the same time.
const CONCURRENT_ENGINES: usize = 4;
/// The time that C-31 allows.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Whom the kill hits.
#[derive(Clone, Copy)]
enum KillTarget {
    Engine,
    EngineAndLauncher,
}

/// Numbers without luck: the same ones each time.
struct KillTimingRng(u64);

impl KillTimingRng {
    fn next_below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// An engine that was killed.
struct KilledEngine {
    pid: i32,
    /// Whom it had started.
    family: Vec<(i32, u64)>,
    at: Instant,
}

/// One place in which engines are killed, one after the other.
struct Ring {
    base: tempfile::TempDir,
    mark: String,
    dice: KillTimingRng,
    target: KillTarget,
}

impl Ring {
    fn new(number: usize, target: KillTarget) -> Self {
        let base = tempfile::Builder::new().prefix("stockade-killed-").tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let workspace = base.path().join("workspace");
        fs::create_dir(&workspace).unwrap();
        fs::write(workspace.join("probe"), probe_bytes()).unwrap();
        fs::set_permissions(workspace.join("probe"), fs::Permissions::from_mode(0o755)).unwrap();
        let mark = format!("killed{}x{number}x{}", std::process::id(), target as usize);
        Self { base, mark, dice: KillTimingRng(0x5eed + number as u64), target }
    }

    fn state(&self) -> PathBuf {
        self.base.path().join("state")
    }

    fn spawn_engine(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_stockade-tck-engine"))
            .args(["native", "churn"])
            .env(ENGINE_STATE, self.state())
            .env(ENGINE_WORKSPACE, self.base.path().join("workspace"))
            .env(MARK_VARIABLE, &self.mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Starts an engine and kills it: half of them before they have begun, half in the middle of it.
    fn kill_one(&mut self) -> KilledEngine {
        let mut child = self.spawn_engine();
        if self.dice.next_below(2) == 1 {
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
            sleep(Duration::from_micros(self.dice.next_below(60_000)));
        } else {
            sleep(Duration::from_micros(self.dice.next_below(30_000)));
        }
        let engine = Pid::from_child(&child);
        let pid = engine.as_raw_nonzero().get();
        // Held still, so that whom it had started can be written down.
        kill_process(engine, Signal::STOP).unwrap();
        let (launchers, family) = (list_children(pid), list_descendants(pid));
        if let KillTarget::EngineAndLauncher = self.target {
            for launcher in launchers.into_iter().filter_map(Pid::from_raw) {
                // It may not be a launcher yet, but it is about to become one.
                let _ = kill_process(launcher, Signal::KILL);
            }
        }
        kill_process(engine, Signal::KILL).unwrap();
        child.wait().unwrap();
        KilledEngine { pid, family, at: Instant::now() }
    }

    /// What would carry traces: the mark, throw-away sandboxes, and the last ones that were recorded.
    fn collect_needles(&self, killed: &KilledEngine) -> Vec<String> {
        let pid = killed.pid;
        let mut needles = vec![self.mark.clone(), format!("probe{pid}n"), format!("trial{pid}n")];
        let journal = fs::read_to_string(self.state().join("journal.jsonl")).unwrap_or_default();
        let recorded = journal.lines().rev().take(8);
        for id in recorded.filter_map(|line| line.split("\"sandbox\":\"").nth(1)?.split('"').next())
        {
            if !needles.iter().any(|needle| needle == id) {
                needles.push(id.to_owned());
            }
        }
        needles
    }

    /// One kill, and everything that has to hold after it. Says how many sandboxes had to be reaped.
    async fn run_round(&mut self) -> usize {
        let killed = self.kill_one();
        let until = killed.at + CLEANUP_TIMEOUT;
        until_none(until, "processes of a killed engine live on", || killed.list_living());
        let needles = self.collect_needles(&killed);
        let needles: Vec<&str> = needles.iter().map(String::as_str).collect();
        let backend: Arc<dyn Backend> = Arc::new(Native::new());
        let config = EngineConfig { reap_on_open: false, ..EngineConfig::at(self.state()) };
        let engine = Engine::open(config, vec![Arc::clone(&backend)]).await.unwrap();
        let reaped = engine.reap().await.unwrap().len();
        assert_eq!(engine.list().await.unwrap().leases, [], "leases are left");
        let listed = backend.list().await.unwrap();
        let left = listed.iter().find(|id| needles.contains(&id.as_str()));
        assert_eq!(left, None, "a sandbox is listed");
        let observer = HostObserver::new([std::env::temp_dir()]);
        until_none(until, "something is left", || {
            let mut found = observer.search(&needles);
            found.extend(killed.list_living().iter().map(|pid| format!("process {pid}")));
            found
        });
        let verdict = engine.journal().verify().unwrap();
        assert!(matches!(verdict, Verdict::Clean { .. }), "{verdict:?}");
        reaped
    }
}

impl KilledEngine {
    /// Those of its family that have not ended.
    fn list_living(&self) -> Vec<i32> {
        let lives = |known: &&(i32, u64)| birth_of(known.0) == Some(known.1);
        self.family.iter().filter(lives).map(|known| known.0).collect()
    }
}

fn until_none<T: std::fmt::Debug>(until: Instant, what: &str, look: impl Fn() -> Vec<T>) {
    loop {
        let left = look();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{what} after {CLEANUP_TIMEOUT:?}: {left:?}");
        sleep(Duration::from_millis(5));
    }
}

fn list_children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = |list: String| -> Vec<i32> {
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(pids).collect()
}

/// Everybody below a process, each with the time of its birth, which tells it from a later namesake.
fn list_descendants(pid: i32) -> Vec<(i32, u64)> {
    let below = |child: i32| {
        let own = birth_of(child).map(|born| (child, born));
        own.into_iter().chain(list_descendants(child)).collect::<Vec<_>>()
    };
    list_children(pid).into_iter().flat_map(below).collect()
}

/// When a process was born, if it lives.
fn birth_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let lives = !matches!(*fields.first()?, "Z" | "X");
    lives.then(|| fields.get(19)?.parse().ok()).flatten()
}

fn kill_many(target: KillTarget) {
    let (begun, kills) = (Instant::now(), sample::pick_rounds(KILL_ROUNDS));
    let ring = |number| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let (runtime, mut ring) = (runtime.unwrap(), Ring::new(number, target));
            (0..kills / CONCURRENT_ENGINES)
                .map(|_| runtime.block_on(ring.run_round()))
                .sum::<usize>()
        })
    };
    let rings: Vec<_> = (0..CONCURRENT_ENGINES).map(ring).collect();
    let reaped: usize = rings.into_iter().map(|ring| ring.join().unwrap()).sum();
    let took = begun.elapsed();
    println!(
        "{kills} kills in {took:?}: nothing left; {reaped} sandboxes were reaped by the next engine"
    );
}

#[test]
fn nothing_is_left_of_engines_killed_at_any_instant() {
    kill_many(KillTarget::Engine);
}

#[test]
fn nothing_is_left_of_engines_killed_together_with_their_launchers() {
    kill_many(KillTarget::EngineAndLauncher);
}

#[test]
fn nothing_is_left_of_an_ordinary_users_engines_either() {
    ordinary::run_as_ordinary_user(
        module_path!(),
        "nothing_is_left_of_engines_killed_together_with_their_launchers",
    );
}
