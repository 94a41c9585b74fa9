//! The contract every front end, the engine and every backend agree on.
//!
//! Types and pure functions only. This crate never makes an operating-system call, never reads the
//! clock and never looks at its surroundings: what it decides depends on its arguments alone.
//! Clause numbers (`C-01` …) refer to `docs/contract.md`.

mod admission;
mod backend;
mod boundary;
mod capabilities;
mod command;
mod denied;
mod error;
mod feature;
mod image;
mod limits;
mod lookalike;
mod name;
mod network;
mod observed;
mod outcome;
mod overlay_dirs;
mod path;
mod portable;
mod presets;
mod recorder;
mod request_path;
mod request_scope;
mod secret_binding;
mod secret_renewal;
mod secrets;
mod spec;
mod special;
mod text;
mod units;
mod workspace_source;

pub use admission::{Admitted, Refusal, Refusals, admit, admit_command};
pub use backend::{
    Backend, CarriedProgram, Entry, EntryKind, Exit, ExitStatus, Files, FilesExt, Process,
    ProcessControl, ProcessEvent, ProcessEvents, Sandbox, SnapshotFiles, SnapshotKind, StreamId,
    Unsent, create_and_restore,
};
pub use boundary::Boundary;
pub use capabilities::{Capabilities, Gap, Support};
pub use command::{Command, Run, Signal, Stdin, TerminalSize};
pub use denied::{DeniedHost, MAX_DENIED_HOSTS, NO_NETWORK_HINT, describe_denied_hosts};
pub use error::{Error, ErrorCode, Result};
pub use feature::Feature;
pub use image::{ImageDefaults, ImageForm, ImageProvider, PullPolicy, ResolvedImage};
pub use limits::{EffectiveLimits, Enforcement, LimitKind, Limits};
pub use name::{
    BackendName, EngineId, EnvName, ImageName, JobId, NameError, SandboxId, SnapshotId, TenantName,
    TokenName, WorkspaceId,
};
pub use network::{
    EgressDecision, EgressRule, Network, canonical_host, decide_address, decide_name,
    decide_request, is_policy_word, judges_requests, list_ports,
};
pub use observed::{MAX_OBSERVED_RULES, OBSERVE_WARNING, describe_observed_rules};
pub use outcome::{Ending, Outcome, StartFailure, StreamReport, Usage};
pub use overlay_dirs::OverlayDirs;
pub use path::{HostPath, PathError, SandboxPath, WORKSPACE_ROOT};
pub use presets::{EGRESS_PRESETS, EgressPreset, parse_egress_list};
pub use recorder::WorkspaceRecorder;
pub use request_path::{RequestPath, RequestPathError};
pub use request_scope::is_plain_method;
pub use secret_binding::{SecretBinding, SecretPlace, SecretValue, find_unreached_secret};
pub use secret_renewal::RenewalCause;
pub use spec::{
    BackendChoice, HostTree, Image, Mount, RootMode, SandboxSpec, User, Workspace, WorkspaceAt,
};
pub use special::{SpecialAddress, classify_special};
pub use text::{MAX_FOREIGN_CHARS, clean_foreign, is_unsafe_to_show};
pub use units::{Bytes, Millicores, Span, UnitError};
pub use workspace_source::{HeldWorkspace, WorkspaceSource};
