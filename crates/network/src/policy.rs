//! The policy of one sandbox while it runs: its rules, which can change, and what decides by them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use stockade_core::{
    EgressDecision, EgressRule, canonical_host, decide_address, decide_name, is_policy_word,
    list_ports,
};
use tokio::sync::{Semaphore, watch};

use crate::asking::HostApprover;
use crate::limits::{EgressLimits, EgressMeter, TenantBudget};
use crate::record::{ConnectionLog, ConnectionRecord, ConnectionVerdict};
use crate::resolver::{NameResolver, ResolverSettings};
use crate::secrets::SecretSet;
use crate::special::{OwnAddresses, classify_address};
use crate::upstream_proxy::{UpstreamProxy, UpstreamProxySettings};

/// What all sandboxes of an engine share.
pub struct SharedNetwork {
    pub(crate) resolver: NameResolver,
    /// The operator's proxy. Absent: every address is connected to directly.
    pub(crate) proxy: Option<UpstreamProxy>,
    /// Connections of all sandboxes together: each is an open file of the engine.
    pub(crate) slots: Arc<Semaphore>,
}

/// The port that most programs mean by a name alone.
const HTTPS_PORT: u16 = 443;

/// The most connections of all sandboxes of an engine together.
pub(crate) const MAX_SHARED_CONNECTIONS: usize = 512;

impl SharedNetwork {
    /// With name servers as these settings say.
    pub fn new(settings: &ResolverSettings) -> stockade_core::Result<Self> {
        let slots = Arc::new(Semaphore::new(MAX_SHARED_CONNECTIONS));
        Ok(Self { resolver: NameResolver::new(settings)?, proxy: None, slots })
    }

    /// The same, where addresses of the public network are reached through the operator's proxy.
    pub fn with_proxy(self, settings: &UpstreamProxySettings) -> stockade_core::Result<Self> {
        Ok(Self { proxy: Some(UpstreamProxy::new(settings)?), ..self })
    }
}

/// What decides about the connections of one sandbox.
pub struct Egress {
    rules: watch::Sender<Arc<[EgressRule]>>,
    pub(crate) shared: Arc<SharedNetwork>,
    pub(crate) limits: EgressLimits,
    /// Counts what its connections use.
    pub(crate) meter: Arc<EgressMeter>,
    /// Who decides about hosts that no rule covers. Absent: they are denied.
    pub(crate) approver: Option<Arc<dyn HostApprover>>,
    log: Arc<dyn ConnectionLog>,
    secrets: Option<Arc<SecretSet>>,
}

/// Why something is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denial {
    pub reason: String,
    /// The rule that would allow it; absent where another rule denies it, or none can allow it.
    pub missing_rule: Option<String>,
    /// Method and path of the request that it is about, where it is about one.
    pub request: Option<String>,
}

impl From<String> for Denial {
    fn from(reason: String) -> Self {
        Self { reason, missing_rule: None, request: None }
    }
}

impl From<&str> for Denial {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<Denial> for ConnectionVerdict {
    fn from(Denial { reason, missing_rule, request: _ }: Denial) -> Self {
        Self::Denied { reason, missing_rule }
    }
}

/// A host that a program asked for, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EgressTarget {
    /// A name.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl EgressTarget {
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

    fn with_port(&self, port: u16) -> String {
        match self {
            Self::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            Self::Name(_) | Self::Address(IpAddr::V4(_)) => format!("{self}:{port}"),
        }
    }

    /// The shortest rule that allows it at this port.
    pub fn rule_for(&self, port: u16) -> String {
        let short = self.to_string();
        let is_enough = matches!(port, 80 | HTTPS_PORT) && !is_policy_word(&short);
        if is_enough { short } else { self.with_port(port) }
    }
}

impl std::fmt::Display for EgressTarget {
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
        let meter = Arc::new(EgressMeter::new(limits));
        let rules = watch::Sender::new(rules.into());
        Self { rules, shared, limits, meter, approver: None, log, secrets: None }
    }

    /// The same, where this one decides about hosts that no rule covers, if the rules say that it is asked.
    #[must_use]
    pub fn with_approver(self, approver: Arc<dyn HostApprover>) -> Self {
        Self { approver: Some(approver), ..self }
    }

    /// The same, for a sandbox whose tenant has a budget for all of its sandboxes. Nothing is counted before.
    #[must_use]
    pub fn with_tenant_budget(self, budget: Arc<dyn TenantBudget>) -> Self {
        let meter = EgressMeter::new(self.limits).with_tenant(budget);
        Self { meter: Arc::new(meter), ..self }
    }

    /// The same, with secrets that are put into requests to their hosts.
    #[must_use]
    pub fn with_secrets(self, secrets: Option<Arc<SecretSet>>) -> Self {
        Self { secrets, ..self }
    }

    pub(crate) fn secrets(&self) -> Option<&Arc<SecretSet>> {
        self.secrets.as_ref()
    }

    /// Where its records go.
    pub(crate) fn log(&self) -> &Arc<dyn ConnectionLog> {
        &self.log
    }

    /// Puts other rules in force. Connections that they do not allow are cut, and no others.
    pub fn replace_rules(&self, rules: Vec<EgressRule>) {
        self.rules.send_replace(rules.into());
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<[EgressRule]> {
        self.rules.borrow().clone()
    }

    /// Tells when the rules change.
    pub(crate) fn follow_rules(&self) -> watch::Receiver<Arc<[EgressRule]>> {
        self.rules.subscribe()
    }

    pub(crate) fn record(&self, record: ConnectionRecord) {
        self.log.record(record);
    }

    /// Tells which rule would have been enough for a connection, while everything is let through.
    pub(crate) fn observe(&self, target: &EgressTarget, port: u16) {
        if self.rules().iter().any(EgressRule::observes)
            && let Ok(rule) = target.rule_for(port).parse::<EgressRule>()
        {
            self.log.observe(rule);
        }
    }

    /// The ports at which a name may be reached. A name that may not is recorded.
    pub(crate) fn look_up(&self, name: &str) -> Vec<u16> {
        if let Some(reason) = self.secrets().and_then(|secrets| secrets.refuse_name(name)) {
            self.record_denied_lookup(name, reason.into());
            return Vec::new();
        }
        let rules = self.rules();
        let Some(canonical) = canonical_host(name) else {
            self.record_denied_lookup(name, describe_no_host(name).into());
            return Vec::new();
        };
        let ports = list_ports(&rules, &canonical);
        if ports.is_empty()
            && let Err(denial) = check_target(&rules, &EgressTarget::Name(canonical), HTTPS_PORT)
        {
            self.record_denied_lookup(name, denial);
        }
        ports
    }

    fn record_denied_lookup(&self, name: &str, denial: Denial) {
        self.record(ConnectionRecord {
            host: name.to_owned(),
            port: None,
            address: None,
            via: None,
            begun: SystemTime::now(),
            request: None,
            verdict: denial.into(),
            sent: 0,
            received: 0,
        });
    }
}

/// Whether a host may be connected to at all: the rule, or why not.
pub(crate) fn check_target(
    rules: &[EgressRule],
    target: &EgressTarget,
    port: u16,
) -> Result<String, Denial> {
    let decision = match target {
        EgressTarget::Name(name) => decide_name(rules, name, port),
        EgressTarget::Address(address) => decide_address(rules, *address, port),
    };
    match decision {
        EgressDecision::Allowed(rule) => Ok(rule.to_string()),
        EgressDecision::Denied(rule) => {
            Err(format!("`{}` is denied by `{rule}`", target.with_port(port)).into())
        }
        EgressDecision::NoRule => {
            let rule = target.rule_for(port);
            let reason =
                format!("no rule allows `{}`; `--net {rule}` would", target.with_port(port));
            Err(Denial { reason, missing_rule: Some(rule), request: None })
        }
    }
}

/// Whether this address may be connected to for a host that was allowed. Why not, otherwise.
pub(crate) fn check_address(
    rules: &[EgressRule],
    address: IpAddr,
    port: u16,
    own: &OwnAddresses,
) -> Result<(), Denial> {
    if let EgressDecision::Denied(rule) = decide_address(rules, address, port) {
        return Err(format!("{address} is denied by `{rule}`").into());
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
    // No rule is proposed: the owner of a name chooses where it leads, and would choose what is opened.
    let reason = special.reason;
    Err(format!("{address} is {reason}: only a rule for that address opens it").into())
}

/// What is said of a text that names no host.
pub(crate) fn describe_no_host(given: &str) -> String {
    format!("`{}` is no host name", given.escape_debug())
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
            (&["observe"], "8.8.8.8", true),
            (&["observe"], "127.0.0.1", false),
            (&["observe"], "10.0.0.1", false),
            (&["observe"], "169.254.169.254", false),
            (&["observe", "!8.8.8.8"], "8.8.8.8", false),
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
            assert_eq!(EgressTarget::parse(host), None, "{host:?}");
        }
        assert_eq!(EgressTarget::parse("A.ORG."), Some(EgressTarget::Name("a.org".into())));
        let target = EgressTarget::Name("a.org".into());
        assert!(target.is_same_host("A.org") && !target.is_same_host("b.org"));
        assert!(EgressTarget::parse("::1").unwrap().is_same_host("[::1]"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_name_a_host_by_their_own_letters_or_none(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..24),
            text in "(a|B|xn--|-|\\.|0x|[0-9]|ü|。|ſ|K|@|%|:|\\[|\\]|/|_|\\PC){0,8}",
        ) {
            for host in [String::from_utf8_lossy(&bytes).into_owned(), text] {
                match EgressTarget::parse(&host) {
                    None => {}
                    // Written as the standard library writes it, and as no older one may read it.
                    Some(EgressTarget::Address(address)) => {
                        proptest::prop_assert_eq!(host.parse::<IpAddr>(), Ok(address));
                    }
                    Some(EgressTarget::Name(name)) => {
                        let given = host.strip_suffix('.').unwrap_or(&host);
                        proptest::prop_assert!(given.eq_ignore_ascii_case(&name), "{host:?} {name}");
                        let is_plain = |b: u8| {
                            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.')
                        };
                        proptest::prop_assert!(name.bytes().all(is_plain), "{name}");
                        let last = name.rsplit('.').next().unwrap_or_default();
                        proptest::prop_assert!(!last.bytes().all(|b| b.is_ascii_digit()), "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_refusal_names_the_flag_that_would_allow_it() {
        let rules = parse_rules(&["a.org", "!b.org"]);
        let refused = |host: &str, port| {
            check_target(&rules, &EgressTarget::parse(host).unwrap(), port).unwrap_err()
        };
        for (host, port, asked, rule) in [
            ("c.org", 443, "c.org:443", "c.org"),
            ("a.org", 22, "a.org:22", "a.org:22"),
            ("2001:db8::1", 80, "[2001:db8::1]:80", "2001:db8::1"),
            ("2001:db8::1", 22, "[2001:db8::1]:22", "[2001:db8::1]:22"),
            // A guest that asks for a host of that name is no reason to propose all hosts.
            ("observe", 443, "observe:443", "observe:443"),
        ] {
            let denial = refused(host, port);
            assert_eq!(denial.reason, format!("no rule allows `{asked}`; `--net {rule}` would"));
            assert_eq!(denial.missing_rule.as_deref(), Some(rule));
            let with_it = parse_rules(&[rule]);
            assert!(
                check_target(&with_it, &EgressTarget::parse(host).unwrap(), port).is_ok(),
                "{rule}"
            );
        }
        assert_eq!(refused("b.org", 443), Denial::from("`b.org:443` is denied by `!b.org`"));
    }
}
