//! Addresses that a name must never lead to: of this host, of its networks, of the clouds' metadata services,
//! and every way of writing one of those as another address. Only a rule that names the address itself opens
//! one of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::mask_address;

/// Ranges that are special for the same reason.
struct SpecialRanges {
    reason: &'static str,
    ranges: &'static [(IpAddr, u8)],
}

const fn range4([a, b, c, d]: [u8; 4], prefix: u8) -> (IpAddr, u8) {
    (IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

const fn range6([a, b, c, d, e, f, g, h]: [u16; 8], prefix: u8) -> (IpAddr, u8) {
    (IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix)
}

const METADATA_REASON: &str = "a cloud's metadata service";
const WRAPPED_REASON: &str = "an IPv4 address written as IPv6";

/// The first range that covers an address gives the reason: single addresses stand before the ranges that hold them.
const SPECIAL_RANGES: &[SpecialRanges] = &[
    SpecialRanges {
        reason: METADATA_REASON,
        ranges: &[
            range4([169, 254, 169, 254], 32),
            range4([169, 254, 170, 2], 32),
            range4([169, 254, 170, 23], 32),
            range4([100, 100, 100, 200], 32),
            range4([168, 63, 129, 16], 32),
            range4([192, 0, 0, 192], 32),
            range6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
            range6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
        ],
    },
    SpecialRanges {
        reason: "this host",
        ranges: &[range4([0, 0, 0, 0], 8), range6([0, 0, 0, 0, 0, 0, 0, 0], 128)],
    },
    SpecialRanges {
        reason: "loopback",
        ranges: &[range4([127, 0, 0, 0], 8), range6([0, 0, 0, 0, 0, 0, 0, 1], 128)],
    },
    SpecialRanges {
        reason: "a private network",
        ranges: &[
            range4([10, 0, 0, 0], 8),
            range4([172, 16, 0, 0], 12),
            range4([192, 168, 0, 0], 16),
            range6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
            range6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),
        ],
    },
    SpecialRanges { reason: "a carrier's network", ranges: &[range4([100, 64, 0, 0], 10)] },
    SpecialRanges {
        reason: "link-local",
        ranges: &[range4([169, 254, 0, 0], 16), range6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10)],
    },
    SpecialRanges {
        reason: "multicast",
        ranges: &[range4([224, 0, 0, 0], 4), range6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8)],
    },
    SpecialRanges { reason: "broadcast", ranges: &[range4([255, 255, 255, 255], 32)] },
    SpecialRanges {
        reason: WRAPPED_REASON,
        ranges: &[
            // IPv4-compatible, IPv4-mapped, IPv4-translated.
            range6([0, 0, 0, 0, 0, 0, 0, 0], 64),
            range6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96),
            range6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),
            range6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
        ],
    },
    SpecialRanges {
        reason: "a reserved range",
        ranges: &[
            range4([192, 0, 0, 0], 24),
            range4([192, 0, 2, 0], 24),
            range4([192, 88, 99, 0], 24),
            range4([198, 18, 0, 0], 15),
            range4([198, 51, 100, 0], 24),
            range4([203, 0, 113, 0], 24),
            range4([240, 0, 0, 0], 4),
            range6([0x100, 0, 0, 0, 0, 0, 0, 0], 64),
            // Teredo is in it.
            range6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
            range6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
            range6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
            range6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16),
        ],
    },
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
        self.reason == METADATA_REASON
    }
}

/// Why an address is special wherever it is used. Nothing for an address of the public network; that it is this
/// host's own is not known here.
pub fn classify_special(address: IpAddr) -> Option<SpecialAddress> {
    if is_isatap(address) {
        return Some(SpecialAddress { reason: WRAPPED_REASON, prefix: 128 });
    }
    SPECIAL_RANGES.iter().find_map(|group| group.classify(address))
}

/// ISATAP puts an IPv4 address behind `::5efe` or `200:5efe`.
fn is_isatap(address: IpAddr) -> bool {
    let IpAddr::V6(v6) = address else { return false };
    let [.., flag, mark, _, _] = v6.segments();
    matches!(flag, 0 | 0x200) && mark == 0x5efe
}

impl SpecialRanges {
    fn classify(&self, address: IpAddr) -> Option<SpecialAddress> {
        let covers =
            |(network, prefix): &&(IpAddr, u8)| mask_address(address, *prefix) == Some(*network);
        let (_, prefix) = self.ranges.iter().find(covers)?;
        // Any IPv4 address may be written so: only a rule for this very IPv6 address means it.
        let prefix = if self.reason == WRAPPED_REASON { 128 } else { *prefix };
        Some(SpecialAddress { reason: self.reason, prefix })
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
    fn the_narrowest_reason_is_given() {
        for (address, reason, prefix) in [
            ("169.254.169.254", METADATA_REASON, 32),
            ("fd00:ec2::254", METADATA_REASON, 128),
            ("169.254.1.1", "link-local", 16),
            ("100.64.0.1", "a carrier's network", 10),
            ("192.0.0.1", "a reserved range", 24),
            ("255.255.255.255", "broadcast", 32),
            ("240.0.0.1", "a reserved range", 4),
            ("::", "this host", 128),
            ("::1", "loopback", 128),
            ("::2", WRAPPED_REASON, 128),
            ("fd00::1", "a private network", 7),
        ] {
            let special = SpecialAddress { reason, prefix };
            assert_eq!(classify_special(address.parse().unwrap()), Some(special), "{address}");
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
