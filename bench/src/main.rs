//! Measurements against peers. `bench/run [NAME…]` prints the tables; without a name, all of them. `--json`,
//! `--markdown` and `--plot` write files of the same figures at the end. Numbers are printed, never asserted:
//! machines are noisy.

mod arguments;
mod density;
mod docker;
#[path = "../../crates/launcher/examples/floor/once.rs"]
#[allow(unsafe_code, reason = "the bare system calls that everything is measured against")]
mod floor;
mod gvisor;
mod images;
mod json;
mod machine;
mod markdown;
mod microvm;
mod native;
mod network;
mod peers;
mod plot;
mod pool;
mod pump;
mod report;
mod resources;
mod search;
mod snapshots;
mod ssh;
#[path = "../../crates/tck/tests/it/sshd/mod.rs"]
#[allow(clippy::unwrap_used, reason = "without a server of its own there is nothing to measure")]
mod sshd;
mod table;
mod views;
mod wasm;

use std::fs;

use arguments::BenchArguments;
use machine::{MachineFacts, read_versions};
use report::BenchReport;

type Measured = Result<(), Box<dyn std::error::Error>>;

/// A name and what it measures.
type Measurement = (&'static str, fn(&mut BenchReport) -> Measured);

const ALL: [Measurement; 14] = [
    ("density", density::measure),
    ("docker", docker::measure),
    ("gvisor", gvisor::measure),
    ("images", images::measure),
    ("microvm", microvm::measure),
    ("native", native::measure),
    ("network", network::measure),
    ("pool", pool::measure),
    ("pump", pump::measure),
    ("search", search::measure),
    ("snapshots", snapshots::measure),
    ("ssh", ssh::measure),
    ("views", views::measure),
    ("wasm", wasm::measure),
];

fn main() -> Measured {
    let known = ALL.map(|(name, _)| name);
    let arguments = BenchArguments::parse(std::env::args().skip(1), &known)?;
    let mut report = BenchReport::new(arguments.many);
    let measured = measure_wanted(&arguments, &mut report);
    // What was measured before a failure is not lost; the failure is in it.
    write_files(&arguments, &report)?;
    measured
}

/// Stops at the first that fails.
fn measure_wanted(arguments: &BenchArguments, report: &mut BenchReport) -> Measured {
    for (name, measure) in ALL.into_iter().filter(|(name, _)| arguments.wants(name)) {
        report.begin_measurement(name);
        if let Err(error) = measure(report) {
            report.note(format!("{name}: failed: {error}"));
            return Err(error);
        }
    }
    Ok(())
}

fn write_files(arguments: &BenchArguments, report: &BenchReport) -> Measured {
    if arguments.json.is_none() && arguments.markdown.is_none() && arguments.plot.is_none() {
        return Ok(());
    }
    let (machine, versions) = (MachineFacts::read(), read_versions());
    if let Some(path) = &arguments.json {
        fs::write(path, json::write_json(report, &machine, &versions))?;
    }
    if let Some(path) = &arguments.markdown {
        let link = arguments.plot_link();
        fs::write(path, markdown::write_markdown(report, &machine, &versions, link.as_deref()))?;
    }
    if let Some(path) = &arguments.plot {
        let drawn = report.plot().ok_or("nothing to plot: `density` measured nothing")?;
        fs::write(path, plot::write_svg(drawn))?;
    }
    Ok(())
}
