//! Limits: what a caller may ask for, what holds by default, and how each was enforced.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Feature, Millicores, Span};

/// Least memory of a sandbox: with less its walls cannot be built on any backend.
const MIN_MEMORY: Bytes = Bytes::mib(4);
/// Least open files of each process: the first one holds some while the walls are built.
const MIN_OPEN_FILES: u32 = 16;
/// Most processes: a kernel counts up to 4194304, those of the walls included.
const MAX_PROCESSES: u32 = 4_000_000;

/// The limits a caller asks for. What is left out gets the default (C-03).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Share of processor time. No default: a sandbox may use every core unless told otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_rate: Option<Millicores>,
    /// Processor time of one execution, descendants included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<Span>,
    /// Duration of one execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_time: Option<Span>,
    /// Memory of the whole sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// What the sandbox writes to disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Bytes>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Open files of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Output of one execution, both streams together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Bytes>,
    /// Instructions of one execution, counted the same on every machine. No default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// Share of processor time.
    CpuRate,
    /// Processor time.
    CpuTime,
    /// Duration.
    WallTime,
    /// Memory.
    Memory,
    /// Disk.
    Disk,
    /// Processes and threads.
    Processes,
    /// Open files.
    OpenFiles,
    /// Output.
    Output,
    /// Instructions.
    Fuel,
}

impl LimitKind {
    /// Every kind of limit.
    pub const ALL: [Self; 9] = [
        Self::CpuRate,
        Self::CpuTime,
        Self::WallTime,
        Self::Memory,
        Self::Disk,
        Self::Processes,
        Self::OpenFiles,
        Self::Output,
        Self::Fuel,
    ];

    /// The feature a backend needs to enforce this limit.
    pub const fn feature(self) -> Feature {
        match self {
            Self::CpuRate => Feature::CpuRateLimit,
            Self::CpuTime => Feature::CpuTimeLimit,
            Self::WallTime => Feature::WallTimeLimit,
            Self::Memory => Feature::MemoryLimit,
            Self::Disk => Feature::DiskLimit,
            Self::Processes => Feature::ProcessLimit,
            Self::OpenFiles => Feature::OpenFilesLimit,
            Self::Output => Feature::OutputLimit,
            Self::Fuel => Feature::FuelLimit,
        }
    }

    /// The name used in JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuRate => "cpu-rate",
            Self::CpuTime => "cpu-time",
            Self::WallTime => "wall-time",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Processes => "processes",
            Self::OpenFiles => "open-files",
            Self::Output => "output",
            Self::Fuel => "fuel",
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Limits {
    /// Whether the caller named this limit.
    pub fn asks_for(&self, kind: LimitKind) -> bool {
        self.text(kind).is_some()
    }

    /// The value asked for, in human units.
    pub fn text(&self, kind: LimitKind) -> Option<String> {
        match kind {
            LimitKind::CpuRate => self.cpu_rate.map(|value| value.to_string()),
            LimitKind::CpuTime => self.cpu_time.map(|value| value.to_string()),
            LimitKind::WallTime => self.wall_time.map(|value| value.to_string()),
            LimitKind::Memory => self.memory.map(|value| value.to_string()),
            LimitKind::Disk => self.disk.map(|value| value.to_string()),
            LimitKind::Processes => self.processes.map(|value| value.to_string()),
            LimitKind::OpenFiles => self.open_files.map(|value| value.to_string()),
            LimitKind::Output => self.output.map(|value| value.to_string()),
            LimitKind::Fuel => self.fuel.map(|value| value.to_string()),
        }
    }

    /// Limits of zero: they would stop everything and are always a mistake.
    pub fn zeroes(&self) -> impl Iterator<Item = LimitKind> {
        let zero = |kind: &LimitKind| match kind {
            LimitKind::CpuRate => self.cpu_rate == Some(Millicores(0)),
            LimitKind::CpuTime => self.cpu_time == Some(Span::millis(0)),
            LimitKind::WallTime => self.wall_time == Some(Span::millis(0)),
            LimitKind::Memory => self.memory == Some(Bytes(0)),
            LimitKind::Processes => self.processes == Some(0),
            LimitKind::OpenFiles => self.open_files == Some(0),
            LimitKind::Fuel => self.fuel == Some(0),
            // No disk and no output at all are sensible wishes.
            LimitKind::Disk | LimitKind::Output => false,
        };
        LimitKind::ALL.into_iter().filter(zero)
    }

    /// Limits, other than zero, with which no sandbox can be built: each with the reason and the remedy.
    pub fn unusable(&self) -> impl Iterator<Item = (LimitKind, &'static str, String)> {
        let too_low = "is less than a sandbox needs to be built";
        let memory = self.memory.filter(|given| *given > Bytes(0) && *given < MIN_MEMORY);
        let files = self.open_files.filter(|given| (1..MIN_OPEN_FILES).contains(given));
        let processes = self.processes.filter(|given| *given > MAX_PROCESSES);
        let found = [
            memory.map(|_| (LimitKind::Memory, too_low, format!("give it at least {MIN_MEMORY}"))),
            files.map(|_| {
                (LimitKind::OpenFiles, too_low, format!("give it at least {MIN_OPEN_FILES}"))
            }),
            processes.map(|_| {
                let reason = "is more than a kernel can count";
                (LimitKind::Processes, reason, format!("give it at most {MAX_PROCESSES}"))
            }),
        ];
        found.into_iter().flatten()
    }

    /// What is wrong with a share of more cores than a machine has, and the remedy. It bounds nothing there, and
    /// is most often meant in thousandths: both readings are named.
    pub fn too_many_cores(&self, cores: u32) -> Option<(String, String)> {
        let rate = self.cpu_rate.filter(|rate| rate.0 > cores.saturating_mul(1000))?;
        let number = f64::from(rate.0) / 1000.0;
        let reason = format!("{number} cores are more than the {cores} of this machine");
        let remedy = match rate.0 % 1000 {
            0 => format!(
                "write `{number}m` for {number} thousandths of a core, or at most `{cores}` for cores"
            ),
            _ => format!(
                "write at most `{cores}` for cores, or thousandths of a core such as `500m`"
            ),
        };
        Some((reason, remedy))
    }

    /// The limits of C-03.
    pub const fn defaults() -> Self {
        Self {
            cpu_rate: None,
            cpu_time: Some(Span::secs(30)),
            wall_time: Some(Span::secs(60)),
            memory: Some(Bytes::mib(512)),
            disk: Some(Bytes::mib(1024)),
            processes: Some(128),
            open_files: Some(1024),
            output: Some(Bytes::mib(16)),
            fuel: None,
        }
    }

    /// These limits, with the ones left out taken from `fallback`.
    pub fn or(self, fallback: Self) -> Self {
        Self {
            cpu_rate: self.cpu_rate.or(fallback.cpu_rate),
            cpu_time: self.cpu_time.or(fallback.cpu_time),
            wall_time: self.wall_time.or(fallback.wall_time),
            memory: self.memory.or(fallback.memory),
            disk: self.disk.or(fallback.disk),
            processes: self.processes.or(fallback.processes),
            open_files: self.open_files.or(fallback.open_files),
            output: self.output.or(fallback.output),
            fuel: self.fuel.or(fallback.fuel),
        }
    }

    /// The limits that are higher here than in `usual`. One that either leaves out is not compared.
    pub fn higher_than(&self, usual: &Self) -> Vec<LimitKind> {
        fn is_higher<T: PartialOrd>(given: Option<T>, usual: Option<T>) -> bool {
            given.zip(usual).is_some_and(|(given, usual)| given > usual)
        }
        let higher = |kind: &LimitKind| match kind {
            LimitKind::CpuRate => is_higher(self.cpu_rate, usual.cpu_rate),
            LimitKind::CpuTime => is_higher(self.cpu_time, usual.cpu_time),
            LimitKind::WallTime => is_higher(self.wall_time, usual.wall_time),
            LimitKind::Memory => is_higher(self.memory, usual.memory),
            LimitKind::Disk => is_higher(self.disk, usual.disk),
            LimitKind::Processes => is_higher(self.processes, usual.processes),
            LimitKind::OpenFiles => is_higher(self.open_files, usual.open_files),
            LimitKind::Output => is_higher(self.output, usual.output),
            LimitKind::Fuel => is_higher(self.fuel, usual.fuel),
        };
        LimitKind::ALL.into_iter().filter(higher).collect()
    }

    /// These limits without one of them.
    pub fn lift(&mut self, kind: LimitKind) {
        match kind {
            LimitKind::CpuRate => self.cpu_rate = None,
            LimitKind::CpuTime => self.cpu_time = None,
            LimitKind::WallTime => self.wall_time = None,
            LimitKind::Memory => self.memory = None,
            LimitKind::Disk => self.disk = None,
            LimitKind::Processes => self.processes = None,
            LimitKind::OpenFiles => self.open_files = None,
            LimitKind::Output => self.output = None,
            LimitKind::Fuel => self.fuel = None,
        }
    }
}

/// The limits that hold for an admitted sandbox. Absent means that the caller gave the limit up.
pub type EffectiveLimits = Limits;

/// How one limit was enforced: the part of the report that C-02 asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "enforced", rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[serde(deny_unknown_fields)]
pub enum Enforcement {
    /// It holds.
    Fully {
        /// Which limit.
        limit: LimitKind,
        /// Its value, in human units.
        value: String,
        /// The mechanism.
        by: String,
    },
    /// It holds as far as the mechanism goes.
    Partly {
        /// Which limit.
        limit: LimitKind,
        /// Its value, in human units.
        value: String,
        /// The mechanism.
        by: String,
        /// What gets past it.
        gap: String,
    },
    /// Nothing enforces it here: a default that was not asked for, or a limit that was given up.
    NotAtAll {
        /// Which limit.
        limit: LimitKind,
        /// Why not.
        reason: String,
    },
}

impl Enforcement {
    /// The same for a command that has a value of its own.
    #[must_use]
    pub fn with_value(mut self, own: String) -> Self {
        match &mut self {
            Self::Fully { value, .. } | Self::Partly { value, .. } => *value = own,
            Self::NotAtAll { .. } => {}
        }
        self
    }

    /// The same for a command that a default does not hold for.
    #[must_use]
    pub fn lifted(self) -> Self {
        match self {
            Self::NotAtAll { .. } => self,
            Self::Fully { limit, .. } | Self::Partly { limit, .. } => {
                let reason = "no default for what is detached or at a terminal".into();
                Self::NotAtAll { limit, reason }
            }
        }
    }

    /// Which limit this is about.
    pub const fn limit(&self) -> LimitKind {
        match self {
            Self::Fully { limit, .. }
            | Self::Partly { limit, .. }
            | Self::NotAtAll { limit, .. } => *limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_no_sandbox_can_be_built_with_are_told_with_a_remedy() {
        let limits = |memory, processes, open_files| {
            let memory = Some(Bytes(memory));
            Limits {
                memory,
                processes: Some(processes),
                open_files: Some(open_files),
                ..Limits::default()
            }
        };
        let kinds = |limits: Limits| limits.unusable().map(|(kind, ..)| kind).collect::<Vec<_>>();
        let all = [LimitKind::Memory, LimitKind::OpenFiles, LimitKind::Processes];
        assert_eq!(kinds(limits(1, u32::MAX, 1)), all);
        assert_eq!(kinds(limits(MIN_MEMORY.0, MAX_PROCESSES, MIN_OPEN_FILES)), []);
        assert_eq!(kinds(limits(0, 0, 0)), []);
        assert_eq!(kinds(Limits::defaults()), []);
        let (_, _, remedy) = limits(1, 1, 64).unusable().next().unwrap();
        assert_eq!(remedy, "give it at least 4m");
    }

    #[test]
    fn limits_that_are_higher_than_usual_are_found() {
        let usual = Limits::defaults();
        let memory = Some(Bytes::mib(1024));
        let given = Limits { memory, processes: Some(8), fuel: Some(1), ..Limits::default() };
        assert_eq!(given.higher_than(&usual), [LimitKind::Memory]);
        assert_eq!(usual.higher_than(&usual), []);
    }

    #[test]
    fn more_cores_than_there_are_is_told_with_both_readings() {
        let limits = |rate| Limits { cpu_rate: Some(Millicores(rate)), ..Limits::default() };
        let (reason, remedy) = limits(500_000).too_many_cores(2).unwrap();
        assert_eq!(reason, "500 cores are more than the 2 of this machine");
        assert!(remedy.contains("`500m`") && remedy.contains("at most `2`"), "{remedy}");
        assert!(limits(2_500).too_many_cores(2).is_some());
        assert_eq!(limits(2_000).too_many_cores(2), None);
        assert_eq!(limits(500).too_many_cores(2), None);
        assert_eq!(Limits::default().too_many_cores(1), None);
    }
}
