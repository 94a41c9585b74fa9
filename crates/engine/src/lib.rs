//! The one pipeline: tenants, selection, execution, output, leases, audit journal.

mod journal;
mod lease;
mod state;

pub use journal::{
    Break, Damage, Digest, Event, Filter, Job, Jobs, Journal, JournalOptions, Receipt, Record,
    Records, Timestamp, Verdict,
};
pub use lease::{Lease, LeaseBody, LeaseInfo, LeaseListing, Leases, MalformedLease, StaleLease};
pub use state::StateDir;
