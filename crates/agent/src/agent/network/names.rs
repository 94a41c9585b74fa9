//! The addresses that are invented for names. An address belongs to one name as long as the helper lives, and
//! is never given to another.

use std::collections::HashMap;
use std::net::Ipv4Addr;

/// The most names that get an address.
const MAX_NAMES: usize = 1024;
/// The prefix of the range: addresses stay within that of the first one.
const RANGE_PREFIX: u32 = 10;

/// Invented addresses by name.
pub struct NameTable {
    addresses: HashMap<String, Ipv4Addr>,
    next: u32,
    last: u32,
}

impl NameTable {
    /// Addresses from `first` on.
    pub fn starting_at(first: Ipv4Addr) -> Self {
        let next = u32::from(first);
        Self { addresses: HashMap::new(), next, last: next | u32::MAX >> RANGE_PREFIX }
    }

    /// The name's address, and whether it is new; nothing where there are too many names.
    pub fn assign(&mut self, name: &str) -> Option<(Ipv4Addr, bool)> {
        if let Some(address) = self.addresses.get(name) {
            return Some((*address, false));
        }
        if self.addresses.len() >= MAX_NAMES || self.next >= self.last {
            return None;
        }
        let address = Ipv4Addr::from(self.next);
        self.next += 1;
        self.addresses.insert(name.to_owned(), address);
        Some((address, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address_and_shares_it_with_no_other() {
        let mut table = NameTable::starting_at(Ipv4Addr::new(127, 64, 1, 255));
        let first = table.assign("a.org").unwrap();
        assert_eq!(first, (Ipv4Addr::new(127, 64, 1, 255), true));
        assert_eq!(table.assign("b.org"), Some((Ipv4Addr::new(127, 64, 2, 0), true)));
        assert_eq!(table.assign("a.org"), Some((first.0, false)));
    }

    #[test]
    fn names_beyond_the_bound_get_none() {
        let mut table = NameTable::starting_at(Ipv4Addr::new(127, 64, 0, 2));
        for number in 0..MAX_NAMES {
            assert!(table.assign(&format!("{number}.org")).is_some());
        }
        assert_eq!(table.assign("one-more.org"), None);
        assert!(table.assign("0.org").is_some());
    }
}
