//! Network policy: the one parser for the names of hosts that a caller may list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::request_scope::{RequestPath, RequestScope, RequestScopeError};

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

/// One entry of an egress list: `host`, `*.host` (one label more), `**.host` (any number of labels more), an
/// address or a CIDR range, each with an optional port. With `!` before it, it denies. `observe` lets every
/// name and every public address through, at every port; with `ask` a person is asked about what no rule covers.
///
/// A host may have methods before it and a path behind it, `GET+HEAD@host/v1/*`: then the rule is about those
/// requests alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EgressRule {
    denies: bool,
    host: EgressHost,
    port: Option<u16>,
    scope: RequestScope,
}

/// The ports of a rule that allows and names none.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// The rule that lets everything through. A host of that name is named with its port.
const OBSERVE_WORD: &str = "observe";
/// The rule by which a person is asked about what no other covers. It covers nothing itself.
const ASK_WORD: &str = "ask";
/// The ports at which names are answered for under [`OBSERVE_WORD`] and [`ASK_WORD`]: a listener is needed for each. A
/// proxy takes every port.
const USUAL_PORTS: [u16; 9] = [22, 80, 443, 3306, 5432, 6379, 8080, 8443, 9418];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum EgressHost {
    Name(String),
    OneBelow(String),
    AllBelow(String),
    Range { network: IpAddr, prefix: u8 },
    Anything,
    Asked,
}

/// What a list of rules says about one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressDecision<'a> {
    /// This rule allows it.
    Allowed(&'a EgressRule),
    /// This rule denies it, whatever others say.
    Denied(&'a EgressRule),
    /// No rule covers it, so it is denied.
    NoRule,
}

impl EgressDecision<'_> {
    /// Whether the connection may be made.
    pub fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

/// What the rules say about a connection to a name, which is in its canonical form. One that denies some requests
/// denies no connection.
pub fn decide_name<'a>(rules: &'a [EgressRule], name: &str, port: u16) -> EgressDecision<'a> {
    let is_about_it = |rule: &EgressRule| !(rule.denies && rule.names_requests());
    decide(rules, |rule| is_about_it(rule) && rule.covers_name(name, port))
}

/// What the rules say about a request over a connection to a name, which is in its canonical form.
pub fn decide_request<'a>(
    rules: &'a [EgressRule],
    (name, port): (&str, u16),
    method: &str,
    path: &RequestPath,
) -> EgressDecision<'a> {
    decide(rules, |rule| rule.covers_name(name, port) && rule.covers_request(method, path))
}

/// Whether a rule names methods or paths of this host, so that each request to it has to be judged.
pub fn judges_requests(rules: &[EgressRule], name: &str, port: u16) -> bool {
    rules.iter().any(|rule| rule.names_requests() && rule.covers_name(name, port))
}

/// What the rules say about a connection to an address.
pub fn decide_address(rules: &[EgressRule], address: IpAddr, port: u16) -> EgressDecision<'_> {
    decide(rules, |rule| rule.covers_address(address, port))
}

fn decide(rules: &[EgressRule], covers: impl Fn(&EgressRule) -> bool) -> EgressDecision<'_> {
    let find = |denies| rules.iter().find(|rule| rule.denies == denies && covers(rule));
    match (find(true), find(false)) {
        (Some(rule), _) => EgressDecision::Denied(rule),
        (None, Some(rule)) => EgressDecision::Allowed(rule),
        (None, None) => EgressDecision::NoRule,
    }
}

/// The ports at which the rules let a name be reached or asked about, in order.
pub fn list_ports(rules: &[EgressRule], name: &str) -> Vec<u16> {
    let asks = rules.iter().any(EgressRule::asks);
    let allowing =
        rules.iter().filter(|rule| !rule.denies && (rule.asks() || rule.host.covers_name(name)));
    let mut ports: Vec<_> = allowing.flat_map(EgressRule::ports).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.retain(|port| match decide_name(rules, name, *port) {
        EgressDecision::Allowed(_) => true,
        EgressDecision::Denied(_) => false,
        EgressDecision::NoRule => asks,
    });
    ports
}

/// Whether the rules let a host, by its name or as an address, be reached at any port. `observe` and `ask` name no host,
/// and list none.
pub(crate) fn lists_host(rules: &[EgressRule], host: &str) -> bool {
    let names_host = |rule: &&EgressRule| !rule.observes() && !rule.asks();
    let listed: Vec<_> = rules.iter().filter(names_host).cloned().collect();
    let Ok(address) = host.parse::<IpAddr>() else {
        return !list_ports(&listed, host).is_empty();
    };
    let mut ports = listed.iter().filter(|rule| !rule.denies).flat_map(EgressRule::ports);
    ports.any(|port| decide_address(&listed, address, port).is_allowed())
}

/// Whether a name without a port is a word of the policy, and not a host.
pub fn is_policy_word(name: &str) -> bool {
    find_policy_word(name).is_some()
}

fn find_policy_word(name: &str) -> Option<EgressHost> {
    match name {
        OBSERVE_WORD => Some(EgressHost::Anything),
        ASK_WORD => Some(EgressHost::Asked),
        _ => None,
    }
}

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

    fn covers_request(&self, method: &str, path: &RequestPath) -> bool {
        if self.denies { self.scope.denies(method, path) } else { self.scope.allows(method, path) }
    }

    /// Whether a connection to this host name and port is covered. Addresses never match a name rule.
    pub fn covers_name(&self, name: &str, port: u16) -> bool {
        self.host.covers_name(name) && self.covers_port(port)
    }

    /// Whether a connection to this address and port is covered.
    pub fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        let covered = match self.host {
            EgressHost::Range { network, prefix } => mask_address(address, prefix) == Some(network),
            EgressHost::Anything => true,
            EgressHost::Name(_)
            | EgressHost::OneBelow(_)
            | EgressHost::AllBelow(_)
            | EgressHost::Asked => false,
        };
        covered && self.covers_port(port)
    }

    /// How many bits of an address it names; nothing for a rule that names none.
    pub fn prefix(&self) -> Option<u8> {
        match self.host {
            EgressHost::Range { prefix, .. } => Some(prefix),
            EgressHost::Name(_)
            | EgressHost::OneBelow(_)
            | EgressHost::AllBelow(_)
            | EgressHost::Anything
            | EgressHost::Asked => None,
        }
    }

    fn covers_port(&self, port: u16) -> bool {
        match self.port {
            Some(only) => only == port,
            None => self.denies || self.observes() || DEFAULT_PORTS.contains(&port),
        }
    }

    fn ports(&self) -> Vec<u16> {
        match self.port {
            Some(port) => vec![port],
            None if self.observes() || self.asks() => USUAL_PORTS.to_vec(),
            None => DEFAULT_PORTS.to_vec(),
        }
    }
}

impl EgressHost {
    fn covers_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let below = |parent: &str| {
            let labels = name.strip_suffix(parent)?.strip_suffix('.')?;
            (!labels.is_empty()).then(|| labels.contains('.'))
        };
        match self {
            Self::Name(exact) => name == *exact,
            Self::OneBelow(parent) => below(parent) == Some(false),
            Self::AllBelow(parent) => below(parent).is_some(),
            Self::Range { .. } | Self::Asked => false,
            Self::Anything => true,
        }
    }
}

/// The address with everything behind the prefix cleared; nothing if the prefix is too long for it.
fn mask_address(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let drop = 32u32.checked_sub(prefix.into())?;
            Some(IpAddr::V4(u32::from(v4).checked_shr(drop).map_or(0, |kept| kept << drop).into()))
        }
        IpAddr::V6(v6) => {
            let drop = 128u32.checked_sub(prefix.into())?;
            Some(IpAddr::V6(u128::from(v6).checked_shr(drop).map_or(0, |kept| kept << drop).into()))
        }
    }
}

/// A host's name in canonical form: lower case, without a dot at its end. Letters, digits and hyphens in
/// dot-separated labels; never all digits at its end, which resolvers read as an address. Nothing otherwise.
pub fn canonical_host(given: &str) -> Option<String> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = given.strip_suffix('.').unwrap_or(given);
    let last = name.rsplit('.').next()?;
    let numeric_end = last.bytes().all(|b| b.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .or(last.strip_prefix("0X"))
            .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    (name.len() <= 253 && !numeric_end && name.split('.').all(label))
        .then(|| name.to_ascii_lowercase())
}

fn parse_range(given: &str) -> Option<EgressHost> {
    let (address, prefix) = match given.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, Some(prefix.parse().ok()?)),
        None => (given.parse().ok()?, None),
    };
    let longest = if matches!(address, IpAddr::V4(_)) { 32 } else { 128 };
    let prefix = prefix.unwrap_or(longest);
    // A range with bits set behind its prefix is a slip of the pen: refuse rather than widen.
    (mask_address(address, prefix) == Some(address))
        .then_some(EgressHost::Range { network: address, prefix })
}

fn parse_host(given: &str) -> Option<EgressHost> {
    if let Some(parent) = given.strip_prefix("**.") {
        return canonical_host(parent).map(EgressHost::AllBelow);
    }
    if let Some(parent) = given.strip_prefix("*.") {
        return canonical_host(parent).map(EgressHost::OneBelow);
    }
    parse_range(given).or_else(|| canonical_host(given).map(EgressHost::Name))
}

/// Splits an optional port off. An IPv6 address takes a port only in brackets.
fn split_port(given: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = given.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((inside, Some(port.parse().ok()?))),
            None => after.is_empty().then_some((inside, None)),
        };
    }
    match given.rsplit_once(':') {
        Some((before, port)) if !before.contains(':') => Some((before, Some(port.parse().ok()?))),
        _ => Some((given, None)),
    }
}

/// Why a text is no rule.
enum RuleFault {
    Host,
    AddressScope,
    Scope(RequestScopeError),
}

impl From<RequestScopeError> for RuleFault {
    fn from(error: RequestScopeError) -> Self {
        Self::Scope(error)
    }
}

impl RuleFault {
    fn describe(&self, given: &str) -> String {
        let given = given.escape_debug();
        match self {
            Self::Host => format!(
                "`{given}` is not a host: give `host`, `*.host`, `**.host`, an address or a CIDR range, each with \
                 an optional `:port`, `!` before what is to be denied, and for a name methods before it and a \
                 path behind it: `GET@host/v1/*`"
            ),
            Self::AddressScope => format!(
                "`{given}` names methods or a path of an address: only a host with a name takes them"
            ),
            Self::Scope(error) => format!("`{given}` is not a rule: {error}"),
        }
    }
}

/// Splits methods off: what stands before an `@` that stands before the path.
fn split_methods(given: &str) -> (Option<&str>, &str) {
    match given.split_once('@') {
        Some((methods, rest)) if !methods.contains('/') => (Some(methods), rest),
        Some(_) | None => (None, given),
    }
}

/// Splits a path off. The slash of a range begins none.
fn split_path(given: &str) -> (&str, Option<&str>) {
    let Some((host, path)) = given.find('/').map(|at| given.split_at(at)) else {
        return (given, None);
    };
    let is_bracketed = host.starts_with('[') && !host.contains(']');
    let after = path[1..].split(':').next().unwrap_or_default();
    let is_range = host.parse::<IpAddr>().is_ok() && after.bytes().all(|b| b.is_ascii_digit());
    if is_bracketed || is_range { (given, None) } else { (host, Some(path)) }
}

fn parse_rule(given: &str) -> Result<EgressRule, RuleFault> {
    let (denies, rest) = match given.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, given),
    };
    let (methods, rest) = split_methods(rest);
    let (rest, path) = split_path(rest);
    let (name, port) =
        split_port(rest).filter(|(_, port)| *port != Some(0)).ok_or(RuleFault::Host)?;
    let mut host = parse_host(name).ok_or(RuleFault::Host)?;
    let is_scoped = methods.is_some() || path.is_some();
    if is_scoped && matches!(host, EgressHost::Range { .. }) {
        return Err(RuleFault::AddressScope);
    }
    let scope = RequestScope::parse(methods, path)?;
    if port.is_none()
        && let EgressHost::Name(name) = &host
        && let Some(word) = find_policy_word(name)
    {
        host = (!denies && !is_scoped).then_some(word).ok_or(RuleFault::Host)?;
    }
    Ok(EgressRule { denies, host, port, scope })
}

impl FromStr for EgressRule {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        parse_rule(given).map_err(|fault| fault.describe(given))
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
        let bracketed = |network: &IpAddr| network.is_ipv6() && self.port.is_some();
        if self.denies {
            f.write_str("!")?;
        }
        self.scope.write_methods(f)?;
        match &self.host {
            EgressHost::Name(name) => f.write_str(name)?,
            EgressHost::OneBelow(parent) => write!(f, "*.{parent}")?,
            EgressHost::AllBelow(parent) => write!(f, "**.{parent}")?,
            EgressHost::Range { network, prefix } if bracketed(network) => {
                write!(f, "[{network}/{prefix}]")?
            }
            EgressHost::Range { network, prefix } => write!(f, "{network}/{prefix}")?,
            EgressHost::Anything => f.write_str(OBSERVE_WORD)?,
            EgressHost::Asked => f.write_str(ASK_WORD)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.scope.write_path(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_rule(given: &str) -> EgressRule {
        given.parse().unwrap()
    }

    #[test]
    fn rules_print_in_a_form_that_parses_back() {
        for given in [
            "example.org",
            "*.example.org:443",
            "!**.example.org",
            "!a.example.org:80",
            "10.0.0.0/8",
            "[2001:db8::/32]:80",
            "::1",
            "observe",
            "observe:443",
            "ask",
            "ask:443",
            "GET@example.org",
            "!POST+PUT@*.example.org:8443/v1/x",
            "example.org/v1/*",
            "ask:443/v1",
        ] {
            assert_eq!(parse_rule(&parse_rule(given).to_string()), parse_rule(given), "{given}");
        }
    }

    #[test]
    fn ambiguous_or_malformed_hosts_are_refused() {
        let long = "a".repeat(64);
        for given in [
            "",
            "*",
            "*.",
            "a..b",
            "-a.org",
            "a_b.org",
            "10.0.0.1/8",
            "1.2.3",
            "host:0",
            "host:x",
            "host:99999",
            "a b",
            "a\0b",
            "http://a.org",
            "[::1",
            "*.10.0.0.1",
            "0x7f.1",
            "a.0x7f",
            "***.a.org",
            "*.*.a.org",
            "!!a.org",
            "!observe",
            "!ask",
            "ask/v1",
            "GET@observe",
            "get@a.org",
            "a@b.org",
            "GET@@a.org",
            "@a.org",
            "CONNECT@a.org",
            "a.org/v1/../x",
            "a.org//x",
            "a.org/v1?x=1",
            "a.org/*/x",
            "GET@",
            "/v1",
            &long,
        ] {
            // `0x7f.1` ends in a number: resolvers read it as an address.
            assert!(given.parse::<EgressRule>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn a_wildcard_covers_what_is_below_and_not_the_name_itself() {
        for (rule, deep) in [("*.example.org", false), ("**.example.org", true)] {
            let below = parse_rule(rule);
            assert!(below.covers_name("A.Example.Org.", 443));
            assert_eq!(below.covers_name("a.b.example.org", 443), deep);
            assert!(!below.covers_name("example.org", 443));
            assert!(!below.covers_name(".example.org", 443));
            assert!(!below.covers_name("evilexample.org", 443));
        }
        assert!(!parse_rule("example.org:443").covers_name("example.org", 80));
    }

    #[test]
    fn a_rule_without_a_port_allows_those_of_the_web_and_denies_all() {
        for (rule, port, covered) in
            [("a.org", 443, true), ("a.org", 80, true), ("a.org", 22, false), ("!a.org", 22, true)]
        {
            assert_eq!(parse_rule(rule).covers_name("a.org", port), covered, "{rule} {port}");
        }
    }

    #[test]
    fn a_rule_that_denies_wins() {
        let rules = ["**.a.org", "!b.a.org", "c.a.org:8080", "!c.a.org:80"].map(parse_rule);
        assert_eq!(decide_name(&rules, "x.a.org", 443), EgressDecision::Allowed(&rules[0]));
        assert_eq!(decide_name(&rules, "b.a.org", 443), EgressDecision::Denied(&rules[1]));
        assert_eq!(decide_name(&rules, "d.org", 443), EgressDecision::NoRule);
        assert_eq!(list_ports(&rules, "x.a.org"), [80, 443]);
        assert_eq!(list_ports(&rules, "b.a.org"), [0u16; 0]);
        assert_eq!(list_ports(&rules, "c.a.org"), [443, 8080]);
    }

    #[test]
    fn observe_covers_every_name_and_address_and_a_host_of_that_name_has_a_port() {
        for spelling in ["observe", "OBSERVE", "observe."] {
            let rule = parse_rule(spelling);
            assert!(rule.observes() && rule.prefix().is_none(), "{spelling}");
            assert!(rule.covers_name("a.org", 22) && rule.covers_name("b.c.org", 9000));
            assert!(rule.covers_address("8.8.8.8".parse().unwrap(), 53));
            assert!(rule.covers_address("2a00::1".parse().unwrap(), 1));
        }
        let host = parse_rule("observe:443");
        assert!(!host.observes() && host.covers_name("observe", 443));
        assert!(!host.covers_name("a.org", 443));
        let rules = ["observe", "!b.org", "a.org:9000"].map(parse_rule);
        assert!(!decide_name(&rules, "b.org", 443).is_allowed());
        assert_eq!(list_ports(&rules, "b.org"), [0u16; 0]);
        assert!(list_ports(&rules, "a.org").contains(&9000));
        assert!(list_ports(&rules, "c.org").contains(&443));
        let observed = Network::Egress(rules.to_vec());
        assert!(observed.observes());
        assert!(!Network::Egress(vec![host]).observes() && !Network::Loopback.observes());
        let json = serde_json::to_value(&observed).unwrap();
        assert_eq!(json["egress"][0], "observe");
        assert_eq!(serde_json::from_value::<Network>(json).unwrap(), observed);
    }

    #[test]
    fn ask_covers_nothing_and_names_are_answered_for_unless_denied() {
        let rules = ["ask", "a.org:9000", "!b.org"].map(parse_rule);
        assert!(rules[0].asks() && !parse_rule("ask:443").asks());
        assert_eq!(decide_name(&rules, "c.org", 443), EgressDecision::NoRule);
        let address = "8.8.8.8".parse().unwrap();
        assert_eq!(decide_address(&rules, address, 443), EgressDecision::NoRule);
        assert!(list_ports(&rules, "c.org").contains(&443));
        assert!(list_ports(&rules, "a.org").contains(&9000));
        assert_eq!(list_ports(&rules, "b.org"), [0u16; 0]);
        assert!(Network::Egress(rules.to_vec()).asks() && !Network::None.asks());
    }

    #[test]
    fn addresses_take_no_methods_and_no_path() {
        for given in [
            "10.0.0.1/v1",
            "10.0.0.1:80/v1",
            "GET@10.0.0.1",
            "GET@10.0.0.0/8",
            "::1/v1",
            "[::1]:80/v1",
            "!POST@[::1]:80",
        ] {
            let error = given.parse::<EgressRule>().unwrap_err();
            assert!(error.contains("of an address"), "{given}: {error}");
        }
        assert_eq!(parse_rule("10.0.0.0/8:80").to_string(), "10.0.0.0/8:80");
    }

    #[test]
    fn a_rule_with_methods_or_a_path_is_about_those_requests() {
        for (given, shown) in [
            ("HEAD+GET@A.org:8443/v1/*", "GET+HEAD@a.org:8443/v1/"),
            ("!a.org/%7Eme", "!a.org/~me"),
            ("a.org/", "a.org"),
            ("a.org/*", "a.org"),
            ("GET@a.org/@scope", "GET@a.org/@scope"),
            ("a.org/@scope", "a.org/@scope"),
        ] {
            assert_eq!(parse_rule(given).to_string(), shown, "{given}");
        }
        let decide = |rules: &[EgressRule], method: &str, path: &str| {
            let path = RequestPath::parse(path).unwrap();
            decide_request(rules, ("a.org", 443), method, &path).is_allowed()
        };
        let rules = ["GET@a.org/v1", "POST@a.org/v1/jobs", "!a.org/v1/keys"].map(parse_rule);
        for (method, path, allowed) in [
            ("GET", "/v1/users", true),
            ("POST", "/v1/users", false),
            ("POST", "/v1/jobs/7", true),
            ("GET", "/v1/keys", false),
            ("GET", "/v1/Keys/1", false),
            ("GET", "/v2", false),
        ] {
            assert_eq!(decide(&rules, method, path), allowed, "{method} {path}");
        }
        // A connection is made; each request over it is judged.
        assert!(decide_name(&rules, "a.org", 443).is_allowed());
        assert_eq!(list_ports(&rules, "a.org"), [80, 443]);
        assert!(judges_requests(&rules, "a.org", 443) && !judges_requests(&rules, "b.org", 443));
        assert!(judges_requests(&rules, "a.org", 22), "one that denies is about every port");
        // A rule for the whole host allows what no other denies.
        let whole = ["a.org", "GET@a.org/v1", "!DELETE@a.org"].map(parse_rule);
        assert!(decide(&whole, "POST", "/v2") && !decide(&whole, "DELETE", "/v1"));
        // One that denies some requests allows none, and denies no connection.
        let denying = [parse_rule("!a.org/v1")];
        assert_eq!(decide_name(&denying, "a.org", 443), EgressDecision::NoRule);
        let beside = ["a.org", "!a.org/v1"].map(parse_rule);
        assert!(decide_name(&beside, "a.org", 443).is_allowed());
        assert!(Network::Egress(beside.to_vec()).judges_requests());
        assert!(!Network::Egress(vec![parse_rule("a.org")]).judges_requests());
    }

    #[test]
    fn ranges_cover_addresses_of_their_own_family_only() {
        assert!(parse_rule("10.0.0.0/8").covers_address("10.1.2.3".parse().unwrap(), 80));
        assert!(!parse_rule("10.0.0.0/8").covers_address("11.0.0.0".parse().unwrap(), 80));
        assert!(parse_rule("0.0.0.0/0").covers_address("11.0.0.0".parse().unwrap(), 80));
        assert!(!parse_rule("0.0.0.0/0").covers_address("::1".parse().unwrap(), 80));
    }
}
