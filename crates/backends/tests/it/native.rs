//! The native backend with real walls, through the engine.

#![cfg(feature = "native")]
use std::sync::Arc;

use stockade_backends::native::Native;
use stockade_core::*;
use stockade_engine::*;

async fn engine() -> (Engine, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let config = EngineConfig::at(state.path().join("state"));
    (Engine::open(config, vec![Arc::new(Native::new())]).await.unwrap(), state)
}

async fn output(engine: &Engine, spec: SandboxSpec, command: Command) -> (Outcome, String, String) {
    let (execution, mut follower) = engine.run_followed(spec, command).await.unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(event) = follower.next().await {
        if let OutputEvent::Output { stream, data, .. } = event {
            match stream {
                StreamId::Stdout => out.extend_from_slice(&data),
                StreamId::Stderr => err.extend_from_slice(&data),
            }
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    execution.close().await.unwrap();
    (execution.outcome().await, text(out), text(err))
}

#[tokio::test]
async fn a_shell_runs_inside_and_sees_little() {
    let (engine, _state) = engine().await;
    for capabilities in engine.detect().await {
        assert_eq!(capabilities.unavailable, None);
    }
    let line =
        "id -u; pwd; ls /; ls /home /root; cat /proc/self/status | grep -E 'Cap|Seccomp|NoNew'";
    let (outcome, out, err) = output(&engine, SandboxSpec::default(), Command::shell(line)).await;
    println!("{outcome:?}\n{out}\n{err}");
    assert!(out.starts_with("1000\n/workspace\n"), "{out}{err}");
}

fn overlay(base: &std::path::Path) -> Workspace {
    let layer = |name: &str| {
        std::fs::create_dir(base.join(name)).unwrap();
        HostPath::try_from(base.join(name)).unwrap()
    };
    Workspace::Overlay(OverlayDirs {
        lower: layer("lower"),
        upper: layer("upper"),
        work: layer("work"),
    })
}

#[tokio::test]
async fn what_a_copy_on_write_workspace_holds_counts_towards_the_disk_limit() {
    let (engine, state) = engine().await;
    let mut spec = SandboxSpec { workspace: overlay(state.path()), ..SandboxSpec::default() };
    spec.limits.disk = Some(Bytes::mib(4));
    spec.without.insert(Feature::DiskLimit);
    let line = "n=0; while :; do n=$((n+1)); head -c 100000 /dev/zero > $n; done";
    let (outcome, _, err) = output(&engine, spec, Command::shell(line)).await;
    assert_eq!(outcome.ending, Ending::LimitExceeded(LimitKind::Disk), "{err}");
    assert!(state.path().join("upper/1").exists() && !state.path().join("lower/1").exists());
}

#[tokio::test]
async fn one_that_somebody_took_down_is_not_alive_and_not_given_by_a_pool() {
    let (engine, _state) = engine().await;
    let spec = SandboxSpec::default();
    let pool = PoolSpec { minimum: 2, ..PoolSpec::of(spec.clone()) };
    let pool = engine.open_pool(pool).await.unwrap();
    let filled = async {
        while pool.status().ready < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), filled).await.unwrap();
    let leases = engine.list().await.unwrap().leases;
    let ready: Vec<_> = leases.into_iter().filter(|lease| lease.body.ready).collect();
    let stranger = Native::new();
    for lease in &ready {
        stranger.destroy(&lease.body.id).await.unwrap();
    }
    let id = engine.create(spec).await.unwrap();
    assert!(!ready.iter().any(|lease| lease.body.id == id), "a dead one was given");
    let execution = engine.exec(&id, Command::program(["true"])).await.unwrap();
    assert!(execution.outcome().await.success());

    let mine = engine.sandbox(&id).unwrap();
    assert!(mine.alive());
    stranger.destroy(&id).await.unwrap();
    assert!(!mine.alive());
    engine.close().await.unwrap();
    assert!(engine.list().await.unwrap().leases.is_empty());
}

/// The control groups of a sandbox, in whichever hierarchies it has any.
fn groups(below: &std::path::Path, id: &SandboxId) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(below).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let found = directories.map(|entry| match entry.file_name() == id.as_str() {
        true => vec![entry.path()],
        false => groups(&entry.path(), id),
    });
    found.flatten().collect()
}

#[tokio::test]
async fn walls_are_not_built_at_the_guests_pace() {
    let (engine, _state) = engine().await;
    let mut spec = SandboxSpec::default();
    spec.limits.cpu_rate = Some(Millicores(10));
    if !engine.detect().await.iter().any(|native| native.has(Feature::CpuRateLimit)) {
        println!("skipped: nothing here holds a sandbox to a rate of the processor");
        return;
    }
    // Whether a short excess is noticed depends on where in it the kernel looks.
    for _ in 0..5 {
        let id = engine.create(spec.clone()).await.unwrap();
        let told = groups("/sys/fs/cgroup".as_ref(), &id).into_iter();
        let told = told.filter_map(|group| std::fs::read_to_string(group.join("cpu.stat")).ok());
        let told: Vec<_> = told.filter(|told| told.contains("nr_throttled")).collect();
        assert!(!told.is_empty() && told.iter().all(|told| told.contains("nr_throttled 0\n")));
    }
    engine.close().await.unwrap();
}

mod needs_python {
    use super::*;

    #[tokio::test]
    async fn many_threads_fit_into_a_small_memory_limit() {
        let (engine, _state) = engine().await;
        let program = "import threading,time\n\
        threads=[threading.Thread(target=time.sleep,args=(0.2,)) for _ in range(60)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]; print('done')";
        let mut spec = SandboxSpec::default();
        spec.limits.memory = Some(Bytes::mib(128));
        spec.without.insert(Feature::MemoryLimit);
        let (outcome, out, err) =
            output(&engine, spec, Command::program(["python3", "-c", program])).await;
        assert_eq!((outcome.ending, out.as_str()), (Ending::Exited(0), "done\n"), "{err}");
    }

    #[tokio::test]
    async fn memory_beyond_the_limit_is_named_as_the_reason() {
        let (engine, _state) = engine().await;
        let mut spec = SandboxSpec::default();
        spec.limits.memory = Some(Bytes::mib(64));
        spec.without.insert(Feature::MemoryLimit);
        let program = "x = bytearray(200 << 20); import time; time.sleep(30)";
        let (outcome, _, err) =
            output(&engine, spec, Command::program(["python3", "-c", program])).await;
        assert_eq!(outcome.ending, Ending::LimitExceeded(LimitKind::Memory), "{err}");
    }
}
