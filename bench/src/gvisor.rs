//! The gvisor backend beside its own runtime: a whole command, and one more in a sandbox that lives.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::time::Instant;

use serde_json::json;
use stockade_backends::gvisor::Gvisor;
use stockade_core::{Command, SandboxSpec};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::table::{Row, print};

const ROUNDS: usize = 20;
/// Commands in one sandbox for each that is made.
const EACH: usize = 10;

pub fn measure() -> Measured {
    if Program::new("runsc").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("gvisor: skipped: runsc is not installed");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    println!("gvisor: `true` with the host's programs as its root");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(dir.path()))
}

async fn compare(dir: &Path) -> Measured {
    let bundle = dir.join("bundle");
    lay(&bundle)?;
    let stockade = std::env::current_exe()?.with_file_name("stockade");
    let engine =
        Engine::open(EngineConfig::at(dir.join("state")), vec![std::sync::Arc::new(Gvisor::new())]);
    let engine = engine.await?;
    let spec = SandboxSpec { backend: "gvisor".parse()?, ..SandboxSpec::default() };
    // Which platform works is found out once, and not a part of any run.
    engine.run(spec.clone(), Command::program(["true"])).await?.outcome().await;
    let mut rows = ["runsc run", "stockade run", "library", "second exec"].map(Row::new);
    for round in 0..ROUNDS {
        let mut plain = Program::new("runsc");
        plain.arg(format!("--root={}", dir.join("root").display()));
        plain.args(["--platform=ptrace", "--network=none", "--ignore-cgroups", "run"]);
        plain.arg(format!("--bundle={}", bundle.display())).arg(format!("plain{round}"));
        rows[0].add(timed(&mut plain)?);
        let mut whole = Program::new(&stockade);
        whole.args(["run", "--backend", "gvisor", "--", "true"]).current_dir(&bundle);
        rows[1].add(timed(&mut whole)?);
        let begun = Instant::now();
        engine.run(spec.clone(), Command::program(["true"])).await?.outcome().await;
        rows[2].add(begun.elapsed());
        let id = engine.create(spec.clone()).await?;
        for _ in 0..EACH {
            let begun = Instant::now();
            engine.exec(&id, Command::program(["true"])).await?.outcome().await;
            rows[3].add(begun.elapsed());
        }
        engine.destroy(&id).await?;
    }
    print(&mut rows);
    Ok(())
}

fn timed(command: &mut Program) -> Result<std::time::Duration, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let took = begun.elapsed();
    if status.success() { Ok(took) } else { Err(format!("{command:?}: {status}").into()) }
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
