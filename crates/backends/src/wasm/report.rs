//! What a worker is told and what it answers. The order comes first on its input: it holds the program's
//! environment, which other processes must not see, and which must not become the worker's own. The answer is
//! guest input: a worker that was taken over says what it likes, and is believed about its own end only.

use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stockade_core::{Bytes, Exit, ExitStatus, LimitKind, Signal, StartFailure};

use super::engine::EngineMode;

/// Directory of the worker's own files inside its walls.
pub(super) const WORKER_DIR: &str = "/stockade";
/// Longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 16 << 10;
/// The longest order that is read.
const LONGEST_ORDER: u64 = 64 << 20;

/// What a worker is to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkerOrder {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub mode: WorkerMode,
    /// The digest of the code in [`WORKER_DIR`], which must be that and no other.
    pub code: String,
    /// The name of the file for the answer.
    pub answer: String,
    /// The directories the program is given: where it sees each, where it lies, and whether only to
    /// read.
    pub places: Vec<(String, String, bool)>,
    /// Where it starts: a path in one of them.
    pub start: (usize, String),
    pub memory: Option<u64>,
    /// Whether what is written is bounded, by a [`super::disk_quota`] among the answers.
    pub disk: bool,
    pub open_files: Option<u32>,
    pub fuel: Option<u64>,
    /// Processor time, in milliseconds.
    pub cpu_time: Option<u64>,
}

impl WorkerOrder {
    /// As it goes over the worker's input: its length, then itself. What follows is the program's.
    pub(super) fn encode_frame(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        let length = text.len() as u64;
        if length > LONGEST_ORDER {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok([&length.to_le_bytes()[..], &text].concat())
    }

    /// Reads one, and not a byte of what follows it.
    pub(super) fn read_from(mut from: impl Read) -> io::Result<Self> {
        let mut length = [0; 8];
        from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_ORDER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut text = Vec::new();
        from.take(length).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// How a program was compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WorkerMode {
    Plain,
    Counted,
    Fixed,
}

impl From<EngineMode> for WorkerMode {
    fn from(mode: EngineMode) -> Self {
        match mode {
            EngineMode::Plain => Self::Plain,
            EngineMode::Counted => Self::Counted,
            EngineMode::Fixed => Self::Fixed,
        }
    }
}

impl From<WorkerMode> for EngineMode {
    fn from(way: WorkerMode) -> Self {
        match way {
            WorkerMode::Plain => Self::Plain,
            WorkerMode::Counted => Self::Counted,
            WorkerMode::Fixed => Self::Fixed,
        }
    }
}

/// How a program ended, from inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct WorkerAnswer {
    pub ending: WorkerEnding,
    pub peak_memory: u64,
    pub fuel: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WorkerEnding {
    Exited(u8),
    Signalled(u8),
    Limit(LimitKind),
    NotStarted(StartFailure),
    Lost(String),
}

impl WorkerAnswer {
    /// The answer to how a program ended.
    pub(super) fn of(exit: &Exit) -> Self {
        let ending = match &exit.status {
            ExitStatus::Exited(code) => {
                WorkerEnding::Exited(u8::try_from(*code & 0xff).unwrap_or(0))
            }
            ExitStatus::Signalled(signal) => {
                WorkerEnding::Signalled(u8::try_from(signal.0).unwrap_or(9))
            }
            ExitStatus::LimitExceeded(limit) => WorkerEnding::Limit(*limit),
            ExitStatus::StartFailed(failure) => WorkerEnding::NotStarted(failure.clone()),
            ExitStatus::Lost(why) => WorkerEnding::Lost(why.clone()),
        };
        let peak_memory = exit.peak_memory.map_or(0, |peak| peak.0);
        Self { ending, peak_memory, fuel: exit.fuel }
    }

    /// The answer in a file, if there is one and it is whole. Follows no link.
    pub(super) fn read_file(path: &Path) -> Option<Self> {
        serde_json::from_slice(&super::cache::read_bounded_file(path, MAX_ANSWER_BYTES).ok()?).ok()
    }

    /// Puts it into what the walls themselves saw of the end.
    pub(super) fn apply_to(self, seen: Exit) -> Exit {
        let status = match (seen.status, self.ending) {
            // Only a worker that ended by itself has something to say about it.
            (ExitStatus::Exited(0), told) => told.into(),
            (seen, _) => seen,
        };
        Exit { status, peak_memory: Some(Bytes(self.peak_memory)), fuel: self.fuel, ..seen }
    }
}

impl From<WorkerEnding> for ExitStatus {
    fn from(told: WorkerEnding) -> Self {
        match told {
            WorkerEnding::Exited(code) => Self::Exited(code.into()),
            WorkerEnding::Signalled(number) if (1..=64).contains(&number) => {
                Self::Signalled(Signal(number.into()))
            }
            WorkerEnding::Signalled(_) => Self::Lost("the worker names no signal".into()),
            WorkerEnding::Limit(limit) => Self::LimitExceeded(limit),
            WorkerEnding::NotStarted(failure) => Self::StartFailed(failure),
            WorkerEnding::Lost(why) => Self::Lost(why),
        }
    }
}
