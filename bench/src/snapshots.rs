//! Snapshots of files on the native backend beside the same by hand: `tar` of the directory, its unpacking, and
//! copies by `cp`. What is captured lies in memory or on disk as the workspace does; copies are in memory. Copies are
//! made by the library and by the command `stockade fork`, which starts a supervisor for each.

use std::error::Error;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::native::Native;
use stockade_core::{Bytes, Feature, HostPath, SandboxSpec, SnapshotKind, Workspace};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::native::{spawn, timed, timed_async};
use crate::report::BenchReport;
use crate::resources::available_kib;
use crate::table::Row;

const ROUNDS: usize = 3;
const SIZES_MIB: [u64; 3] = [16, 128, 512];
/// Copies of one sandbox at once.
const COPIES: usize = 20;

/// Prints medians, 99th percentiles and ratios for each size.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    SIZES_MIB.into_iter().try_for_each(|mib| of_size(report, &runtime, mib))
}

fn of_size(report: &mut BenchReport, runtime: &tokio::runtime::Runtime, mib: u64) -> Measured {
    let dir = tempfile::tempdir()?;
    let work = dir.path().join("work");
    fill(&work, mib)?;
    let config = EngineConfig::at(dir.path().join("state"));
    let engine = runtime.block_on(Engine::open(config, vec![Arc::new(Native::new())]))?;
    let workspace = Workspace::Local(HostPath::try_from(work.clone())?);
    let mut spec = SandboxSpec { workspace, ..SandboxSpec::default() };
    spec.limits.disk = Some(Bytes(4 << 30));
    spec.limits.memory = Some(Bytes(4 << 30));
    // A directory of the host is bounded as far as it goes.
    spec.without.insert(Feature::DiskLimit);
    let live = runtime.block_on(engine.create(spec))?;
    // All copies hold all of it in memory, as many again may be on their way there.
    let forks = available_kib() >> 10 > mib * (COPIES as u64 + 4);
    let command = ForkCommand::create(dir.path())?;
    let names = ["tar", "untar", "cp x20", "snapshot", "restore", "fork x20", "command fork x20"];
    let mut rows = names.map(Row::new);
    for _ in 0..ROUNDS {
        by_hand(dir.path(), &mut rows)?;
        let mut taken = None;
        rows[3].add(timed_async(runtime, async {
            taken = Some(engine.snapshot(&live, SnapshotKind::Files).await?);
            Ok(())
        })?);
        let taken = taken.ok_or("nothing was taken")?.id;
        rows[4].add(timed_async(runtime, async { Ok(engine.restore(&live, &taken).await?) })?);
        engine.snapshots().remove(&taken)?;
        if forks {
            let mut copies = Vec::new();
            rows[5].add(timed_async(runtime, async {
                copies = engine.fork(&live, COPIES).await?;
                Ok(())
            })?);
            for copy in copies {
                runtime.block_on(engine.destroy(&copy))?;
            }
            rows[6].add(command.time_fork()?);
        }
    }
    report.title(format!("snapshots: {mib} MiB in files of 1 MiB, {ROUNDS} rounds, taking turns"));
    match forks {
        true => report.timings(&mut rows),
        false => {
            report.timings(&mut rows[..5]);
            report.note(format!("no copies: {COPIES} of {mib} MiB do not fit into memory here"));
        }
    }
    runtime.block_on(engine.close())?;
    Ok(())
}

/// A persistent sandbox of the same directory, copied by the command that is built beside this program.
struct ForkCommand {
    state: PathBuf,
    id: String,
}

impl ForkCommand {
    fn create(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let state = dir.join("command-state");
        let mut create = stockade(&state)?;
        create.args(["create", "--backend", "native", "--disk", "4g", "--mem", "4g"]);
        create.args(["--without", "disk-limit", "--workspace"]).arg(dir.join("work"));
        let id = read_stdout(&mut create)?.trim_end().to_owned();
        Ok(Self { state, id })
    }

    /// Makes the copies; answers their ids.
    fn fork(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let count = COPIES.to_string();
        let mut fork = stockade(&self.state)?;
        fork.args(["fork", self.id.as_str(), "-n", count.as_str()]);
        let ids = read_stdout(&mut fork)?;
        Ok(ids.lines().map(str::to_owned).collect())
    }

    /// Time for all copies, which are ended after it.
    fn time_fork(&self) -> Result<Duration, Box<dyn Error>> {
        let mut copies = Vec::new();
        let time = timed(|| {
            copies = self.fork()?;
            Ok(())
        })?;
        self.kill(&copies)?;
        Ok(time)
    }

    fn kill(&self, ids: &[String]) -> Measured {
        spawn(stockade(&self.state)?.arg("kill").args(ids))
    }
}

impl Drop for ForkCommand {
    fn drop(&mut self) {
        // It also ends by its idle timeout.
        let _ = self.kill(std::slice::from_ref(&self.id));
    }
}

/// The command itself, built beside this program.
fn stockade(state: &Path) -> Result<Process, Box<dyn Error>> {
    let mut command = Process::new(std::env::current_exe()?.with_file_name("stockade"));
    command.env("STOCKADE_STATE_DIR", state);
    Ok(command)
}

fn read_stdout(command: &mut Process) -> Result<String, Box<dyn Error>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What an operator would type.
fn by_hand(dir: &Path, rows: &mut [Row]) -> Measured {
    let (archive, out) = (dir.join("archive.tar"), dir.join("out"));
    rows[0].add(timed(|| spawn(tar(dir).arg("-cf").arg(&archive).arg("work")))?);
    fs::create_dir(&out)?;
    rows[1].add(timed(|| spawn(tar(&out).arg("-xf").arg(&archive)))?);
    fs::remove_file(&archive)?;
    let copies = || {
        (0..COPIES).try_for_each(|number| {
            let mut copy = Process::new("cp");
            copy.args(["-a", "--reflink=auto"]).arg(dir.join("work"));
            spawn(copy.arg(out.join(number.to_string())))
        })
    };
    rows[2].add(timed(copies)?);
    Ok(fs::remove_dir_all(&out)?)
}

fn tar(dir: &Path) -> Process {
    let mut tar = Process::new("tar");
    tar.arg("-C").arg(dir);
    tar
}

/// Files that nothing makes smaller.
fn fill(work: &Path, mib: u64) -> Measured {
    fs::create_dir(work)?;
    let mut random = fs::File::open("/dev/urandom")?;
    let mut content = vec![0; 1 << 20];
    for number in 0..mib {
        random.read_exact(&mut content)?;
        fs::write(work.join(format!("file-{number}")), &content)?;
    }
    Ok(())
}
