//! The docker backend beside the engine's own client, all taking turns. Needs a running engine.

use std::process::{Command as Process, Stdio};
use std::sync::Arc;

use stockade_backends::docker::Docker;

use crate::Measured;
use crate::native::{BenchEngine, ProgramDir, spawn, timed, timed_async};
use crate::peers::{self, Peer};
use crate::report::BenchReport;
use crate::table::Row;

const ROUNDS: usize = 20;

/// Prints what a run and an execution in a live container cost, through Stockade and without it.
pub fn measure(report: &mut BenchReport) -> Measured {
    let place = ProgramDir::new()?;
    let run = match peers::docker(&place) {
        Ok(run) => run,
        Err(reason) => {
            report.title(format!("docker: not measured: {reason}"));
            return Ok(());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stockade = runtime.block_on(BenchEngine::new(&place, Arc::new(Docker::default())))?;
    let whole = whole_command(&place)?;
    let kept = Kept::start(&place)?;
    let mut rows =
        ["docker run", "stockade run", "library cold", "docker exec", "library exec"].map(Row::new);
    for _ in 0..ROUNDS {
        rows[0].add(timed(|| spawn(&mut run.command()))?);
        rows[1].add(timed(|| spawn(&mut whole.command()))?);
        rows[2].add(timed_async(&runtime, stockade.cold())?);
        rows[3].add(timed(|| spawn(&mut kept.exec()))?);
        rows[4].add(timed_async(&runtime, stockade.exec())?);
    }
    report.title(format!(
        "docker: a static program that does nothing, {ROUNDS} rounds, taking turns"
    ));
    report.timings(&mut rows);
    runtime.block_on(stockade.engine.close())?;
    Ok(())
}

fn whole_command(place: &ProgramDir) -> Result<Peer, Box<dyn std::error::Error>> {
    let beside = std::env::current_exe()?.with_file_name("stockade");
    let path = beside.to_str().ok_or("its path is not text")?;
    let words = [path, "run", "--backend", "docker", "--", "./true"];
    Ok(peers::peer("stockade run", ROUNDS, place.workspace(), &words)?)
}

/// A container of the engine's own that stays until it is dropped.
struct Kept(String);

impl Kept {
    fn start(place: &ProgramDir) -> Result<Self, Box<dyn std::error::Error>> {
        let name = format!("stockade-bench-{}", std::process::id());
        let shown = format!("{}:/w", place.workspace().display());
        let busybox = "/usr/bin/busybox:/busybox:ro";
        let words = ["run", "-d", "--rm", "--network", "none", "--name", &name, "-v", &shown];
        let sleep = ["-v", busybox, "stockade-bench:latest", "/busybox", "sleep", "600"];
        spawn(Process::new("docker").args(words).args(sleep).stderr(Stdio::inherit()))?;
        Ok(Self(name))
    }

    fn exec(&self) -> Process {
        let mut command = Process::new("docker");
        command.args(["exec", &self.0, "/true"]);
        command
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = Process::new("docker").args(["rm", "-f", &self.0]).stdout(Stdio::null()).status();
    }
}
