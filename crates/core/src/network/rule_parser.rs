//! The one parser of rules: `!GET+HEAD@host:port/path`. What could be read in two ways is refused.

use std::net::IpAddr;
use std::str::FromStr;

use super::EgressRule;
use super::host_pattern::{EgressHost, find_policy_word, parse_host, parse_number};
use crate::request_scope::{RequestScope, RequestScopeError};

impl FromStr for EgressRule {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        parse_rule(given).map_err(|fault| fault.describe(given))
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

/// Splits an optional port off. An IPv6 address takes a port only in brackets.
fn split_port(given: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = given.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(port) => Some((inside, Some(parse_number(port)?))),
            None => after.is_empty().then_some((inside, None)),
        };
    }
    match given.rsplit_once(':') {
        Some((before, port)) if !before.contains(':') => Some((before, Some(parse_number(port)?))),
        _ => Some((given, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_rule;
    use super::*;

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
            "host:+80",
            "[::1]:+80",
            "[::/+8]:80",
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
}
