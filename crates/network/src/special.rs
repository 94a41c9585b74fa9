//! Addresses that a name must never lead to: the special ones of [`stockade_core::classify_special`], and this
//! host's own. Only a rule that names the address itself opens one of them.

use std::net::IpAddr;

use stockade_core::{SpecialAddress, classify_special};

/// The addresses of this host's interfaces at one instant: they come and go.
pub struct OwnAddresses(Option<Vec<IpAddr>>);

impl OwnAddresses {
    /// Lists them. Where they cannot be listed, every address may be one.
    pub fn list() -> Self {
        let listed = if_addrs::get_if_addrs();
        Self(listed.ok().map(|all| all.iter().map(if_addrs::Interface::ip).collect()))
    }

    /// As where the interfaces cannot be listed.
    #[cfg(test)]
    pub(crate) fn unlisted() -> Self {
        Self(None)
    }

    /// Whether an address is known to be one of them.
    pub(crate) fn lists(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_some_and(|own| own.contains(&address))
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.as_ref().is_none_or(|own| own.contains(&address))
    }
}

/// Why an address is special. Nothing for an address of the public network.
pub fn classify_address(address: IpAddr, own: &OwnAddresses) -> Option<SpecialAddress> {
    classify_special(address).or_else(|| {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        own.contains(address)
            .then_some(SpecialAddress { reason: "this host's own address", prefix })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_addresses_are_special_wherever_they_lie() {
        let own = OwnAddresses(Some(vec!["8.8.8.8".parse().unwrap()]));
        let reason = |text: &str| classify_address(text.parse().unwrap(), &own).map(|s| s.reason);
        assert_eq!(reason("8.8.8.8"), Some("this host's own address"));
        assert_eq!(reason("8.8.4.4"), None);
        assert_eq!(reason("127.0.0.1"), Some("loopback"));
        assert!(classify_address("8.8.4.4".parse().unwrap(), &OwnAddresses(None)).is_some());
    }
}
