//! What a list of rules says about a connection or a request. A rule that denies wins over all that allow.

use std::net::IpAddr;

use super::EgressRule;
use crate::request_path::RequestPath;

/// What a list of rules says about one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressDecision<'a> {
    /// This rule allows it.
    Allowed(&'a EgressRule),
    /// This rule denies it. It wins over all that allow.
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

#[cfg(test)]
mod tests {
    use super::super::{Network, parse_rule};
    use super::*;

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
}
