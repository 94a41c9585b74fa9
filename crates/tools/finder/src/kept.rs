//! The first so many results by path, whichever thread finds them when: the same answer every time,
//! in bounded memory.

use std::collections::BTreeMap;

/// Results by path, each with a weight.
pub struct KeptResults<T> {
    by_path: BTreeMap<Vec<u8>, (usize, T)>,
    weight: usize,
    limit: usize,
    pub more: bool,
}

impl<T> KeptResults<T> {
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

/// The first so many paths. Sorted now and then rather than always: most paths come in some order.
pub struct Firsts {
    paths: Vec<Box<[u8]>>,
    limit: usize,
    more: bool,
}

impl Firsts {
    pub fn new(limit: u32) -> Self {
        Self { paths: Vec::new(), limit: limit as usize, more: false }
    }

    pub fn add(&mut self, path: &[u8]) {
        self.paths.push(path.into());
        if self.paths.len() >= 2 * self.limit + 1024 {
            self.drop_excess();
        }
    }

    pub fn merge(&mut self, other: &mut Self) {
        self.more |= other.more;
        self.paths.append(&mut other.paths);
        self.drop_excess();
    }

    fn drop_excess(&mut self) {
        if self.paths.len() > self.limit {
            self.paths.select_nth_unstable(self.limit);
            self.paths.truncate(self.limit);
            self.more = true;
        }
    }

    /// The paths in order, and whether there are more.
    pub fn finish(mut self) -> (Vec<Box<[u8]>>, bool) {
        self.drop_excess();
        self.paths.sort_unstable();
        (self.paths, self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_kept_in_whatever_order_they_come() {
        for order in [[1u8, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2]] {
            let mut kept = KeptResults::new(2);
            order.into_iter().for_each(|n| kept.add(vec![n], 1, n));
            assert!(kept.more);
            assert_eq!(kept.into_results().collect::<Vec<_>>(), [1, 2]);
        }
    }

    #[test]
    fn the_first_paths_are_kept_through_many_prunes_and_merges() {
        let (mut one, mut other) = (Firsts::new(3), Firsts::new(3));
        for n in (0..20_000u32).rev() {
            let part = if n % 2 == 0 { &mut one } else { &mut other };
            part.add(format!("{n:05}").as_bytes());
        }
        one.merge(&mut other);
        let (paths, more) = one.finish();
        assert!(more);
        assert_eq!(paths, [b"00000", b"00001", b"00002"].map(|path| Box::from(&path[..])));
    }

    #[test]
    fn a_heavy_one_is_kept_while_those_before_it_are_not_enough() {
        let mut kept = KeptResults::new(3);
        kept.add(vec![1], 2, 1);
        kept.add(vec![2], 100, 2);
        kept.add(vec![3], 1, 3);
        assert!(!kept.wants(&[4]) && kept.wants(&[0]));
        assert_eq!(kept.into_results().collect::<Vec<_>>(), [1, 2]);
    }
}
