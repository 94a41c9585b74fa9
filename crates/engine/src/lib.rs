//! The one pipeline: tenants, selection, execution, output, leases, pools, audit journal.
//!
//! Every front end goes through [`Engine`]. Backends are passed in; nothing is looked up in the
//! surroundings, and nothing here knows how any wall is built.

mod admission;
mod asking;
mod audit;
mod capability_cache;
mod clean_logs;
mod command_text;
mod config;
mod cpu_quota;
mod denials;
mod egress;
mod egress_quota;
mod engine;
mod execution;
mod history;
mod host_views;
mod hourly_use;
mod images;
mod journal;
mod lease;
mod lease_quota;
mod lifecycle;
mod observed;
mod output;
mod output_log;
mod pipeline;
mod pool;
mod ports;
mod presence;
mod processes;
mod quota;
mod registry;
mod request;
mod secret_command;
mod secrets;
mod select;
mod snapshot_ops;
mod snapshots;
mod supervise;
mod teardown;
mod workspace_guard;

pub use asking::{HostAnswer, HostAsker, HostQuestion};
pub use capability_cache::measurement_cache;
pub use config::{EngineConfig, Quota};
pub use engine::Engine;
pub use execution::{Execution, Watcher};
pub use history::{HistoryBounds, OutputEvent, Subscription};
pub use host_views::{OwnPath, real as real_path};
pub use journal::{
    Break, ContentHash, Damage, EgressVerdict, Event, Filter, Follower, Job, Jobs, Journal,
    JournalOptions, NewestJobs, Prune, PrunedSegments, Receipt, Record, Records, TenantUsage,
    UsageSummary, Verdict,
};
pub use lease::{
    KillRequest, Lease, LeaseBody, LeaseInfo, LeaseListing, Leases, MalformedLease, StaleLease,
};
pub use output::Output;
pub use output_log::{OutputLogBounds, OutputLogReader, OutputLogs};
pub use pool::{Pool, PoolSpec, PoolStatus};
pub use request::SandboxRequest;
pub use secret_command::SecretCommand;
pub use select::{Choice, Selection, select};
pub use snapshot_ops::{FORK_CONCURRENCY, MAX_FORK_COPIES, spec_of_a_copy};
pub use snapshots::{
    HostThings, Part, Snapshot, SnapshotListing, Snapshots, TransientSnapshot, VerifiedParts,
};
pub use stockade_fs::{CacheDir, CacheUsage, Cleaning, StateDir, Timestamp};
pub use stockade_network::{
    EgressLimits, IssuedSecret, PortStream, ProxyBypass, ResolverSettings, SecretIssuer,
    SecretSupply, TrustSettings, UpstreamProxySettings, UpstreamProxyUrl,
};
pub use workspace_guard::WorkspaceGuard;
