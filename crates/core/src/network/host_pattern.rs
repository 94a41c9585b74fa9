//! The host of a rule: a name, a wildcard, an address range, or one of the words `observe` and `ask`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The rule that lets everything through. A host of that name is named with its port.
const OBSERVE_WORD: &str = "observe";
/// The rule by which a person is asked about what no other covers. It covers nothing itself.
const ASK_WORD: &str = "ask";
/// The longest name that DNS has.
const MAX_NAME_BYTES: usize = 253;
/// The longest label of a name that DNS has.
const MAX_LABEL_BYTES: usize = 63;

/// Which hosts a rule is about. Names are in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum EgressHost {
    /// `host`.
    Name(String),
    /// `*.host`: names with one label more.
    OneBelow(String),
    /// `**.host`: names with any number of labels more.
    AllBelow(String),
    /// An address or a CIDR range.
    Range { network: IpAddr, prefix: u8 },
    /// Every name and address: `observe`.
    Anything,
    /// No host: `ask`.
    Asked,
}

impl EgressHost {
    pub fn covers_name(&self, name: &str) -> bool {
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

    pub fn covers_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Range { network, prefix } => mask_address(address, *prefix) == Some(*network),
            Self::Anything => true,
            Self::Name(_) | Self::OneBelow(_) | Self::AllBelow(_) | Self::Asked => false,
        }
    }

    /// How many bits of an address it names; nothing for a host that is no range.
    pub fn prefix(&self) -> Option<u8> {
        match self {
            Self::Range { prefix, .. } => Some(*prefix),
            Self::Name(_)
            | Self::OneBelow(_)
            | Self::AllBelow(_)
            | Self::Anything
            | Self::Asked => None,
        }
    }

    /// Writes it as rules have it. An IPv6 address stands in brackets before a port.
    pub fn write(&self, f: &mut fmt::Formatter<'_>, has_port: bool) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::OneBelow(parent) => write!(f, "*.{parent}"),
            Self::AllBelow(parent) => write!(f, "**.{parent}"),
            Self::Range { network, prefix } if has_port && network.is_ipv6() => {
                write!(f, "[{network}/{prefix}]")
            }
            Self::Range { network, prefix } => write!(f, "{network}/{prefix}"),
            Self::Anything => f.write_str(OBSERVE_WORD),
            Self::Asked => f.write_str(ASK_WORD),
        }
    }
}

/// Whether a name without a port is a word of the policy, and not a host.
pub fn is_policy_word(name: &str) -> bool {
    find_policy_word(name).is_some()
}

pub(super) fn find_policy_word(name: &str) -> Option<EgressHost> {
    match name {
        OBSERVE_WORD => Some(EgressHost::Anything),
        ASK_WORD => Some(EgressHost::Asked),
        _ => None,
    }
}

pub(super) fn parse_host(given: &str) -> Option<EgressHost> {
    if let Some(parent) = given.strip_prefix("**.") {
        return canonical_host(parent).map(EgressHost::AllBelow);
    }
    if let Some(parent) = given.strip_prefix("*.") {
        return canonical_host(parent).map(EgressHost::OneBelow);
    }
    parse_range(given).or_else(|| canonical_host(given).map(EgressHost::Name))
}

/// A host's name in canonical form: lower case, without a dot at its end. Letters, digits and hyphens in
/// dot-separated labels; never all digits at its end, which resolvers read as an address. Nothing otherwise.
pub fn canonical_host(given: &str) -> Option<String> {
    let name = given.strip_suffix('.').unwrap_or(given);
    let last = name.rsplit('.').next()?;
    (name.len() <= MAX_NAME_BYTES && !is_number(last) && name.split('.').all(is_label))
        .then(|| name.to_ascii_lowercase())
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a resolver may read a label as a number: decimal, or hexadecimal behind `0x`.
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or(label.strip_prefix("0X"));
    label.bytes().all(|b| b.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn parse_range(given: &str) -> Option<EgressHost> {
    let (address, prefix) = match given.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, Some(parse_number(prefix)?)),
        None => (given.parse().ok()?, None),
    };
    let longest = if matches!(address, IpAddr::V4(_)) { 32 } else { 128 };
    let prefix = prefix.unwrap_or(longest);
    // A range with bits set behind its prefix is a mistake: refused, not widened.
    (mask_address(address, prefix) == Some(address))
        .then_some(EgressHost::Range { network: address, prefix })
}

/// A number of digits alone. `parse` would take a sign before them.
pub(super) fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The address with everything behind the prefix cleared; nothing if the prefix is too long for it.
pub(crate) fn mask_address(address: IpAddr, prefix: u8) -> Option<IpAddr> {
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

#[cfg(test)]
mod tests {
    use super::super::parse_rule;

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
    fn ranges_cover_addresses_of_their_own_family_only() {
        assert!(parse_rule("10.0.0.0/8").covers_address("10.1.2.3".parse().unwrap(), 80));
        assert!(!parse_rule("10.0.0.0/8").covers_address("11.0.0.0".parse().unwrap(), 80));
        assert!(parse_rule("0.0.0.0/0").covers_address("11.0.0.0".parse().unwrap(), 80));
        assert!(!parse_rule("0.0.0.0/0").covers_address("::1".parse().unwrap(), 80));
    }
}
