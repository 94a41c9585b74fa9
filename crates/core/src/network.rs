//! Network policy: the one parser for the names of hosts that a caller may list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

/// One entry of an egress list: `host`, `*.host`, an address or a CIDR range, each with an optional port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EgressRule {
    host: EgressHost,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum EgressHost {
    Name(String),
    Below(String),
    Range { network: IpAddr, prefix: u8 },
}

impl EgressRule {
    /// Whether a connection to this host name and port is covered. Addresses never match a name rule.
    pub fn covers_name(&self, name: &str, port: u16) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let covered = match &self.host {
            EgressHost::Name(exact) => name == *exact,
            EgressHost::Below(parent) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            EgressHost::Range { .. } => false,
        };
        covered && self.port.is_none_or(|only| only == port)
    }

    /// Whether a connection to this address and port is covered.
    pub fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        let covered = match self.host {
            EgressHost::Range { network, prefix } => mask_address(address, prefix) == Some(network),
            EgressHost::Name(_) | EgressHost::Below(_) => false,
        };
        covered && self.port.is_none_or(|only| only == port)
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

/// Letters, digits and hyphens in dot-separated labels; never all digits, which would be an address.
fn host_name(given: &str) -> Option<String> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = given.strip_suffix('.').unwrap_or(given);
    let numeric_end = name.rsplit('.').next()?.bytes().all(|b| b.is_ascii_digit());
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
    if let Some(parent) = given.strip_prefix("*.") {
        return host_name(parent).map(EgressHost::Below);
    }
    parse_range(given).or_else(|| host_name(given).map(EgressHost::Name))
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

impl FromStr for EgressRule {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let parse = || {
            let (name, port) = split_port(given)?;
            (port != Some(0)).then_some(Self { host: parse_host(name)?, port })
        };
        parse().ok_or_else(|| {
            format!(
                "`{}` is not a host: give `host`, `*.host`, an address or a CIDR range, each with an \
                 optional `:port`",
                given.escape_debug()
            )
        })
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
        match &self.host {
            EgressHost::Name(name) => f.write_str(name)?,
            EgressHost::Below(parent) => write!(f, "*.{parent}")?,
            EgressHost::Range { network, prefix } if bracketed(network) => {
                write!(f, "[{network}/{prefix}]")?
            }
            EgressHost::Range { network, prefix } => write!(f, "{network}/{prefix}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
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
        for given in ["example.org", "*.example.org:443", "10.0.0.0/8", "[2001:db8::/32]:80", "::1"]
        {
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
            &long,
        ] {
            // `0x7f.1` ends in a number: resolvers read it as an address.
            assert!(given.parse::<EgressRule>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn a_wildcard_covers_what_is_below_and_not_the_name_itself() {
        let below = parse_rule("*.example.org");
        assert!(below.covers_name("a.example.org", 443));
        assert!(below.covers_name("A.B.Example.Org.", 443));
        assert!(!below.covers_name("example.org", 443));
        assert!(!below.covers_name("evilexample.org", 443));
        assert!(!parse_rule("example.org:443").covers_name("example.org", 80));
    }

    #[test]
    fn ranges_cover_addresses_of_their_own_family_only() {
        assert!(parse_rule("10.0.0.0/8").covers_address("10.1.2.3".parse().unwrap(), 1));
        assert!(!parse_rule("10.0.0.0/8").covers_address("11.0.0.0".parse().unwrap(), 1));
        assert!(parse_rule("0.0.0.0/0").covers_address("11.0.0.0".parse().unwrap(), 1));
        assert!(!parse_rule("0.0.0.0/0").covers_address("::1".parse().unwrap(), 1));
    }
}
