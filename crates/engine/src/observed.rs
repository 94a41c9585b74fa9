//! The rules that would have been enough for what a sandbox has reached, collected while everything is let
//! through. What a guest reaches is its own choice, so the list has a bound.

use std::collections::BTreeSet;
use std::sync::Mutex;

use stockade_core::{EgressRule, MAX_OBSERVED_RULES};

use crate::engine::lock_mutex;

/// The rules of one sandbox. Nothing where nothing was ever observed.
#[derive(Debug, Default)]
pub(crate) struct ObservedRules(Mutex<Option<BTreeSet<EgressRule>>>);

impl ObservedRules {
    /// From now on there is a list, though nothing may be in it.
    pub(crate) fn begin(&self) {
        lock_mutex(&self.0).get_or_insert_default();
    }

    /// Adds a rule, if there is room.
    pub(crate) fn add(&self, rule: EgressRule) {
        let mut rules = lock_mutex(&self.0);
        let rules = rules.get_or_insert_default();
        if rules.len() < MAX_OBSERVED_RULES {
            rules.insert(rule);
        }
    }

    /// The rules so far, in order.
    pub(crate) fn list(&self) -> Option<Vec<EgressRule>> {
        lock_mutex(&self.0).as_ref().map(|rules| rules.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_listed_once_in_order_and_a_flood_is_cut() {
        let observed = ObservedRules::default();
        assert_eq!(observed.list(), None);
        observed.begin();
        assert_eq!(observed.list(), Some(Vec::new()));
        for rule in ["b.org:22", "a.org", "b.org:22"] {
            observed.add(rule.parse().unwrap());
        }
        let shown: Vec<_> = observed.list().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a.org", "b.org:22"]);
        for number in 0..5000 {
            observed.add(format!("n{number}.example").parse().unwrap());
        }
        assert_eq!(observed.list().unwrap().len(), MAX_OBSERVED_RULES);
    }
}
