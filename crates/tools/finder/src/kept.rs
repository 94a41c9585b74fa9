//! The first so many results by path, whichever thread finds them when: the same answer every time,
//! in bounded memory.

use std::collections::BTreeMap;

/// Results by path, each with a weight.
pub struct Kept<T> {
    by_path: BTreeMap<Vec<u8>, (usize, T)>,
    weight: usize,
    limit: usize,
    pub more: bool,
}

impl<T> Kept<T> {
    pub fn new(limit: u32) -> Self {
        Self { by_path: BTreeMap::new(), weight: 0, limit: limit as usize, more: false }
    }

    /// Takes one in, and lets the last ones go that are no longer among the first.
    pub fn add(&mut self, path: Vec<u8>, weight: usize, result: T) {
        self.weight += weight;
        if let Some((before, _)) = self.by_path.insert(path, (weight, result)) {
            self.weight -= before;
        }
        while let Some(last) = self.by_path.last_entry() {
            // All before it are enough already.
            if self.weight - last.get().0 < self.limit {
                break;
            }
            self.weight -= last.remove().0;
            self.more = true;
        }
    }

    /// Whether a result at this path could still be among the first.
    pub fn wants(&self, path: &[u8]) -> bool {
        self.weight < self.limit
            || self.by_path.last_key_value().is_none_or(|(last, _)| path < last.as_slice())
    }

    pub fn into_results(self) -> impl Iterator<Item = T> {
        self.by_path.into_values().map(|(_, result)| result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_kept_in_whatever_order_they_come() {
        for order in [[1u8, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2]] {
            let mut kept = Kept::new(2);
            order.into_iter().for_each(|n| kept.add(vec![n], 1, n));
            assert!(kept.more);
            assert_eq!(kept.into_results().collect::<Vec<_>>(), [1, 2]);
        }
    }

    #[test]
    fn a_heavy_one_is_kept_while_those_before_it_are_not_enough() {
        let mut kept = Kept::new(3);
        kept.add(vec![1], 2, 1);
        kept.add(vec![2], 100, 2);
        kept.add(vec![3], 1, 3);
        assert!(!kept.wants(&[4]) && kept.wants(&[0]));
        assert_eq!(kept.into_results().collect::<Vec<_>>(), [1, 2]);
    }
}
