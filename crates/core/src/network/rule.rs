//! One rule: the host, port and requests that it is about, and whether it denies them.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::host_pattern::EgressHost;
use crate::request_path::RequestPath;
use crate::request_scope::RequestScope;

/// One entry of an egress list: `host`, `*.host` (one label more), `**.host` (any number of labels more), an
/// address or a CIDR range, each with an optional port. With `!` before it, it denies. `observe` lets every
/// name and every public address through, at every port; with `ask` a person is asked about what no rule covers.
///
/// A host may have methods before it and a path behind it, `GET+HEAD@host/v1/*`: then the rule is about those
/// requests alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EgressRule {
    pub(super) denies: bool,
    pub(super) host: EgressHost,
    pub(super) port: Option<u16>,
    pub(super) scope: RequestScope,
}

/// The ports of a rule that allows and names none.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// The ports at which names are answered for under `observe` and `ask`: a listener is needed for each. A proxy takes
/// every port.
const USUAL_PORTS: [u16; 9] = [22, 80, 443, 3306, 5432, 6379, 8080, 8443, 9418];

impl EgressRule {
    /// Whether it lets every public host through.
    pub fn observes(&self) -> bool {
        self.host == EgressHost::Anything
    }

    /// Whether a person is asked about hosts that no rule covers.
    pub fn asks(&self) -> bool {
        self.host == EgressHost::Asked
    }

    /// Whether it denies what it covers.
    pub fn denies(&self) -> bool {
        self.denies
    }

    /// The rule that denies what this one names, or allows it.
    #[must_use]
    pub fn with_denial(self, denies: bool) -> Self {
        Self { denies, ..self }
    }

    /// Whether it is about some requests to its host only, by their methods or paths.
    pub fn names_requests(&self) -> bool {
        !self.scope.is_everything()
    }

    pub(super) fn covers_request(&self, method: &str, path: &RequestPath) -> bool {
        if self.denies { self.scope.denies(method, path) } else { self.scope.allows(method, path) }
    }

    /// Whether a connection to this host name and port is covered. Addresses never match a name rule.
    pub fn covers_name(&self, name: &str, port: u16) -> bool {
        self.host.covers_name(name) && self.covers_port(port)
    }

    /// Whether a connection to this address and port is covered.
    pub fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        self.host.covers_address(address) && self.covers_port(port)
    }

    /// How many bits of an address it names; nothing for a rule that names none.
    pub fn prefix(&self) -> Option<u8> {
        self.host.prefix()
    }

    fn covers_port(&self, port: u16) -> bool {
        match self.port {
            Some(only) => only == port,
            None => self.denies || self.observes() || DEFAULT_PORTS.contains(&port),
        }
    }

    pub(super) fn ports(&self) -> Vec<u16> {
        match self.port {
            Some(port) => vec![port],
            None if self.observes() || self.asks() => USUAL_PORTS.to_vec(),
            None => DEFAULT_PORTS.to_vec(),
        }
    }
}

impl TryFrom<String> for EgressRule {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl From<EgressRule> for String {
    fn from(rule: EgressRule) -> String {
        rule.to_string()
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denies {
            f.write_str("!")?;
        }
        self.scope.write_methods(f)?;
        self.host.write(f, self.port.is_some())?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.scope.write_path(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_rule;

    #[test]
    fn a_rule_without_a_port_allows_those_of_the_web_and_denies_all() {
        for (rule, port, covered) in
            [("a.org", 443, true), ("a.org", 80, true), ("a.org", 22, false), ("!a.org", 22, true)]
        {
            assert_eq!(parse_rule(rule).covers_name("a.org", port), covered, "{rule} {port}");
        }
    }
}
