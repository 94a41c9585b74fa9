//! The landlock backend with real walls, through the engine.

#![cfg(feature = "landlock")]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::landlock::Landlock;
use stockade_core::*;
use stockade_engine::*;

async fn engine() -> (Engine, tempfile::TempDir) {
    let state = tempfile::tempdir().unwrap();
    let config = EngineConfig::at(state.path().join("state"));
    (Engine::open(config, vec![Arc::new(Landlock::new())]).await.unwrap(), state)
}

/// Runs a line of shell to its end: standard output and error together.
async fn shell(engine: &Engine, spec: SandboxSpec, line: &str) -> (Outcome, String) {
    let command = Command::shell(line);
    let (execution, mut follower) = engine.run_followed(spec, command).await.unwrap();
    let mut text = Vec::new();
    while let Some(event) = follower.next().await {
        if let OutputEvent::Output { data, .. } = event {
            text.extend_from_slice(&data);
        }
    }
    execution.close().await.unwrap();
    (execution.outcome().await, String::from_utf8_lossy(&text).into_owned())
}

fn in_workspace(path: &Path) -> SandboxSpec {
    let path = HostPath::try_from(path.to_owned()).unwrap();
    SandboxSpec { workspace: Workspace::Local(path), ..SandboxSpec::default() }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_shell_runs_inside_and_sees_little() {
    let (engine, _state) = engine().await;
    for capabilities in engine.detect().await {
        assert_eq!(capabilities.unavailable, None);
    }
    let line = "ls / /proc /home /root; cat /etc/passwd; echo $HOME > $HOME/file && cat $HOME/file \
                && echo x > $TMPDIR/x && pwd && grep -c processor /proc/cpuinfo";
    let (outcome, out) = shell(&engine, SandboxSpec::default(), line).await;
    println!("{outcome:?}\n{out}");
    assert_eq!(outcome.ending, Ending::Exited(0), "{out}");
    for refused in ["'/'", "'/proc'", "/etc/passwd"] {
        assert!(out.contains(refused), "{refused} was not refused: {out}");
    }
    assert!(out.contains("Permission denied"), "{out}");
}

#[tokio::test]
async fn modes_and_times_change_in_the_workspace_and_nowhere_else() {
    let (engine, state) = engine().await;
    let (inside, outside) = (state.path().join("ws"), state.path().join("secret"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(&outside, "secret").unwrap();
    std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
    std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o600)).unwrap();
    let before = std::fs::metadata(&outside).unwrap().modified().unwrap();
    let secret = outside.display();
    let line = format!(
        "echo '#!/bin/sh' > run && chmod 755 run && ./run && touch -d @1000000 run && mkdir d && \
         (cd d && chmod 750 . && chmod 711 ../run) && ! chmod u+s run && ! chmod 777 {secret} && \
         ! chmod 777 link && ! chmod 777 ../secret && ! touch -d @1000000 {secret} && \
         ! touch -h -d @1 ../secret && ! chmod 777 /usr/bin"
    );
    let (outcome, out) = shell(&engine, in_workspace(&inside), &line).await;
    assert_eq!(outcome.ending, Ending::Exited(0), "{out}");
    assert_eq!((mode(&inside.join("run")), mode(&inside.join("d"))), (0o711, 0o750));
    let touched = std::fs::metadata(inside.join("run")).unwrap().modified().unwrap();
    assert_eq!(touched, std::time::UNIX_EPOCH + Duration::from_secs(1_000_000));
    assert_eq!(mode(&outside), 0o600);
    assert_eq!(std::fs::metadata(&outside).unwrap().modified().unwrap(), before);
}

#[tokio::test]
async fn nothing_of_a_read_only_workspace_changes_not_even_modes() {
    let (engine, state) = engine().await;
    let inside = state.path().join("ws");
    std::fs::create_dir(&inside).unwrap();
    let file = inside.join("file");
    std::fs::write(&file, "given").unwrap();
    let (before, time) = (mode(&file), std::fs::metadata(&file).unwrap().modified().unwrap());
    let spec = SandboxSpec { read_only: true, ..in_workspace(&inside) };
    let line = "! chmod 777 file && ! chmod 777 . && ! touch file && ! rm file && ! mv file other && \
                ! ln file other && ! (echo x >> file) && ! truncate -s 0 file && cat file";
    let (outcome, out) = shell(&engine, spec, line).await;
    assert_eq!(outcome.ending, Ending::Exited(0), "{out}");
    // Both streams in one text, in no order between them.
    assert!(out.contains("given"), "{out}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "given");
    assert_eq!(mode(&file), before);
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), time);
}

#[tokio::test]
async fn a_fork_bomb_ends_with_its_execution() {
    let (engine, _state) = engine().await;
    let spec = SandboxSpec {
        limits: Limits { wall_time: Some(Span::secs(1)), ..Limits::default() },
        ..SandboxSpec::default()
    };
    // Bounded in itself, should every wall fail: each generation lives for a few seconds.
    let line = "f() { [ $1 -gt 0 ] && (setsid sh -c 'sleep 7.25' & f $(($1-1)) & f $(($1-1)) &); }; \
                trap '' TERM INT HUP; f 6; sleep 7.25";
    let (outcome, out) = shell(&engine, spec, line).await;
    assert_eq!(outcome.ending, Ending::TimedOut, "{out}");
    let left = std::process::Command::new("pgrep").args(["-f", "sleep 7.25"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

/// Where private directories of this user lie, independent of TMPDIR.
fn private_place() -> std::path::PathBuf {
    let name = format!("stockade-{}", rustix::process::geteuid().as_raw());
    std::path::Path::new("/var/tmp").join(name)
}

#[tokio::test]
async fn a_workspace_around_the_private_directories_is_refused() {
    let (engine, _state) = engine().await;
    let spec = in_workspace(private_place().parent().unwrap());
    let error = engine.create(spec).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Refused, "{error}");
}

#[tokio::test]
async fn other_processes_and_objects_of_the_same_user_are_out_of_reach() {
    let (engine, _state) = engine().await;
    let own = std::process::id();
    let line = format!(
        "for tool in prlimit renice taskset ipcmk; do command -v $tool >&2 || exit 9; done; \
         ! kill -0 {own} && ! kill -CONT {own} && ! prlimit --pid {own} --nofile=100:100 && \
         ! renice 5 {own} && ! taskset -p 1 {own} && ! ipcmk -M 64 && ! ipcmk -Q && nice true && \
         prlimit --nofile=64 true && ! cat /proc/{own}/environ && ! cat /proc/1/cmdline"
    );
    let (outcome, out) = shell(&engine, SandboxSpec::default(), &line).await;
    assert_eq!(outcome.ending, Ending::Exited(0), "{out}");
}

#[tokio::test]
async fn a_program_that_signals_everybody_reaches_only_its_own() {
    let (engine, _state) = engine().await;
    let id = engine.create(SandboxSpec::default()).await.unwrap();
    let other = engine.exec(&id, Command::shell("sleep 60")).await.unwrap();
    let bomb = engine.exec(&id, Command::shell("sleep 60 & kill -9 -1; wait")).await.unwrap();
    bomb.outcome().await;
    let after = engine.exec(&id, Command::shell("exit 4")).await.unwrap();
    assert_eq!(after.outcome().await.ending, Ending::Exited(4));
    other.close().await.unwrap();
    assert_eq!(other.outcome().await.ending, Ending::Cancelled);
    engine.destroy(&id).await.unwrap();
}

/// The parent of a process, as the kernel tells.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn pids_with(text: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(text.len()).any(|part| part == text.as_bytes())
    };
    pids.filter(holds).collect()
}

#[tokio::test]
async fn when_the_launcher_is_killed_everything_ends_within_five_seconds_and_another_takes_over() {
    let (engine, _state) = engine().await;
    let id = engine.create(SandboxSpec::default()).await.unwrap();
    let line = format!("(setsid sh -c 'sleep 60; : {id}' &); trap '' TERM; sleep 60; : {id}");
    let _running = engine.exec(&id, Command::shell(&line)).await.unwrap();
    let private = private_place().join(format!("stockade-{id}"));
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    while pids_with(id.as_str()).len() < 3 && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(private.is_dir());
    let pids = pids_with("stockade-bare-agent");
    let agent = pids.into_iter().find(|pid| pids_with(id.as_str()).contains(pid)).unwrap();
    let launcher = parent(parent(agent));
    assert!(pids_with("stockade-launcher").contains(&launcher));
    let launcher = launcher.to_string();
    let killed = std::process::Command::new("kill").args(["-9", &launcher]).status().unwrap();
    assert!(killed.success());
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    while private.exists() || !pids_with(id.as_str()).is_empty() {
        assert!(tokio::time::Instant::now() < until, "{:?}", pids_with(id.as_str()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let again = engine.create(SandboxSpec::default()).await.expect("another launcher is started");
    engine.destroy(&again).await.unwrap();
}
