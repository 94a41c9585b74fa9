//! How an execution ended. Every outcome comes from a mechanism (wait status, counter, timer), never
//! from text (C-16).

use serde::{Deserialize, Serialize};

use crate::{Bytes, DeniedHost, EgressRule, Enforcement, LimitKind, Signal, Span};

/// How an execution ended, with everything a caller or a record wants to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "OutcomeWire", into = "OutcomeWire")]
pub struct Outcome {
    /// What ended it.
    pub ending: Ending,
    /// Standard output.
    pub stdout: StreamReport,
    /// Standard error.
    pub stderr: StreamReport,
    /// What it used.
    pub usage: Usage,
    /// How each limit was enforced.
    pub limits: Vec<Enforcement>,
    /// The limits that it ran into and was not ended for: a process that could not be started, a file that
    /// could not grow. What was dropped of its output is told beside the streams.
    pub limits_reached: Vec<LimitKind>,
    /// The hosts that the network of its sandbox denied while it ran, at most
    /// [`MAX_DENIED_HOSTS`](crate::MAX_DENIED_HOSTS) of them. Programs beside it in the sandbox are not told apart.
    pub network_denied: Vec<DeniedHost>,
    /// Whether it failed after something in its sandbox had tried to reach another host, and the sandbox has no
    /// way to any. Told where the kernel's counters tell.
    pub network_unreachable: bool,
    /// The rules that would have been enough for what its sandbox has reached so far, at most
    /// [`MAX_OBSERVED_RULES`](crate::MAX_OBSERVED_RULES) of them. Absent where nothing was observed.
    pub network_observed: Option<Vec<EgressRule>>,
}

/// What ended an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it.
    Signalled(Signal),
    /// It never ran (C-10).
    StartFailed(StartFailure),
    /// It went beyond this limit and was ended for it.
    LimitExceeded(LimitKind),
    /// Its wall time ran out (C-11).
    TimedOut,
    /// The caller ended it.
    Cancelled,
    /// Another process ended its sandbox on purpose, as `stockade kill` does.
    Killed,
    /// It was refused before it ran: no room in the quota, an image that cannot be used.
    Refused(String),
    /// The walls went away underneath it; how it would have ended is unknown.
    Lost(String),
}

/// Why a program never started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "kebab-case")]
pub enum StartFailure {
    /// There is no such program.
    NotFound(String),
    /// There is, but it cannot be executed.
    NotExecutable(String),
    /// The working directory is not there or not a directory.
    BadDirectory(String),
    /// The sandbox's own limits left no room for it.
    NoResources(String),
    /// Its sandbox could not be built.
    NoSandbox(String),
}

/// What became of one output stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamReport {
    /// Bytes passed on.
    pub bytes: u64,
    /// Bytes dropped because the cap was reached (C-12).
    pub dropped: u64,
}

/// What an execution used. Absent: the backend cannot tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// From the start to the end.
    pub wall_ms: u64,
    /// Processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Highest memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Instructions, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}

impl Usage {
    /// What was measured.
    pub fn new(wall: Span, cpu: Option<Span>, peak_memory: Option<Bytes>) -> Self {
        let cpu_ms = cpu.map(Span::as_millis);
        Self {
            wall_ms: wall.as_millis(),
            cpu_ms,
            peak_memory_bytes: peak_memory.map(|peak| peak.0),
            fuel: None,
        }
    }
}

impl StreamReport {
    /// Whether anything was dropped.
    pub const fn truncated(&self) -> bool {
        self.dropped > 0
    }
}

impl StartFailure {
    /// The sentence that says what was wrong.
    pub fn detail(&self) -> &str {
        match self {
            Self::NotFound(detail)
            | Self::NotExecutable(detail)
            | Self::BadDirectory(detail)
            | Self::NoResources(detail)
            | Self::NoSandbox(detail) => detail,
        }
    }
}

impl Outcome {
    /// Whether the program ran to its end and said that all is well.
    pub fn success(&self) -> bool {
        self.ending == Ending::Exited(0)
    }

    /// Whether output of either stream was dropped.
    pub fn truncated(&self) -> bool {
        self.stdout.truncated() || self.stderr.truncated()
    }

    /// The exit code a command line should end with: the program's own; 124 when time ran out, 125 for
    /// what is not the program's doing, 126 and 127 when it never ran, 128 + n for signals.
    pub fn exit_code(&self) -> i32 {
        match &self.ending {
            Ending::Exited(code) => *code,
            Ending::Signalled(signal) => 128 + signal.0,
            Ending::StartFailed(StartFailure::NotFound(_)) => 127,
            Ending::StartFailed(StartFailure::NotExecutable(_) | StartFailure::BadDirectory(_)) => {
                126
            }
            Ending::StartFailed(StartFailure::NoResources(_) | StartFailure::NoSandbox(_))
            | Ending::Refused(_)
            | Ending::Lost(_) => 125,
            Ending::LimitExceeded(_) | Ending::Cancelled | Ending::Killed => 128 + Signal::KILL.0,
            Ending::TimedOut => 124,
        }
    }
}

/// The JSON form: what callers ask about stands side by side.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OutcomeWire {
    ending: EndingKind,
    /// The program's own, or −1 where it has none.
    exit_code: i32,
    signal: Option<String>,
    timed_out: bool,
    truncated: bool,
    limit_exceeded: Option<LimitKind>,
    start_failure: Option<StartFailure>,
    /// Absent in most, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    lost: Option<String>,
    stdout: StreamReport,
    stderr: StreamReport,
    usage: Usage,
    limits: Vec<Enforcement>,
    /// Absent in most, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits_reached: Vec<LimitKind>,
    /// Absent in most, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    network_denied: Vec<DeniedHost>,
    /// Absent in most, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    network_unreachable: bool,
    /// Absent in most, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network_observed: Option<Vec<EgressRule>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EndingKind {
    Exited,
    Signalled,
    StartFailed,
    LimitExceeded,
    TimedOut,
    Cancelled,
    Killed,
    Refused,
    Lost,
}

impl From<Outcome> for OutcomeWire {
    fn from(outcome: Outcome) -> Self {
        let truncated = outcome.truncated();
        let blank = Self {
            ending: EndingKind::Cancelled,
            exit_code: -1,
            signal: None,
            timed_out: false,
            truncated,
            limit_exceeded: None,
            start_failure: None,
            refused: None,
            lost: None,
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            usage: outcome.usage,
            limits: outcome.limits,
            limits_reached: outcome.limits_reached,
            network_denied: outcome.network_denied,
            network_unreachable: outcome.network_unreachable,
            network_observed: outcome.network_observed,
        };
        match outcome.ending {
            Ending::Exited(exit_code) => Self { ending: EndingKind::Exited, exit_code, ..blank },
            Ending::Signalled(signal) => {
                Self { ending: EndingKind::Signalled, signal: Some(signal.name()), ..blank }
            }
            Ending::StartFailed(failure) => {
                Self { ending: EndingKind::StartFailed, start_failure: Some(failure), ..blank }
            }
            Ending::LimitExceeded(limit) => {
                Self { ending: EndingKind::LimitExceeded, limit_exceeded: Some(limit), ..blank }
            }
            Ending::TimedOut => Self { ending: EndingKind::TimedOut, timed_out: true, ..blank },
            Ending::Cancelled => blank,
            Ending::Killed => Self { ending: EndingKind::Killed, ..blank },
            Ending::Refused(reason) => {
                Self { ending: EndingKind::Refused, refused: Some(reason), ..blank }
            }
            Ending::Lost(reason) => Self { ending: EndingKind::Lost, lost: Some(reason), ..blank },
        }
    }
}

impl TryFrom<OutcomeWire> for Outcome {
    type Error = String;

    fn try_from(wire: OutcomeWire) -> Result<Self, String> {
        let ending = match wire.ending {
            EndingKind::Exited => Some(Ending::Exited(wire.exit_code)),
            EndingKind::Signalled => {
                wire.signal.as_deref().and_then(Signal::from_name).map(Ending::Signalled)
            }
            EndingKind::StartFailed => wire.start_failure.map(Ending::StartFailed),
            EndingKind::LimitExceeded => wire.limit_exceeded.map(Ending::LimitExceeded),
            EndingKind::TimedOut => Some(Ending::TimedOut),
            EndingKind::Cancelled => Some(Ending::Cancelled),
            EndingKind::Killed => Some(Ending::Killed),
            EndingKind::Refused => wire.refused.map(Ending::Refused),
            EndingKind::Lost => wire.lost.map(Ending::Lost),
        };
        Ok(Self {
            ending: ending.ok_or("`ending` names a detail that is not there")?,
            stdout: wire.stdout,
            stderr: wire.stderr,
            usage: wire.usage,
            limits: wire.limits,
            limits_reached: wire.limits_reached,
            network_denied: wire.network_denied,
            network_unreachable: wire.network_unreachable,
            network_observed: wire.network_observed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_outcome(ending: Ending) -> Outcome {
        Outcome {
            ending,
            stdout: StreamReport { bytes: 5, dropped: 2 },
            stderr: StreamReport::default(),
            usage: Usage::default(),
            limits: Vec::new(),
            limits_reached: Vec::new(),
            network_denied: Vec::new(),
            network_unreachable: false,
            network_observed: None,
        }
    }

    #[test]
    fn the_json_form_has_the_four_answers_side_by_side() {
        let json = serde_json::to_value(build_outcome(Ending::TimedOut)).unwrap();
        assert_eq!(json["exitCode"], -1);
        assert_eq!(json["timedOut"], true);
        assert_eq!(json["truncated"], true);
        assert!(json["signal"].is_null());
        let json = serde_json::to_value(build_outcome(Ending::Signalled(Signal(11)))).unwrap();
        assert_eq!(json["signal"], "SIGSEGV");
    }

    #[test]
    fn what_was_ended_on_purpose_or_refused_is_not_lost() {
        for (ending, name, refused) in [
            (Ending::Killed, "killed", serde_json::Value::Null),
            (Ending::Refused("no room".into()), "refused", "no room".into()),
        ] {
            let json = serde_json::to_value(build_outcome(ending.clone())).unwrap();
            assert_eq!((&json["ending"], &json["refused"]), (&name.into(), &refused));
            assert!(json["lost"].is_null());
            assert_eq!(serde_json::from_value::<Outcome>(json).unwrap().ending, ending);
        }
    }

    #[test]
    fn every_ending_has_its_own_exit_code_for_the_command_line() {
        let failed = |failure: fn(String) -> StartFailure| Ending::StartFailed(failure("x".into()));
        for (ending, code) in [
            (Ending::Exited(7), 7),
            (Ending::Signalled(Signal(15)), 143),
            (failed(StartFailure::NotFound), 127),
            (failed(StartFailure::NotExecutable), 126),
            (failed(StartFailure::BadDirectory), 126),
            (failed(StartFailure::NoResources), 125),
            (failed(StartFailure::NoSandbox), 125),
            (Ending::LimitExceeded(LimitKind::Memory), 137),
            (Ending::TimedOut, 124),
            (Ending::Cancelled, 137),
            (Ending::Killed, 137),
            (Ending::Refused("no room".into()), 125),
            (Ending::Lost("gone".into()), 125),
        ] {
            assert_eq!(build_outcome(ending.clone()).exit_code(), code, "{ending:?}");
        }
    }
}
