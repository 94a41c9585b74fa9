//! What is recorded. No event has a place for environment values or input, so that no secret can
//! get into a record by them (C-41).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Boundary, EgressRule, Enforcement, EngineId, EnvName, Feature, ImageName, JobId,
    Outcome, RenewalCause, SandboxId, SnapshotId, SnapshotKind, TenantName, Workspace, WorkspaceId,
};
use stockade_fs::Timestamp;

use super::record::ContentHash;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[serde(deny_unknown_fields)]
pub enum Event {
    /// An execution is about to start: recorded before the program runs (C-40).
    Started {
        /// Its id.
        job: JobId,
        /// The sandbox it runs in.
        sandbox: SandboxId,
        /// The tenant it is run for.
        tenant: TenantName,
        /// Which backend built the walls.
        backend: BackendName,
        /// What stands between it and the host's kernel.
        boundary: Boundary,
        /// The argument vector, cut with a mark where it takes more than 4 KiB.
        command: Vec<String>,
        /// What it works on.
        workspace: Workspace,
        /// How each limit is enforced.
        limits: Vec<Enforcement>,
        /// What was given up by name.
        without: BTreeSet<Feature>,
        /// The caller's labels.
        labels: BTreeMap<String, String>,
        /// What trees of the host were added for: toolchains, git. Absent in records of earlier versions.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        trees: BTreeSet<String>,
        /// Whether its sandbox was made to reach every public host, which is unsafe (`--net observe`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        observes: bool,
        /// The engine that will record its end; absent in records of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<EngineId>,
        /// The image by its name, with its digest where this engine has resolved it; absent for other kinds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<ImageName>,
    },
    /// An execution has ended.
    Stopped {
        /// Its id.
        job: JobId,
        /// How, with what it used.
        outcome: Outcome,
        /// Where its log is, if one is kept.
        log: Option<String>,
    },
    /// An execution has ended at an unknown time, in an unknown way: its engine died before it, and another
    /// one found that nothing of it is left.
    EndUnknown {
        /// Its id.
        job: JobId,
        /// Where its log is, if one is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        log: Option<String>,
    },
    /// A sandbox is about to be created.
    Created {
        /// Its id.
        sandbox: SandboxId,
        /// The tenant it is for.
        tenant: TenantName,
        /// Which backend builds it.
        backend: BackendName,
        /// What its walls are.
        boundary: Boundary,
        /// The captured state that it starts with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<SnapshotId>,
        /// The image by its name, with its digest where this engine has resolved it; absent for other kinds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        image: Option<ImageName>,
    },
    /// The state of a sandbox was captured.
    Captured {
        /// The sandbox.
        sandbox: SandboxId,
        /// What was stored.
        snapshot: SnapshotId,
        /// Of what kind.
        what: SnapshotKind,
    },
    /// A captured state is about to be brought back in place.
    Restored {
        /// The sandbox.
        sandbox: SandboxId,
        /// Which state.
        snapshot: SnapshotId,
    },
    /// A sandbox is about to be built ahead of any caller. When a caller takes it, that is recorded as its
    /// creation, or as the start of the execution it was taken for.
    Prepared {
        /// Its id.
        sandbox: SandboxId,
        /// The tenant it belongs to, and is used for alone.
        tenant: TenantName,
        /// Which backend builds it.
        backend: BackendName,
        /// What its walls are.
        boundary: Boundary,
    },
    /// A sandbox was destroyed.
    Destroyed {
        /// Its id.
        sandbox: SandboxId,
        /// Whether nothing was left (C-30).
        clean: bool,
        /// What was left, or why it was destroyed by another process than its owner.
        detail: Option<String>,
    },
    /// A spec or command was not admitted.
    Refused {
        /// Who asked.
        tenant: TenantName,
        /// Each refusal, in words.
        refusals: Vec<String>,
    },
    /// A decision whether a tool may do what was asked of it: recorded before it does.
    Decided {
        /// The execution that was let through; absent where nothing was started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        job: Option<JobId>,
        /// The sandbox it is about; absent where there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox: Option<SandboxId>,
        /// The tenant it is for.
        tenant: TenantName,
        /// The tool.
        tool: String,
        /// Whether it may.
        allowed: bool,
        /// Whether a person was asked.
        asked: bool,
        /// The rule that decided.
        rule: String,
        /// What was known about it. Never holds environment values, input or content (C-41).
        facts: String,
    },
    /// A program in a sandbox wanted to reach another host.
    Connection {
        /// The sandbox.
        sandbox: SandboxId,
        /// The name or address that it asked for.
        host: String,
        /// The port; absent where only a name was looked up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The address that was connected to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<std::net::IpAddr>,
        /// When the program asked for it. The record is written at its end.
        begun: Timestamp,
        /// Method and path of the request for which it was denied, where it was one. Never its query (C-41).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// What became of it.
        verdict: EgressVerdict,
        /// The rule that allowed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// Why it was denied or failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Bytes that the program sent.
        sent: u64,
        /// Bytes that it received.
        received: u64,
    },
    /// Further connections of a sandbox, and renewals of its secrets, that were not recorded one by one.
    ConnectionsOmitted {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many.
        count: u64,
    },
    /// The value of a secret was asked for again. What was answered is no part of it (C-41).
    SecretRenewal {
        /// The sandbox whose request needed it.
        sandbox: SandboxId,
        /// The variable that holds the placeholder.
        secret: EnvName,
        /// Why it was asked for.
        cause: RenewalCause,
        /// Why there is no new value; absent where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// What a sandbox may reach is about to change while it runs.
    RulesReplaced {
        /// The sandbox.
        sandbox: SandboxId,
        /// The rules that were in force.
        old: Vec<EgressRule>,
        /// Those that are from now on.
        new: Vec<EgressRule>,
    },
    /// A workspace was handed out.
    WorkspaceAcquired {
        /// Its id.
        workspace: WorkspaceId,
        /// Its kind, as its manifest writes it.
        workspace_kind: String,
        /// The tenant it is for.
        tenant: TenantName,
        /// The directory it is about, or the repository without credentials (C-41).
        root: String,
    },
    /// A workspace was given back.
    WorkspaceReleased {
        /// Its id.
        workspace: WorkspaceId,
    },
    /// Finished files of the journal were removed on purpose, from the oldest on.
    Pruned {
        /// The number of the last one that was.
        segment: u32,
        /// The number of its last record.
        last: u64,
        /// That record's hash.
        hash: ContentHash,
    },
    /// The journal goes on in a new file: always the first record of one, and nowhere else.
    Rotated {
        /// The number of the file that was finished.
        segment: u32,
    },
}

/// What became of a connection to another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EgressVerdict {
    /// A rule allows it, and it was made.
    Allowed,
    /// The policy does not allow it.
    Denied,
    /// It was allowed, and could not be made or broke.
    Failed,
}

impl Event {
    /// How an execution ended, if this is its end.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Stopped { outcome, .. } => Some(outcome),
            Self::Started { .. }
            | Self::EndUnknown { .. }
            | Self::Created { .. }
            | Self::Prepared { .. }
            | Self::Captured { .. }
            | Self::Restored { .. }
            | Self::Destroyed { .. }
            | Self::Decided { .. }
            | Self::Refused { .. }
            | Self::WorkspaceAcquired { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Connection { .. }
            | Self::ConnectionsOmitted { .. }
            | Self::SecretRenewal { .. }
            | Self::RulesReplaced { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// Where the output of an execution is kept, if this is its end and it is.
    pub fn log(&self) -> Option<&str> {
        match self {
            Self::Stopped { log, .. } | Self::EndUnknown { log, .. } => log.as_deref(),
            Self::Started { .. }
            | Self::Created { .. }
            | Self::Prepared { .. }
            | Self::Captured { .. }
            | Self::Restored { .. }
            | Self::Destroyed { .. }
            | Self::Decided { .. }
            | Self::Refused { .. }
            | Self::WorkspaceAcquired { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Connection { .. }
            | Self::ConnectionsOmitted { .. }
            | Self::SecretRenewal { .. }
            | Self::RulesReplaced { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// The execution this is about.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Self::Started { job, .. }
            | Self::Stopped { job, .. }
            | Self::EndUnknown { job, .. } => Some(job),
            Self::Decided { job, .. } => job.as_ref(),
            Self::Created { .. }
            | Self::Prepared { .. }
            | Self::Captured { .. }
            | Self::Restored { .. }
            | Self::Destroyed { .. }
            | Self::Refused { .. }
            | Self::WorkspaceAcquired { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Connection { .. }
            | Self::ConnectionsOmitted { .. }
            | Self::SecretRenewal { .. }
            | Self::RulesReplaced { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// The sandbox this names. A stop names its job only.
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Started { sandbox, .. }
            | Self::Created { sandbox, .. }
            | Self::Prepared { sandbox, .. }
            | Self::Captured { sandbox, .. }
            | Self::Restored { sandbox, .. }
            | Self::Destroyed { sandbox, .. }
            | Self::Connection { sandbox, .. }
            | Self::ConnectionsOmitted { sandbox, .. }
            | Self::SecretRenewal { sandbox, .. }
            | Self::RulesReplaced { sandbox, .. } => Some(sandbox),
            Self::Decided { sandbox, .. } => sandbox.as_ref(),
            Self::Stopped { .. }
            | Self::EndUnknown { .. }
            | Self::Refused { .. }
            | Self::WorkspaceAcquired { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// The tenant this names.
    pub fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::Started { tenant, .. }
            | Self::Created { tenant, .. }
            | Self::Prepared { tenant, .. }
            | Self::Decided { tenant, .. }
            | Self::WorkspaceAcquired { tenant, .. }
            | Self::Refused { tenant, .. } => Some(tenant),
            Self::Stopped { .. }
            | Self::EndUnknown { .. }
            | Self::Captured { .. }
            | Self::Restored { .. }
            | Self::Destroyed { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Connection { .. }
            | Self::ConnectionsOmitted { .. }
            | Self::SecretRenewal { .. }
            | Self::RulesReplaced { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// The backend this names.
    pub fn backend(&self) -> Option<&BackendName> {
        match self {
            Self::Started { backend, .. }
            | Self::Created { backend, .. }
            | Self::Prepared { backend, .. } => Some(backend),
            Self::Stopped { .. }
            | Self::EndUnknown { .. }
            | Self::Captured { .. }
            | Self::Restored { .. }
            | Self::Destroyed { .. }
            | Self::Decided { .. }
            | Self::Refused { .. }
            | Self::WorkspaceAcquired { .. }
            | Self::WorkspaceReleased { .. }
            | Self::Connection { .. }
            | Self::ConnectionsOmitted { .. }
            | Self::SecretRenewal { .. }
            | Self::RulesReplaced { .. }
            | Self::Pruned { .. }
            | Self::Rotated { .. } => None,
        }
    }

    /// Whether an execution is over with this.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Stopped { .. } | Self::EndUnknown { .. })
    }
}
