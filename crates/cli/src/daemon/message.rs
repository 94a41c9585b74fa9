//! What a command and a sandbox's supervisor say to each other. Plain data; the frame carries bytes.

use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Boundary, Command, EgressRule, Enforcement, Entry, HostPath, JobId, Network,
    Outcome, SandboxId, SandboxPath, SandboxSpec, SnapshotId, SnapshotKind, Span, StreamId,
    TerminalSize, Workspace, WorkspaceId,
};
use stockade_engine::{Snapshot, Timestamp, VerifiedParts};

use super::wire_error::WireError;
use crate::args::secrets::SecretValues;

/// Version of the protocol that both sides must speak. Raised with every change that an older side misreads.
pub const PROTOCOL_VERSION: u32 = 9;

/// Chunk size of file operations and of input.
pub const CHUNK_BYTES: u32 = 256 << 10;

/// Label that names the sandbox which a teleported one replaces.
pub const ORIGIN_LABEL: &str = "teleported-from";

/// What a command says to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SupervisorRequest {
    /// Always first.
    Hello { version: u32 },
    /// What there is and what runs.
    Info,
    /// Starts a program. Its events follow, unless it is detached. Takes up the connection.
    Exec { command: Box<Command>, detach: bool },
    /// The output of a program, from this event on. Takes up the connection.
    Logs { job: Option<JobId>, from: u64, follow: bool },
    /// About the sandbox's files.
    File(SandboxFileRequest),
    /// About its whole state.
    State(SandboxStateRequest),
    /// About its network.
    Network(SandboxNetworkRequest),
    /// Connects to a port inside. Takes up the connection: after [`SupervisorReply::Done`] both sides send
    /// [`PortFrame`] and nothing else.
    Connect { port: u16 },
    /// Serves an agent's tools in the sandbox. Takes up the connection: after [`SupervisorReply::Done`] both sides
    /// send [`PortFrame`], with the bytes of the Model Context Protocol.
    Tools(ToolsRequest),
    /// For the program that takes up the connection.
    Program(ProgramRequest),
    /// Ends the sandbox.
    Destroy,
}

/// What is asked about the files of a sandbox. One answer each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SandboxFileRequest {
    /// What is at a path.
    Stat { path: SandboxPath },
    /// What is in a directory.
    List { path: SandboxPath },
    /// A piece of a file.
    Read { path: SandboxPath, offset: u64, most: u32 },
    /// The payload is a piece of a file.
    Write { path: SandboxPath, append: bool },
    /// Sets the permission bits of a regular file.
    SetMode { path: SandboxPath, mode: u32 },
    /// Makes a directory and those above it.
    MakeDir { path: SandboxPath },
}

/// What is asked about the whole state of a sandbox. One answer each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SandboxStateRequest {
    /// Captures its state.
    Snapshot { kind: SnapshotKind },
    /// Brings a captured state back.
    Restore { snapshot: SnapshotId },
    /// Stops everything in it where it is.
    Pause,
    /// Lets it go on.
    Resume,
    /// What it was made of, for one who makes copies.
    Describe,
    /// Writes the tree at a path as a tar archive into a new file of this user.
    Archive { path: SandboxPath, into: HostPath, most: u64 },
}

/// What is asked about the network of a sandbox. One answer each.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SandboxNetworkRequest {
    /// What it may reach now.
    Show,
    /// Puts other rules in force; answers with what it may reach then.
    Change(RuleChange),
    /// Makes sure that ports inside can be connected to.
    PreparePorts,
}

/// How the rules of a sandbox change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RuleChange {
    /// These instead of all there are.
    Set(Vec<EgressRule>),
    /// These too. Each takes the place of the rule that says the opposite.
    Add(Vec<EgressRule>),
}

/// What an agent may do beside what the sandbox offers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolsRequest {
    /// How many sandboxes it may have made at once.
    pub max_sandboxes: usize,
    /// The directories beneath which it may name workspaces.
    pub allowed: Vec<HostPath>,
}

/// What both sides of a connection to a port send. The payload of data is at most one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PortFrame {
    /// The payload is a piece of the stream.
    Data,
    /// A piece of the stream was passed on: one more may be sent.
    Taken,
    /// There are no more pieces, and all were taken.
    End,
}

/// What a program that takes up the connection is sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ProgramRequest {
    /// The payload is input of the program. The next piece is due after [`SupervisorReply::Taken`].
    Stdin,
    /// There will be no more input.
    StdinEnd,
    /// A signal for the program.
    Signal { number: i32 },
    /// Its terminal has a new size.
    Resize { size: TerminalSize },
    /// Ends the program and everything it started.
    Cancel,
}

/// What the supervisor answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SupervisorReply {
    /// Answers the greeting.
    Hello { version: u32 },
    /// Answers [`SupervisorRequest::Info`].
    Info(Info),
    /// The program has this record, behind these walls.
    Started { job: JobId, backend: BackendName, boundary: Boundary },
    /// The payload is output.
    Output { seq: u64, stream: StreamId },
    /// Output that is no longer there.
    Gap { events: u64, bytes: u64 },
    /// The program ended.
    End(Box<Outcome>),
    /// There is no more for now, and the request did not ask to wait.
    SoFar,
    /// The input was taken.
    Taken,
    /// One thing at a path.
    Entry(Entry),
    /// Things in a directory; `more` follow.
    Entries { entries: Vec<Entry>, more: bool },
    /// The payload is a piece of a file.
    Data,
    /// What was captured.
    Snapshot(Box<Snapshot>),
    /// Answers [`SandboxStateRequest::Describe`].
    Described(Box<Described>),
    /// What the sandbox may reach now.
    Network(NetworkState),
    /// It is done.
    Done,
    /// It is not.
    Failed(WireError),
}

/// The network of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkState {
    /// What it may reach now.
    pub policy: Network,
    /// The rules that would have been enough so far; absent where nothing was observed.
    pub observed: Option<Vec<EgressRule>>,
}

/// What a supervisor says about its sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Info {
    /// The sandbox.
    pub id: SandboxId,
    /// The workspace that keeps its changes apart.
    pub workspace: Option<WorkspaceId>,
    /// Idle timeout: how long it lives while it is not in use.
    pub idle: Option<Span>,
    /// How long it lives at most.
    pub lifetime: Option<Span>,
    /// Whether everything in it stands still.
    pub paused: bool,
    /// Its programs, the oldest first.
    pub jobs: Vec<JobInfo>,
}

/// One program of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobInfo {
    /// Its record.
    pub job: JobId,
    /// Its command line, for people; cut if it is long.
    pub command: String,
    /// When it started.
    pub started: Timestamp,
    /// Whether it runs.
    pub running: bool,
    /// The exit code a command line would end with, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// What copies of a sandbox are made of. Stays between processes of one user: it holds the environment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Described {
    /// What it was asked to be.
    pub spec: SandboxSpec,
    /// Whether its workspace was made for it, or for the sandbox that it is a copy of.
    #[serde(default)]
    pub has_made_workspace: bool,
    /// Whether its memory can be captured too.
    pub full: bool,
    /// Idle timeout: how long it lives while it is not in use.
    pub idle: Option<Span>,
    /// How long it lives at most.
    pub lifetime: Option<Span>,
}

/// What a supervisor is started with, on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SupervisorOrder {
    /// What to build.
    pub spec: SandboxSpec,
    /// Idle timeout: how long it lives while it is not in use.
    pub idle: Option<Span>,
    /// How long it lives at most.
    pub lifetime: Option<Span>,
    /// A program to start at once; the sandbox ends with it.
    pub command: Option<Command>,
    /// The workspace that was made for it, to be given back at its end.
    pub workspace: Option<WorkspaceId>,
    /// Whether it is a copy that shows the workspace of its original, read-only.
    #[serde(default)]
    pub shares_workspace: bool,
    /// What of the host its files come from, where no setting is read.
    pub origin: Workspace,
    /// The captured state that it starts with.
    pub from: Option<SnapshotId>,
    /// What of that state the caller has verified.
    pub verified: VerifiedParts,
    /// Values of the secrets that the spec binds: they stay in the supervisor's memory.
    #[serde(default, skip_serializing_if = "SecretValues::is_empty")]
    pub secrets: SecretValues,
    /// The URL of the daemon that builds the walls, where a flag names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<String>,
}

impl SupervisorOrder {
    /// A new sandbox that lives until it is ended, without a program and without secrets.
    pub fn new(spec: SandboxSpec, origin: Workspace) -> Self {
        Self {
            spec,
            idle: None,
            lifetime: None,
            command: None,
            workspace: None,
            shares_workspace: false,
            origin,
            from: None,
            verified: VerifiedParts::default(),
            secrets: SecretValues::new(),
            daemon: None,
        }
    }
}

/// What a supervisor says on its standard output, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LaunchStatus {
    /// The walls stand and the socket is there.
    Ready(SandboxReady),
    /// Nothing was made, or nothing is left.
    Failed(WireError),
}

/// What was made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SandboxReady {
    /// The sandbox.
    pub id: SandboxId,
    /// The program that was started with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// How each limit is enforced.
    pub limits: Vec<Enforcement>,
}
