//! Network policy: what a sandbox may reach, and the rules by which it reaches other hosts.

mod decision;
mod host_pattern;
mod rule;
mod rule_parser;

use serde::{Deserialize, Serialize};

pub(crate) use decision::lists_host;
pub use decision::{
    EgressDecision, decide_address, decide_name, decide_request, judges_requests, list_ports,
};
pub(crate) use host_pattern::mask_address;
pub use host_pattern::{canonical_host, is_policy_word};
pub use rule::EgressRule;

/// What a sandbox may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Its own loopback where the backend has one, else nothing. Admission puts one of those in its place.
    #[default]
    Auto,
    /// Nothing at all.
    None,
    /// A loopback interface of its own.
    Loopback,
    /// The listed hosts, through the engine.
    Egress(Vec<EgressRule>),
}

impl Network {
    /// Whether every public host is let through, so that what programs need can be seen. Unsafe.
    pub fn observes(&self) -> bool {
        match self {
            Self::Egress(rules) => rules.iter().any(EgressRule::observes),
            Self::Auto | Self::None | Self::Loopback => false,
        }
    }

    /// Whether a person is asked about hosts that no rule covers.
    pub fn asks(&self) -> bool {
        match self {
            Self::Egress(rules) => rules.iter().any(EgressRule::asks),
            Self::Auto | Self::None | Self::Loopback => false,
        }
    }

    /// Whether a rule names methods or paths, so that requests to its host are judged one by one.
    pub fn judges_requests(&self) -> bool {
        match self {
            Self::Egress(rules) => rules.iter().any(EgressRule::names_requests),
            Self::Auto | Self::None | Self::Loopback => false,
        }
    }
}

#[cfg(test)]
fn parse_rule(given: &str) -> EgressRule {
    given.parse().unwrap()
}
