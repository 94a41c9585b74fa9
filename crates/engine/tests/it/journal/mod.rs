//! The journal with real files and real processes.

mod healing;
mod processes;
mod pruning;
mod records;
mod tampering;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;

use stockade_core::{
    BackendName, Boundary, Bytes, Ending, Enforcement, Feature, LimitKind, Outcome, StreamReport,
    Usage, Workspace,
};
use stockade_engine::{Break, Event, Journal, JournalOptions, StateDir, Verdict};
use tempfile::TempDir;

fn options(segment_bytes: u64) -> JournalOptions {
    JournalOptions { segment_bytes: Bytes(segment_bytes), sync: false }
}

fn journal_at(state: &Path, segment_bytes: u64) -> Journal {
    Journal::open(&StateDir::open(state).unwrap(), options(segment_bytes)).unwrap()
}

fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn started(job: &str) -> Event {
    let limit =
        Enforcement::Fully { limit: LimitKind::Memory, value: "512m".into(), by: "cgroup".into() };
    Event::Started {
        job: job.parse().unwrap(),
        sandbox: format!("box{job}").parse().unwrap(),
        tenant: "team-a".parse().unwrap(),
        backend: BackendName::literal("mock"),
        boundary: Boundary::None,
        command: vec!["sh".into(), "-c".into(), "echo \"a\nb\"".into()],
        workspace: Workspace::Ephemeral,
        limits: vec![limit],
        without: BTreeSet::from([Feature::DiskLimit]),
        labels: BTreeMap::from([("k".into(), "ü".into())]),
        trees: BTreeSet::new(),
        observes: false,
        engine: None,
        image: None,
    }
}

fn stopped(job: &str) -> Event {
    let outcome = Outcome {
        ending: Ending::Exited(7),
        stdout: StreamReport { bytes: 5, dropped: 2 },
        stderr: StreamReport::default(),
        usage: Usage { wall_ms: 3, cpu_ms: Some(1), peak_memory_bytes: None, fuel: None },
        limits: Vec::new(),
        limits_reached: Vec::new(),
        network_denied: Vec::new(),
        network_unreachable: false,
        network_observed: None,
    };
    Event::Stopped { job: job.parse().unwrap(), outcome, log: Some("logs/x".into()) }
}

fn refused(text: &str) -> Event {
    Event::Refused { tenant: "team-b".parse().unwrap(), refusals: vec![text.into()] }
}

fn clean_count(journal: &Journal) -> u64 {
    match journal.verify().unwrap() {
        Verdict::Clean { records, .. } => records,
        Verdict::Broken(place) => panic!("{place}"),
    }
}

fn broken(dir: &Path) -> Break {
    match Journal::verify_dir(dir).unwrap() {
        Verdict::Broken(place) => place,
        Verdict::Clean { records, .. } => panic!("{records} records, all clean"),
    }
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let read = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

fn write_files(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, content) in files {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn append_to(path: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}
