//! Snapshots of files on the native backend beside the same by hand: `tar` of the directory, its unpacking, and
//! copies by `cp`. What is captured lies in memory or on disk as the workspace does; copies are in memory.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command as Process;
use std::sync::Arc;

use stockade_backends::native::Native;
use stockade_core::{Bytes, Feature, HostPath, SandboxSpec, SnapshotKind, Workspace};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::native::{spawn, timed, timed_async};
use crate::report::BenchReport;
use crate::resources::available_kib;
use crate::table::Row;

const ROUNDS: usize = 3;
const MIB: [u64; 3] = [16, 128, 512];
/// Copies of one sandbox at once.
const COPIES: usize = 20;

/// Prints medians, 99th percentiles and ratios for each size.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    MIB.into_iter().try_for_each(|mib| of_size(report, &runtime, mib))
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
    let names = ["tar", "untar", "cp x20", "snapshot", "restore", "fork x20"];
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
