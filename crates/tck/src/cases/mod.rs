//! The cases, by topic. Each is one sentence that holds or does not.

mod apply;
mod egress;
mod eight;
mod end;
mod environment;
mod files;
mod images;
mod isolation;
mod kill;
mod lifecycle;
mod limits;
mod network;
mod output;
mod overlay;
mod peers;
mod private;
mod record;
mod refusals;
mod reuse;
mod secrets;
mod snapshots;
mod spec;
mod start;
mod stdin;
mod terminal;
mod workspace;

use stockade_core::Feature;

use crate::Case;

/// Every case there is, the eight that every backend must pass first.
pub fn all() -> Vec<Case> {
    [
        eight::MANDATORY_CASES,
        start::START_CASES,
        output::OUTPUT_CASES,
        stdin::STDIN_CASES,
        terminal::TERMINAL_CASES,
        environment::ENVIRONMENT_CASES,
        kill::KILL_CASES,
        end::END_CASES,
        peers::PEER_CASES,
        limits::LIMIT_CASES,
        reuse::REUSE_CASES,
        files::FILE_CASES,
        workspace::WORKSPACE_CASES,
        overlay::OVERLAY_CASES,
        apply::APPLY_CASES,
        images::IMAGE_CASES,
        snapshots::SNAPSHOT_CASES,
        network::NETWORK_CASES,
        egress::EGRESS_CASES,
        secrets::SECRET_CASES,
        isolation::ISOLATION_CASES,
        private::PRIVACY_CASES,
        lifecycle::LIFECYCLE_CASES,
        record::RECORD_CASES,
        spec::SPEC_CASES,
        refusals::REFUSAL_CASES,
    ]
    .concat()
}

/// The feature whose refusal a case proves, if it is such a case.
pub fn refused_by(case: &Case) -> Option<Feature> {
    refusals::feature_of(case)
}

/// The bytes a flood writes.
fn generate_pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_two_cases_have_the_same_name() {
        let cases = super::all();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
    }
}
