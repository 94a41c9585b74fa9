//! Addresses that a name must never lead to: of this host, of its networks, of the clouds' metadata services,
//! and every way of writing one of those as another address. Only a rule that names the address itself opens
//! one of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range with the reason why it is special.
struct SpecialRange<A> {
    network: A,
    prefix: u32,
    reason: &'static str,
}

const fn range4(octets: [u8; 4], prefix: u32, reason: &'static str) -> SpecialRange<Ipv4Addr> {
    let [a, b, c, d] = octets;
    SpecialRange { network: Ipv4Addr::new(a, b, c, d), prefix, reason }
}

const fn range6(start: [u16; 4], prefix: u32, reason: &'static str) -> SpecialRange<Ipv6Addr> {
    let [a, b, c, d] = start;
    SpecialRange { network: Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix, reason }
}

const METADATA: &str = "a cloud's metadata service";
const PRIVATE: &str = "a private network";
const RESERVED: &str = "a reserved range";
const WRAPPED: &str = "an IPv4 address written as IPv6";

/// Metadata services come first, for their reason's sake.
const SPECIAL_V4: &[SpecialRange<Ipv4Addr>] = &[
    range4([169, 254, 169, 254], 32, METADATA),
    range4([169, 254, 170, 2], 32, METADATA),
    range4([169, 254, 170, 23], 32, METADATA),
    range4([100, 100, 100, 200], 32, METADATA),
    range4([168, 63, 129, 16], 32, METADATA),
    range4([192, 0, 0, 192], 32, METADATA),
    range4([0, 0, 0, 0], 8, "this host"),
    range4([127, 0, 0, 0], 8, "loopback"),
    range4([10, 0, 0, 0], 8, PRIVATE),
    range4([172, 16, 0, 0], 12, PRIVATE),
    range4([192, 168, 0, 0], 16, PRIVATE),
    range4([100, 64, 0, 0], 10, "a carrier's network"),
    range4([169, 254, 0, 0], 16, "link-local"),
    range4([192, 0, 0, 0], 24, RESERVED),
    range4([192, 0, 2, 0], 24, RESERVED),
    range4([192, 88, 99, 0], 24, RESERVED),
    range4([198, 18, 0, 0], 15, RESERVED),
    range4([198, 51, 100, 0], 24, RESERVED),
    range4([203, 0, 113, 0], 24, RESERVED),
    range4([224, 0, 0, 0], 4, "multicast"),
    range4([255, 255, 255, 255], 32, "broadcast"),
    range4([240, 0, 0, 0], 4, RESERVED),
];

const SPECIAL_V6: &[SpecialRange<Ipv6Addr>] = &[
    SpecialRange {
        network: Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
        prefix: 128,
        reason: METADATA,
    },
    SpecialRange {
        network: Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
        prefix: 128,
        reason: METADATA,
    },
    range6([0xfc00, 0, 0, 0], 7, PRIVATE),
    range6([0xfe80, 0, 0, 0], 10, "link-local"),
    range6([0xfec0, 0, 0, 0], 10, PRIVATE),
    range6([0xff00, 0, 0, 0], 8, "multicast"),
    // Unspecified, loopback, IPv4-compatible, IPv4-mapped, IPv4-translated.
    range6([0, 0, 0, 0], 64, WRAPPED),
    range6([0x64, 0xff9b, 0, 0], 96, WRAPPED),
    range6([0x64, 0xff9b, 1, 0], 48, WRAPPED),
    range6([0x2002, 0, 0, 0], 16, WRAPPED),
    range6([0x100, 0, 0, 0], 64, RESERVED),
    // Teredo is in it.
    range6([0x2001, 0, 0, 0], 23, RESERVED),
    range6([0x2001, 0xdb8, 0, 0], 32, RESERVED),
    range6([0x3fff, 0, 0, 0], 20, RESERVED),
    range6([0x5f00, 0, 0, 0], 16, RESERVED),
];

/// Why an address may be reached only where a rule names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialAddress {
    /// What kind of address it is.
    pub reason: &'static str,
    /// The prefix that a rule needs at least in order to mean this address and not just include it.
    pub prefix: u8,
}

impl SpecialAddress {
    /// Whether it is a cloud's metadata service, which hands out credentials of the machine.
    pub fn is_metadata(&self) -> bool {
        self.reason == METADATA
    }
}

/// Why an address is special wherever it is used. Nothing for an address of the public network; that it is this
/// host's own is not known here.
pub fn classify_special(address: IpAddr) -> Option<SpecialAddress> {
    let whole = |reason| Some(SpecialAddress { reason, prefix: 128 });
    match address {
        IpAddr::V4(v4) => {
            SPECIAL_V4.iter().find(|range| range.covers(v4)).map(SpecialRange::special)
        }
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => whole("this host"),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => whole("loopback"),
        IpAddr::V6(v6) if is_isatap(v6) => whole(WRAPPED),
        IpAddr::V6(v6) => {
            SPECIAL_V6.iter().find(|range| range.covers(v6)).map(SpecialRange::special)
        }
    }
}

/// ISATAP puts an IPv4 address behind `::5efe` or `200:5efe`.
fn is_isatap(address: Ipv6Addr) -> bool {
    let [.., flag, mark, _, _] = address.segments();
    matches!(flag, 0 | 0x200) && mark == 0x5efe
}

impl<A> SpecialRange<A> {
    fn special(&self) -> SpecialAddress {
        // What is wrapped may be any address: only a rule for that very one means it.
        let prefix = if self.reason == WRAPPED { 128 } else { self.prefix as u8 };
        SpecialAddress { reason: self.reason, prefix }
    }
}

impl SpecialRange<Ipv4Addr> {
    fn covers(&self, address: Ipv4Addr) -> bool {
        let differs = u32::from(address) ^ u32::from(self.network);
        differs.checked_shr(32 - self.prefix).unwrap_or(0) == 0
    }
}

impl SpecialRange<Ipv6Addr> {
    fn covers(&self, address: Ipv6Addr) -> bool {
        let differs = u128::from(address) ^ u128::from(self.network);
        differs.checked_shr(128 - self.prefix).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_its_networks_and_the_clouds_are_special() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.0.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "2002:808:808::1",
            "2001::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "ff02::1",
            "2a00::5efe:8.8.8.8",
            "2a00::200:5efe:8.8.8.8",
        ] {
            assert!(classify_special(address.parse().unwrap()).is_some(), "{address}");
        }
    }

    #[test]
    fn addresses_of_the_public_network_are_not() {
        for address in
            ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
        {
            assert_eq!(classify_special(address.parse().unwrap()), None, "{address}");
        }
    }
}
