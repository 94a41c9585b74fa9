//! What the two ends ask and answer. A request may be preceded by pieces of the workspace, and so may
//! its answer; one request is under way at a time.

use serde::{Deserialize, Serialize};
use stockade_core::{
    Bytes, Capabilities, Enforcement, Error, ErrorCode, Exit, ExitStatus, LimitKind, SandboxId,
    SandboxSpec, Signal, Span, clean_foreign,
};

use super::guest::Identity;

/// First line of the peer's program, before any frame.
pub const HELLO_LINE: &[u8] = b"stockade-far 1\n";

/// What this side asks of the other one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RemoteRequest {
    /// Makes a place for a sandbox. Not answered by itself: pieces of the workspace, if any, and
    /// `Create` follow at once.
    Open {
        /// The sandbox.
        id: SandboxId,
        /// How many may live there at once.
        capacity: Option<u32>,
    },
    /// Builds the walls, with the workspace that was sent.
    Create {
        /// What was asked for. Its workspace is read for its kind alone.
        spec: Box<SandboxSpec>,
        /// How each limit is expected to hold.
        enforcement: Vec<Enforcement>,
    },
    /// Holds an execution that starts next to its limits. Not answered.
    Watch {
        /// Its number.
        execution: u32,
        /// Its processor time.
        cpu_time: Option<Span>,
    },
    /// The program of an execution runs. Not answered.
    Started {
        /// Its number.
        execution: u32,
        /// The program's process number, as the sandbox counts.
        pid: u32,
    },
    /// An execution has ended: which limit was it, what did it use, and what has changed?
    Ended {
        /// Its number.
        execution: u32,
        /// How, as far as the agent can tell.
        how: ExitHint,
        /// What its processes used of the processor, by the agent's word.
        cpu_time: Option<Span>,
    },
    /// Takes over the changes that were sent.
    Push,
    /// What has changed?
    Pull,
    /// Sends nothing after its answer, until `GoOn` or `Become`.
    StandStill,
    /// Goes on. Not answered.
    GoOn,
    /// Continues as a copy of the machine that stood still, with a new peer that knows of no requests under way.
    Become {
        /// Its new identity: host name, machine id, seed.
        identity: Box<Identity>,
        /// Whether there is another copy of the workspace on that side.
        shared: bool,
    },
    /// Takes everything down, and brings the last changes.
    Destroy,
}

/// What the peer says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum PeerEvent {
    /// Done; what these entries of the archive name had changed there too, and was left alone.
    Done {
        /// Their numbers.
        conflicts: Vec<u32>,
    },
    /// How an execution ended.
    Judged(CounterReport),
    /// It could not be done.
    Failed(RemoteFailure),
    /// Not an answer: this execution has gone beyond a limit and is to be ended.
    Kill {
        /// Its number.
        execution: u32,
    },
}

/// How an execution ended, as far as the agent can tell.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExitHint {
    /// It exited, or never started.
    Exited,
    /// A signal ended it.
    Signalled(i32),
    /// How it ended is not known.
    Lost,
}

/// What the counters of the other host say about an execution.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CounterReport {
    /// The limit that ended it.
    pub limit: Option<LimitKind>,
    /// Processor time.
    pub cpu_time: Option<Span>,
    /// Highest memory.
    pub peak_memory: Option<Bytes>,
    /// The limits that it ran into and was not ended for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits_reached: Vec<LimitKind>,
}

/// An error that travels.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoteFailure {
    /// Its code's name.
    pub code: String,
    /// What went wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl ExitHint {
    /// What is known of an exit on this side.
    pub fn of(status: &ExitStatus) -> Self {
        match status {
            ExitStatus::Exited(_) | ExitStatus::StartFailed(_) | ExitStatus::LimitExceeded(_) => {
                Self::Exited
            }
            ExitStatus::Signalled(signal) => Self::Signalled(signal.0),
            ExitStatus::Lost(_) => Self::Lost,
        }
    }

    /// The same for who judges it.
    pub fn exit(self) -> Exit {
        Exit::from(match self {
            Self::Exited => ExitStatus::Exited(0),
            Self::Signalled(number) => ExitStatus::Signalled(Signal(number)),
            Self::Lost => ExitStatus::Lost(String::new()),
        })
    }
}

impl CounterReport {
    /// What was judged.
    pub fn of(judged: &Exit) -> Self {
        let limit = match judged.status {
            ExitStatus::LimitExceeded(limit) => Some(limit),
            ExitStatus::Exited(_)
            | ExitStatus::Signalled(_)
            | ExitStatus::StartFailed(_)
            | ExitStatus::Lost(_) => None,
        };
        let limits_reached = judged.limits_reached.clone();
        Self { limit, cpu_time: judged.cpu_time, peak_memory: judged.peak_memory, limits_reached }
    }

    /// The exit with what the peer knows of it.
    pub fn over(self, exit: Exit) -> Exit {
        let known = LimitKind::ALL.into_iter().filter(|kind| self.limits_reached.contains(kind));
        Exit {
            limits_reached: known.collect(),
            status: self.limit.map_or(exit.status, ExitStatus::LimitExceeded),
            cpu_time: self.cpu_time.or(exit.cpu_time),
            peak_memory: self.peak_memory.or(exit.peak_memory),
            ..exit
        }
    }
}

impl From<&Error> for RemoteFailure {
    fn from(error: &Error) -> Self {
        let mut message = error.message().to_owned();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        let code = error.code().name().into();
        Self { code, message, remedy: error.hint().map(str::to_owned) }
    }
}

impl RemoteFailure {
    /// The public error, with the name of the peer. Its text is the peer's, with control characters removed.
    pub fn error(self, operation: &'static str, called: &str) -> Error {
        let known = ErrorCode::ALL.into_iter().find(|code| code.name() == self.code);
        let code = known.unwrap_or(ErrorCode::Protocol);
        let error =
            Error::new(code, operation, format!("{called}: {}", clean_foreign(&self.message)));
        match self.remedy {
            Some(remedy) => error.remedy(clean_foreign(&remedy)),
            None => error,
        }
    }
}

/// What the peer's program prints when it is asked one thing and not for a sandbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ProbeReply {
    /// What its host lets it enforce.
    Measured(Box<Capabilities>),
    /// The sandboxes there.
    Listed(Vec<SandboxId>),
    /// Nothing is left of a sandbox.
    Gone {
        /// Whether anything was there.
        found: bool,
    },
    /// It could not be done.
    Failed(RemoteFailure),
}
