//! The policy of one sandbox while it runs: its rules, which can change, and what decides by them.

use std::net::IpAddr;
use std::sync::Arc;

use stockade_core::{
    EgressDecision, EgressRule, canonical_host, decide_address, decide_name, list_ports,
};
use tokio::sync::{Semaphore, watch};

use crate::record::{ConnectionLog, ConnectionRecord, ConnectionVerdict};
use crate::resolver::{NameResolver, ResolverSettings};
use crate::special::{OwnAddresses, classify_address};

/// How much a sandbox may have of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections at once.
    pub connections: usize,
}

/// What all sandboxes of an engine share.
pub struct SharedNetwork {
    pub(crate) resolver: NameResolver,
    /// Connections of all sandboxes together: each is an open file of the engine.
    pub(crate) slots: Arc<Semaphore>,
}

/// The most connections of all sandboxes of an engine together.
const MAX_SHARED_CONNECTIONS: usize = 512;

impl SharedNetwork {
    /// With name servers as these settings say.
    pub fn new(settings: &ResolverSettings) -> stockade_core::Result<Self> {
        let slots = Arc::new(Semaphore::new(MAX_SHARED_CONNECTIONS));
        Ok(Self { resolver: NameResolver::new(settings)?, slots })
    }
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self { connections: 256 }
    }
}

/// What decides about the connections of one sandbox.
pub struct Egress {
    rules: watch::Sender<Arc<[EgressRule]>>,
    pub(crate) shared: Arc<SharedNetwork>,
    pub(crate) limits: EgressLimits,
    log: Arc<dyn ConnectionLog>,
}

/// A host that a program asked for, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A name.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl Target {
    /// Nothing for what is neither: odd spellings of addresses among them.
    pub fn parse(host: &str) -> Option<Self> {
        match host.parse() {
            Ok(address) => Some(Self::Address(address)),
            Err(_) => canonical_host(host).map(Self::Name),
        }
    }

    /// Whether this text names the same host.
    pub fn is_same_host(&self, host: &str) -> bool {
        Self::parse(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
            .is_some_and(|other| other == *self)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

impl Egress {
    /// Decides by these rules, and records everything in `log`.
    pub fn new(
        rules: Vec<EgressRule>,
        shared: Arc<SharedNetwork>,
        limits: EgressLimits,
        log: Arc<dyn ConnectionLog>,
    ) -> Self {
        Self { rules: watch::Sender::new(rules.into()), shared, limits, log }
    }

    /// Puts other rules in force. Connections that they do not allow are cut, and no others.
    pub fn replace_rules(&self, rules: Vec<EgressRule>) {
        self.rules.send_replace(rules.into());
    }

    pub(crate) fn rules(&self) -> Arc<[EgressRule]> {
        self.rules.borrow().clone()
    }

    /// Tells when the rules change.
    pub(crate) fn follow_rules(&self) -> watch::Receiver<Arc<[EgressRule]>> {
        self.rules.subscribe()
    }

    pub(crate) fn record(&self, record: ConnectionRecord) {
        self.log.record(record);
    }

    /// The ports at which a name may be reached. A name that may not is recorded.
    pub(crate) fn look_up(&self, name: &str) -> Vec<u16> {
        let ports = canonical_host(name).map(|name| list_ports(&self.rules(), &name));
        let ports = ports.unwrap_or_default();
        if ports.is_empty() {
            self.record(ConnectionRecord {
                host: name.to_owned(),
                port: None,
                address: None,
                via: None,
                verdict: ConnectionVerdict::Denied { reason: describe_missing_rule(name, 443) },
                sent: 0,
                received: 0,
            });
        }
        ports
    }
}

/// Whether a host may be connected to at all: the rule, or why not.
pub(crate) fn check_target(
    rules: &[EgressRule],
    target: &Target,
    port: u16,
) -> Result<String, String> {
    let decision = match target {
        Target::Name(name) => decide_name(rules, name, port),
        Target::Address(address) => decide_address(rules, *address, port),
    };
    match decision {
        EgressDecision::Allowed(rule) => Ok(rule.to_string()),
        EgressDecision::Denied(rule) => Err(format!("`{target}:{port}` is denied by `{rule}`")),
        EgressDecision::NoRule => Err(describe_missing_rule(&target.to_string(), port)),
    }
}

/// Whether this address may be connected to for a host that was allowed. Why not, otherwise.
pub(crate) fn check_address(
    rules: &[EgressRule],
    address: IpAddr,
    port: u16,
    own: &OwnAddresses,
) -> Result<(), String> {
    if let EgressDecision::Denied(rule) = decide_address(rules, address, port) {
        return Err(format!("{address} is denied by `{rule}`"));
    }
    let Some(special) = classify_address(address, own) else {
        return Ok(());
    };
    let means_it = |rule: &EgressRule| {
        !rule.denies()
            && rule.covers_address(address, port)
            && rule.prefix().is_some_and(|prefix| prefix >= special.prefix)
    };
    if rules.iter().any(means_it) {
        return Ok(());
    }
    Err(format!("{address} is {}: only a rule for that address opens it", special.reason))
}

fn describe_missing_rule(host: &str, port: u16) -> String {
    let flag = if matches!(port, 80 | 443) { host.to_owned() } else { format!("{host}:{port}") };
    format!("no rule allows `{host}:{port}`; `--net {flag}` would")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_rules(rules: &[&str]) -> Vec<EgressRule> {
        rules.iter().map(|rule| rule.parse().unwrap()).collect()
    }

    #[test]
    fn special_addresses_are_opened_by_rules_that_mean_them_only() {
        let (address, own) = (|text: &str| text.parse().unwrap(), OwnAddresses::list());
        for (rules, to, allowed) in [
            (&["a.org"][..], "10.0.0.1", false),
            (&["a.org"], "8.8.8.8", true),
            (&["0.0.0.0/0"], "10.0.0.1", false),
            (&["0.0.0.0/0"], "169.254.169.254", false),
            (&["10.0.0.0/8"], "10.0.0.1", true),
            (&["169.254.0.0/16"], "169.254.169.254", false),
            (&["169.254.169.254"], "169.254.169.254", true),
            (&["fd00::/8"], "fd00:ec2::254", false),
            (&["fd00::/8"], "fd12::1", true),
            (&["::ffff:0:0/96"], "::ffff:169.254.169.254", false),
            (&["127.0.0.1"], "127.0.0.1", true),
            (&["127.0.0.1:81"], "127.0.0.1", false),
            (&["10.0.0.0/8", "!10.0.0.1"], "10.0.0.1", false),
            (&["!8.8.8.0/24"], "8.8.8.8", false),
        ] {
            let checked = check_address(&parse_rules(rules), address(to), 80, &own);
            assert_eq!(checked.is_ok(), allowed, "{rules:?} {to}: {checked:?}");
        }
    }

    #[test]
    fn odd_spellings_of_addresses_are_no_hosts() {
        for host in
            ["0177.0.0.1", "0x7f.0.0.1", "2130706433", "127.1", "a@b.org", "a.org\0", "", "[::1"]
        {
            assert_eq!(Target::parse(host), None, "{host:?}");
        }
        assert_eq!(Target::parse("A.ORG."), Some(Target::Name("a.org".into())));
        let target = Target::Name("a.org".into());
        assert!(target.is_same_host("A.org") && !target.is_same_host("b.org"));
        assert!(Target::parse("::1").unwrap().is_same_host("[::1]"));
    }

    #[test]
    fn a_refusal_names_the_flag_that_would_allow_it() {
        let rules = parse_rules(&["a.org", "!b.org"]);
        let refused = |host: &str, port| {
            check_target(&rules, &Target::parse(host).unwrap(), port).unwrap_err()
        };
        assert_eq!(refused("c.org", 443), "no rule allows `c.org:443`; `--net c.org` would");
        assert_eq!(refused("a.org", 22), "no rule allows `a.org:22`; `--net a.org:22` would");
        assert_eq!(refused("b.org", 443), "`b.org:443` is denied by `!b.org`");
    }
}
