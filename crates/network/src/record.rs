//! What is told of each connection.

use std::net::IpAddr;
use std::time::SystemTime;

use stockade_agent::protocol::network::Via;
use stockade_core::{EgressRule, EnvName, RenewalCause};

/// One connection that a program inside wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// The name or address that it asked for. Guest input: bounded, and cleaned before it is shown.
    pub host: String,
    /// The port; absent where only a name was looked up.
    pub port: Option<u16>,
    /// The address that was connected to.
    pub address: Option<IpAddr>,
    /// How the program asked; absent for a lookup.
    pub via: Option<Via>,
    /// When the program asked for it. The record is made at its end.
    pub begun: SystemTime,
    /// Method and path of the request for which it was denied, where it was one: without the query, bounded and cleaned.
    pub request: Option<String>,
    /// What was decided, and why.
    pub verdict: ConnectionVerdict,
    /// Bytes from the program.
    pub sent: u64,
    /// Bytes for the program.
    pub received: u64,
}

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionVerdict {
    /// It was made, under this rule.
    Allowed {
        /// The rule.
        rule: String,
    },
    /// The policy does not allow it.
    Denied {
        /// Why.
        reason: String,
        /// The rule that would allow it; absent where another rule denies it, or none can allow it.
        missing_rule: Option<String>,
    },
    /// It was allowed, and failed.
    Failed {
        /// The rule that allowed it; absent where it ended before that was decided.
        rule: Option<String>,
        /// Why.
        reason: String,
    },
}

/// The value of a secret was asked for again. What was answered is no part of it (C-41).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRenewal {
    /// The variable that holds its placeholder.
    pub secret: EnvName,
    /// Why it was asked for.
    pub cause: RenewalCause,
    /// Why there is no new value; absent where there is one.
    pub failure: Option<String>,
}

/// Where records go. Called from the relay: it must not block.
pub trait ConnectionLog: Send + Sync {
    /// One connection has ended, or was refused.
    fn record(&self, record: ConnectionRecord);

    /// A host was connected to while everything is let through: this rule would have been enough.
    fn observe(&self, rule: EgressRule);

    /// The value of a secret was asked for again, for a request of this sandbox.
    fn record_renewal(&self, renewal: SecretRenewal);
}
