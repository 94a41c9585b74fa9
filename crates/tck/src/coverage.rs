//! Which case checks which clause and which feature: so that nothing can be forgotten.

use stockade_core::Feature;

use crate::contract::{CONTRACT_CLAUSES, Clause};
use crate::{Case, cases};

/// What is covered by what.
#[derive(Debug)]
pub struct Coverage {
    /// Each clause with the cases that check it.
    pub clauses: Vec<(Clause, Vec<Case>)>,
    /// Each feature with the cases about it.
    pub features: Vec<FeatureCoverage>,
}

/// The cases about one feature.
#[derive(Debug)]
pub struct FeatureCoverage {
    /// Which feature.
    pub feature: Feature,
    /// The cases that run only where it is declared.
    pub needed_by: Vec<Case>,
    /// The case that proves its refusal where it is missing.
    pub refused_by: Option<Case>,
}

/// Features that no case can judge yet, and why.
pub const NOT_JUDGED: &[(Feature, &str)] = &[];

/// What is covered by what.
pub fn coverage() -> Coverage {
    let all = cases::all();
    let checking =
        |clause: &Clause| all.iter().filter(|case| case.clause == clause.id).copied().collect();
    let clauses = CONTRACT_CLAUSES.iter().map(|clause| (*clause, checking(clause))).collect();
    let about = |feature: &Feature| FeatureCoverage {
        feature: *feature,
        needed_by: all.iter().filter(|case| case.needs.contains(feature)).copied().collect(),
        refused_by: all.iter().find(|case| cases::refused_by(case) == Some(*feature)).copied(),
    };
    Coverage { clauses, features: Feature::ALL.iter().map(about).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_clause_is_checked_by_a_case_and_every_case_checks_a_clause() {
        for (clause, cases) in coverage().clauses {
            assert!(!cases.is_empty(), "no case checks {}", clause.id);
        }
        for case in cases::all() {
            assert!(CONTRACT_CLAUSES.iter().any(|clause| clause.id == case.clause), "{case:?}");
        }
    }

    #[test]
    fn every_feature_has_a_case_that_needs_it_and_one_that_proves_its_refusal() {
        for covered in coverage().features {
            let feature = covered.feature;
            assert!(covered.refused_by.is_some(), "no case proves that {feature} is refused");
            let excused = NOT_JUDGED.iter().any(|(not, _)| *not == feature);
            assert_eq!(covered.needed_by.is_empty(), excused, "{feature}");
        }
    }

    #[test]
    fn every_backend_faces_the_eight_scenarios_and_at_least_forty_more() {
        let others = cases::all().len() - Feature::ALL.len() - 8;
        assert!(others >= 45, "{others}");
    }
}
