//! The native backend with real walls, through the engine.

#![cfg(feature = "native")]
#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

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
