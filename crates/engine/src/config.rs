//! What an engine is opened with. Everything is passed in; nothing is looked up in the surroundings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Bytes, ImageProvider, Millicores, TenantName};
use stockade_network::{EgressLimits, ResolverSettings, TrustSettings, UpstreamProxySettings};

use crate::history::HistoryBounds;
use crate::host_views::OwnPath;
use crate::journal::JournalOptions;
use crate::output_log::OutputLogBounds;

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where journal and leases live.
    pub state_dir: PathBuf,
    /// Further paths of Stockade's own that no guest may see, beside the state directory: configuration,
    /// caches, sockets (C-06).
    pub own_paths: Vec<OwnPath>,
    /// The home of this user. Stockade's usual directories in it are not shown either, wherever this engine has its
    /// own: other processes of the user have theirs there.
    pub home: Option<PathBuf>,
    /// Further directories that programs of the host share, such as `$TMPDIR`: none is shown as a whole.
    pub shared_dirs: Vec<PathBuf>,
    /// Quotas by tenant.
    pub quotas: BTreeMap<TenantName, Quota>,
    /// The quota of every other tenant.
    pub default_quota: Quota,
    /// How the journal is kept.
    pub journal: JournalOptions,
    /// How much output is kept for readers who come late.
    pub history: HistoryBounds,
    /// Whether the output of executions is kept on disk too, for readers who come after this engine.
    pub keep_output: bool,
    /// How much of it, and for how long.
    pub output_logs: OutputLogBounds,
    /// How long building walls may take.
    pub create_deadline: Duration,
    /// How long taking them down may take.
    pub destroy_deadline: Duration,
    /// Whether to remove what dead engines left as soon as this one opens.
    pub reap_on_open: bool,
    /// Which name servers are asked for the hosts that sandboxes may reach.
    pub resolver: ResolverSettings,
    /// Through which proxy they are reached. Absent: directly; no variable of the environment names one.
    pub upstream_proxy: Option<UpstreamProxySettings>,
    /// Whose certificates are accepted where secrets are put into requests.
    pub trust: TrustSettings,
    /// How much of the network each sandbox may use.
    pub egress_limits: EgressLimits,
    /// What brings images by name to this host, for backends that have no store of their own and take directories.
    pub images: Option<Arc<dyn ImageProvider>>,
    /// A directory of Stockade's own below which a workspace may lie nevertheless. Only the engine in whose
    /// sandboxes images are unpacked has one, and no caller of that engine chooses a path.
    pub unpack_dir: Option<PathBuf>,
    /// Directories of Stockade's own that guests may see nevertheless, each as a whole and as a tree alone: the
    /// package caches that a command keeps for its project. Only the engine of that command has them.
    pub guest_caches: Vec<PathBuf>,
}

/// What a tenant may use. Absent: as much as there is. All of it holds over all engines that share the state directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Most live sandboxes.
    pub sandboxes: Option<u32>,
    /// Most executions at once.
    pub executions: Option<u32>,
    /// Most sandboxes and executions that are started within a minute. A run of its own is one start.
    pub starts_per_minute: Option<u32>,
    /// Most memory that its live sandboxes may use, by their limits added up.
    pub memory: Option<Bytes>,
    /// Most that its live sandboxes may write to disk, by their limits added up.
    pub disk: Option<Bytes>,
    /// Most processes and threads of its live sandboxes, by their limits added up.
    pub processes: Option<u32>,
    /// Largest share of processor time of its live sandboxes, by their limits added up.
    pub cpus: Option<Millicores>,
    /// Most processor time of its executions within an hour. Once it is used up, none is started.
    pub cpu_seconds_per_hour: Option<u32>,
    /// Most connections of its sandboxes to other hosts at once.
    pub connections: Option<u32>,
    /// Most connections that they begin within a minute.
    pub connections_per_minute: Option<u32>,
    /// Most bytes that they send and receive within an hour.
    pub egress_bytes_per_hour: Option<Bytes>,
}

impl Quota {
    /// Whether something is counted by the leases of live sandboxes.
    pub(crate) fn counts_leases(&self) -> bool {
        let Self { sandboxes, memory, disk, processes, cpus, .. } = self;
        let sums = memory.is_some() || disk.is_some() || processes.is_some() || cpus.is_some();
        sandboxes.is_some() || sums
    }
}

impl EngineConfig {
    /// Everything by default, with state in this directory.
    pub fn at(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            own_paths: Vec::new(),
            home: None,
            shared_dirs: Vec::new(),
            quotas: BTreeMap::new(),
            default_quota: Quota::default(),
            journal: JournalOptions::default(),
            history: HistoryBounds::default(),
            keep_output: false,
            output_logs: OutputLogBounds::default(),
            create_deadline: Duration::from_secs(120),
            destroy_deadline: Duration::from_secs(30),
            reap_on_open: true,
            resolver: ResolverSettings::default(),
            upstream_proxy: None,
            trust: TrustSettings::default(),
            egress_limits: EgressLimits::default(),
            images: None,
            unpack_dir: None,
            guest_caches: Vec::new(),
        }
    }

    pub(crate) fn quota(&self, tenant: &TenantName) -> Quota {
        self.quotas.get(tenant).copied().unwrap_or(self.default_quota)
    }
}
