//! Sandboxes of the native backend in numbers: what one more costs, and an execution in one of them, while 10, 100
//! and 1,000 are alive (10,000 with `--many`). Numbers that this machine has no room for are named, not tried.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use stockade_backends::native::Native;
use stockade_core::{Command, SandboxId};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::Measured;
use crate::native::{AT_ONCE, BenchEngine, ProgramDir, expect_success, timed_async};
use crate::plot::{LinePlot, PlotCurve};
use crate::report::BenchReport;
use crate::resources::{ResourceUsage, available_kib, raise_descriptor_limit};
use crate::table::{Column, Figures, Row, Timing};

const SANDBOX_COUNTS: [usize; 3] = [10, 100, 1000];
const MANY_SANDBOXES: usize = 10_000;
const ROUNDS: usize = 30;

/// What is assumed of a sandbox at least, and before one was measured.
const LEAST_EACH: ResourceUsage =
    ResourceUsage { resident_kib: 1024, unavailable_kib: 1024, processes: 2, descriptors: 4 };
/// Namespaces, processes and descriptors that others have, or that one more sandbox takes for a moment.
const RESERVED_COUNT: u64 = 1000;
/// Of the memory that is available, in percent.
const MAX_MEMORY_PERCENT: u64 = 80;

const NAMESPACES: [&str; 8] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

const COLUMNS: [Column; 6] = [
    Column::new("all alive ms", 12, 0),
    Column::new("KiB each", 8, 0),
    Column::new("one more p50 ms", 15, 3),
    Column::new("one more p99 ms", 15, 3),
    Column::new("exec p50 ms", 11, 3),
    Column::new("exec p99 ms", 11, 3),
];

/// What was measured while so many were alive.
struct DensityStep {
    alive: usize,
    all_alive_ms: f64,
    each: ResourceUsage,
    one_more: Timing,
    exec: Timing,
}

/// Prints a row for each number, and has it plotted.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let place = ProgramDir::new()?;
    let descriptors = raise_descriptor_limit();
    let stockade = runtime.block_on(BenchEngine::new(&place, Arc::new(Native::new())))?;
    report.title(format!(
        "density: native sandboxes alive, created {AT_ONCE} at a time; one more is create, exec and \
         destroy, {ROUNDS} rounds"
    ));
    let (mut steps, mut left_out) = (Vec::new(), Vec::new());
    let mut each = LEAST_EACH;
    for alive in SANDBOX_COUNTS.into_iter().chain(report.many.then_some(MANY_SANDBOXES)) {
        let step = match find_shortage(alive as u64, &each, descriptors) {
            Some(shortage) => Err(shortage.into()),
            None => measure_step(&runtime, &stockade, alive),
        };
        match step {
            Ok(step) => {
                each = step.each;
                steps.push(step);
            }
            Err(reason) => left_out.push(format!("{alive} alive: left out: {reason}")),
        }
    }
    report_steps(report, &steps);
    left_out.into_iter().for_each(|reason| report.note(reason));
    runtime.block_on(stockade.engine.close())?;
    Ok(())
}

fn report_steps(report: &mut BenchReport, steps: &[DensityStep]) {
    let mut figures = Figures::new("alive", &COLUMNS);
    for DensityStep { alive, all_alive_ms, each, one_more, exec } in steps {
        let times = [one_more.p50_ms, one_more.p99_ms, exec.p50_ms, exec.p99_ms];
        let values = [*all_alive_ms, each.resident_kib as f64].into_iter().chain(times);
        figures.add(alive.to_string(), values.collect());
    }
    report.figures(figures);
    if !steps.is_empty() {
        report.set_plot(plot_steps(steps));
    }
}

fn plot_steps(steps: &[DensityStep]) -> LinePlot {
    let curve = |name: &str, colour, dashed, cost: fn(&DensityStep) -> f64| PlotCurve {
        name: name.into(),
        colour,
        dashed,
        points: steps.iter().map(|step| (step.alive as f64, cost(step))).collect(),
    };
    LinePlot {
        title: "What a sandbox costs beside others".into(),
        alt: "Milliseconds for one more sandbox and for an execution, by the number that are alive"
            .into(),
        x_label: "sandboxes alive".into(),
        y_label: "milliseconds".into(),
        curves: vec![
            curve("one more: create, exec, destroy; p50", 0, false, |step| step.one_more.p50_ms),
            curve("one more; p99", 0, true, |step| step.one_more.p99_ms),
            curve("exec in one that is alive; p50", 1, false, |step| step.exec.p50_ms),
            curve("exec; p99", 1, true, |step| step.exec.p99_ms),
            curve("created at once: time until all are alive, for each", 2, false, |step| {
                step.all_alive_ms / step.alive as f64
            }),
        ],
    }
}

/// Why so many do not fit here, if they don't.
fn find_shortage(alive: u64, each: &ResourceUsage, descriptors: u64) -> Option<String> {
    let kib = each.unavailable_kib.max(each.resident_kib).max(LEAST_EACH.resident_kib);
    let needed_mib = ((kib * alive) >> 10) * 100 / MAX_MEMORY_PERCENT;
    let processes = each.processes.max(LEAST_EACH.processes);
    let mut needs = vec![
        ("available memory in MiB".to_owned(), Some(available_kib() >> 10), needed_mib),
        (
            "RLIMIT_NOFILE".into(),
            Some(descriptors),
            alive * each.descriptors.max(1) + RESERVED_COUNT,
        ),
    ];
    let of_namespaces = NAMESPACES.map(|kind| (format!("user/max_{kind}_namespaces"), 1));
    let of_processes =
        ["kernel/pid_max", "kernel/threads-max"].map(|name| (name.into(), processes));
    for (name, per_sandbox) in of_namespaces.into_iter().chain(of_processes) {
        let limit = read_kernel_limit(&name);
        needs.push((format!("/proc/sys/{name}"), limit, alive * per_sandbox + RESERVED_COUNT));
    }
    needs.into_iter().find_map(|(name, limit, needed)| describe_shortage(&name, limit?, needed))
}

fn describe_shortage(name: &str, limit: u64, needed: u64) -> Option<String> {
    (limit < needed).then(|| format!("{name}: {limit}, and about {needed} are needed"))
}

fn read_kernel_limit(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

fn measure_step(
    runtime: &Runtime,
    stockade: &BenchEngine,
    alive: usize,
) -> Result<DensityStep, Box<dyn Error>> {
    let before = ResourceUsage::read();
    let begun = Instant::now();
    let (ids, created) = runtime.block_on(create_many(stockade, alive));
    let all_alive_ms = begun.elapsed().as_secs_f64() * 1e3;
    let each = ResourceUsage::read().each_since(&before, alive);
    // What was created is destroyed whether or not the rest could be measured.
    let timed = created.map_err(Into::into).and_then(|()| time_beside(runtime, stockade, &ids));
    runtime.block_on(destroy_many(stockade, ids))?;
    let (one_more, exec) = timed?;
    Ok(DensityStep { alive, all_alive_ms, each, one_more, exec })
}

/// One more sandbox, and an execution in each of those that are alive in turn.
fn time_beside(
    runtime: &Runtime,
    stockade: &BenchEngine,
    ids: &[SandboxId],
) -> Result<(Timing, Timing), Box<dyn Error>> {
    let mut rows = ["one more", "exec"].map(Row::new);
    for id in ids.iter().cycle().take(ROUNDS) {
        rows[0].add(timed_async(runtime, stockade.cold())?);
        rows[1].add(timed_async(runtime, async {
            let execution = stockade.engine.exec(id, Command::program(["./true"])).await?;
            expect_success(execution.outcome().await.ending)
        })?);
    }
    let [mut one_more, mut exec] = rows;
    Ok((one_more.timing(), exec.timing()))
}

/// Those that were created, and the first failure, after which no further one is begun.
async fn create_many(
    stockade: &BenchEngine,
    number: usize,
) -> (Vec<SandboxId>, Result<(), String>) {
    let creating = (0..number).map(|_| {
        let (engine, spec) = (stockade.engine.clone(), stockade.spec.clone());
        async move { engine.create(spec).await.map_err(|error| error.to_string()) }
    });
    run_bounded(creating).await
}

async fn destroy_many(stockade: &BenchEngine, ids: Vec<SandboxId>) -> Result<(), String> {
    let destroying = ids.into_iter().map(|id| {
        let engine = stockade.engine.clone();
        async move { engine.destroy(&id).await.map_err(|error| error.to_string()) }
    });
    run_bounded(destroying).await.1
}

/// Runs all of them, `AT_ONCE` at a time, and none is begun after a failure.
async fn run_bounded<T: Send + 'static>(
    mut work: impl Iterator<Item = impl Future<Output = Result<T, String>> + Send + 'static>,
) -> (Vec<T>, Result<(), String>) {
    let mut running = JoinSet::new();
    let (mut done, mut outcome) = (Vec::new(), Ok(()));
    loop {
        while outcome.is_ok() && running.len() < AT_ONCE {
            let Some(next) = work.next() else { break };
            running.spawn(next);
        }
        match running.join_next().await {
            None => return (done, outcome),
            Some(Ok(Ok(value))) => done.push(value),
            Some(Ok(Err(error))) => outcome = outcome.and(Err(error)),
            Some(Err(error)) => outcome = outcome.and(Err(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_room_are_left_out_with_the_limit() {
        assert_eq!(describe_shortage("RLIMIT_NOFILE", 1024, 1024), None);
        let told = describe_shortage("RLIMIT_NOFILE", 1023, 1024);
        assert_eq!(told.as_deref(), Some("RLIMIT_NOFILE: 1023, and about 1024 are needed"));
        // No machine has that much memory.
        let told = find_shortage(1 << 40, &LEAST_EACH, u64::MAX);
        assert!(told.is_some_and(|reason| reason.starts_with("available memory")));
    }
}
