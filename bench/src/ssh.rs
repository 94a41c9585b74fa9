//! The ssh backend beside plain `ssh`, by way of a server on loopback: what a sandbox costs over a shell on
//! the same shared connection, and a second command over a second sandbox.

use std::error::Error;
use std::fs;
use std::process::Command as Process;
use std::sync::Arc;

use stockade_backends::ssh::Ssh;
use stockade_core::{Command, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::native::{ProgramDir, expect_success, spawn, timed, timed_async};
use crate::report::BenchReport;
use crate::sshd::Sshd;
use crate::table::Row;

const ROUNDS: usize = 50;

/// `ssh` with a connection that is shared, as the user would have it.
fn plain(sshd: &Sshd, place: &ProgramDir) -> Process {
    let mut command = Process::new("ssh");
    command.arg("-F").arg(sshd.config()).args(["-T", "-o", "ControlMaster=auto"]);
    let socket = place.workspace().with_extension("plain");
    command.arg("-o").arg(format!("ControlPath={}", socket.display()));
    command.args(["-o", "ControlPersist=5", "far", "true"]);
    command
}

/// The command itself, built beside this program.
fn stockade(place: &ProgramDir, home: &std::path::Path) -> Result<Process, Box<dyn Error>> {
    let mut command = Process::new(std::env::current_exe()?.with_file_name("stockade"));
    command.args(["run", "--backend", "ssh", "--", "./true"]).current_dir(place.workspace());
    command.env("XDG_CONFIG_HOME", home).env("STOCKADE_STATE_DIR", home.join("state"));
    Ok(command)
}

/// Prints medians, 99th percentiles and ratios.
pub fn measure(report: &mut BenchReport) -> Measured {
    let (sshd, home) = (Sshd::start(), tempfile::tempdir()?);
    let (outer, place) = (tempfile::tempdir()?, ProgramDir::new()?);
    let work = outer.path().join("workspace");
    fs::create_dir(&work)?;
    fs::copy(&place.program, work.join("true"))?;
    fs::create_dir(home.path().join("stockade"))?;
    let config = sshd.config();
    let hosts = format!("[[ssh.hosts]]\nname = \"far\"\nconfig = {config:?}\n");
    fs::write(home.path().join("stockade/config.toml"), hosts)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engine = EngineConfig::at(home.path().join("library"));
    let engine =
        runtime.block_on(Engine::open(engine, vec![Arc::new(Ssh::new(vec![sshd.host()]))]))?;
    let workspace = Workspace::Local(HostPath::try_from(work)?);
    let spec = SandboxSpec { backend: "ssh".parse()?, workspace, ..SandboxSpec::default() };
    let live = runtime.block_on(engine.create(spec.clone()))?;
    let program = || Command::program(["./true"]);
    let names = ["ssh true", "stockade run", "library cold", "library exec"];
    let mut rows = names.map(Row::new);
    spawn(&mut plain(&sshd, &place))?;
    spawn(&mut stockade(&place, home.path())?)?;
    for _ in 0..ROUNDS {
        rows[0].add(timed(|| spawn(&mut plain(&sshd, &place)))?);
        rows[1].add(timed(|| spawn(&mut stockade(&place, home.path())?))?);
        rows[2].add(timed_async(&runtime, async {
            expect_success(engine.run(spec.clone(), program()).await?.outcome().await.ending)
        })?);
        rows[3].add(timed_async(&runtime, async {
            expect_success(engine.exec(&live, program()).await?.outcome().await.ending)
        })?);
    }
    report.title(format!(
        "ssh: a static program that does nothing, {ROUNDS} rounds, taking turns, connections shared"
    ));
    report.timings(&mut rows);
    runtime.block_on(engine.close())?;
    Ok(())
}
