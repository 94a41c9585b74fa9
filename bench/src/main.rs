//! Measurements against peers. `bench/run [NAME…]` prints the tables;
//! without a name, all of them. Numbers are printed, never asserted: machines are noisy.

mod docker;
#[path = "../../crates/launcher/examples/floor/once.rs"]
#[allow(unsafe_code, reason = "the bare system calls that everything is measured against")]
mod floor;
mod gvisor;
mod microvm;
mod native;
mod network;
mod peers;
mod pool;
mod pump;
mod search;
mod snapshots;
mod ssh;
#[path = "../../crates/tck/tests/it/sshd/mod.rs"]
#[allow(clippy::unwrap_used, reason = "without a server of its own there is nothing to measure")]
mod sshd;
mod table;
mod views;
mod wasm;

type Measured = Result<(), Box<dyn std::error::Error>>;

/// A name and what it measures.
type Measurement = (&'static str, fn() -> Measured);

const ALL: [Measurement; 12] = [
    ("docker", docker::measure),
    ("gvisor", gvisor::measure),
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
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| !ALL.iter().any(|(known, _)| known == name)) {
        let known: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("no measurement `{unknown}`; there are: {}", known.join(", ")).into());
    }
    for (name, measure) in ALL {
        if wanted.is_empty() || wanted.iter().any(|given| given == name) {
            measure()?;
        }
    }
    Ok(())
}
