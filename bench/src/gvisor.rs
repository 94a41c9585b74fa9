//! The gvisor backend beside its own runtime: a whole command, and one more in a sandbox that lives. The
//! runtime by itself is measured twice: with the very walls and limits that the backend asks for, and
//! with next to none.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use stockade_backends::gvisor::Gvisor;
use stockade_core::{Command, SandboxSpec};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::report::BenchReport;
use crate::table::Row;

const ROUNDS: usize = 20;
/// Commands in one sandbox for each that is made.
const COMMANDS_EACH: usize = 10;

pub fn measure(report: &mut BenchReport) -> Measured {
    if Program::new("runsc").arg("--version").stdout(Stdio::null()).status().is_err() {
        report.title("gvisor: skipped: runsc is not installed");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    report.title("gvisor: `true` with the host's programs as its root");
    report.note("  runsc run: the same root, mounts, users and limits, on the same platform");
    report.note("  runsc, bare: two mounts, no limits, no users of its own");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(report, dir.path()))
}

async fn compare(report: &mut BenchReport, dir: &Path) -> Measured {
    let (same, bare) = (dir.join("same"), dir.join("bare"));
    let stockade = std::env::current_exe()?.with_file_name("stockade");
    let engine =
        Engine::open(EngineConfig::at(dir.join("state")), vec![std::sync::Arc::new(Gvisor::new())]);
    let engine = engine.await?;
    let spec = SandboxSpec { backend: "gvisor".parse()?, ..SandboxSpec::default() };
    // Which platform works is found out once, and not a part of any run.
    engine.run(spec.clone(), Command::program(["true"])).await?.outcome().await;
    let id = engine.create(spec.clone()).await?;
    copy(&private(id.as_str()), &same)?;
    engine.destroy(&id).await?;
    lay(&bare)?;
    let names =
        ["runsc run", "runsc, bare", "stockade run", "library", "exec", "create", "destroy"];
    let mut rows = names.map(Row::new);
    for round in 0..ROUNDS {
        rows[0].add(timed(&mut runsc(dir, &same, &[], &format!("same{round}")))?);
        let ignoring = ["--ignore-cgroups"];
        rows[1].add(timed(&mut runsc(dir, &bare, &ignoring, &format!("bare{round}")))?);
        let mut whole = Program::new(&stockade);
        whole.args(["run", "--backend", "gvisor", "--", "true"]).current_dir(&bare);
        rows[2].add(timed(&mut whole)?);
        let begun = Instant::now();
        engine.run(spec.clone(), Command::program(["true"])).await?.outcome().await;
        rows[3].add(begun.elapsed());
        let begun = Instant::now();
        let id = engine.create(spec.clone()).await?;
        rows[5].add(begun.elapsed());
        for _ in 0..COMMANDS_EACH {
            let begun = Instant::now();
            engine.exec(&id, Command::program(["true"])).await?.outcome().await;
            rows[4].add(begun.elapsed());
        }
        let begun = Instant::now();
        engine.destroy(&id).await?;
        rows[6].add(begun.elapsed());
    }
    report.timings(&mut rows);
    Ok(())
}

/// The runtime by itself.
fn runsc(dir: &Path, bundle: &Path, options: &[&str], name: &str) -> Program {
    let mut command = Program::new("runsc");
    command.arg(format!("--root={}", dir.join("root").display()));
    command.args(["--platform=ptrace", "--network=none", "--overlay2=none", "--host-uds=none"]);
    command.args(options).arg("run").arg(format!("--bundle={}", bundle.display()));
    command.arg(format!("stockade-bench-{}-{name}", std::process::id()));
    command
}

fn timed(command: &mut Program) -> Result<std::time::Duration, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let took = begun.elapsed();
    if status.success() { Ok(took) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Where the backend keeps the bundle of a sandbox.
fn private(id: &str) -> PathBuf {
    let base = format!("/var/tmp/stockade-{}", rustix::process::geteuid().as_raw());
    Path::new(&base).join(format!("gvisor-{id}"))
}

/// The bundle of a sandbox that lives, with the program in the agent's place, and with the limits that
/// the backend sets by itself as the runtime is told of them.
fn copy(from: &Path, to: &Path) -> Measured {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    let text = fs::read_to_string(from.join("config.json"))?;
    let mut config: Value = serde_json::from_str(&text)?;
    let root = from.join(config["root"]["path"].as_str().ok_or("no root in the bundle")?);
    let copied = Program::new("cp").arg("-a").arg(&root).arg(to.join("rootfs")).status()?;
    if !copied.success() {
        return Err(format!("{}: {copied}", root.display()).into());
    }
    config["root"]["path"] = json!("rootfs");
    config["process"]["args"] = json!(["true"]);
    config["process"]["env"] = json!(["PATH=/usr/bin"]);
    config["linux"]["cgroupsPath"] = json!(format!("/stockade-bench-{}", std::process::id()));
    config["linux"]["resources"] =
        json!({ "memory": { "limit": 512_u64 << 20 }, "pids": { "limit": 1000 } });
    Ok(fs::write(to.join("config.json"), config.to_string())?)
}

/// A bundle as small as one can be that has the host's programs in it.
fn lay(bundle: &Path) -> Measured {
    let root = bundle.join("rootfs");
    for place in ["usr", "proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(root.join(place))?;
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{link}"), root.join(link))?;
    }
    fs::set_permissions(bundle, fs::Permissions::from_mode(0o755))?;
    let kinds = ["pid", "network", "ipc", "uts", "mount"];
    let config = json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 1000, "gid": 1000 }, "args": ["true"], "cwd": "/",
            "env": ["PATH=/usr/bin"] },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"] },
        ],
        "linux": { "namespaces": kinds.map(|kind| json!({ "type": kind })) },
    });
    Ok(fs::write(bundle.join("config.json"), config.to_string())?)
}
