//! Runs the cases that a subject's features select, and writes down what became of each. A case that
//! hangs, panics or skips what the backend declared has failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_core::{Boundary, Capabilities, Support};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::kit::Shelf;
use crate::{Case, CaseReport, Kit, Report, Status, Stop, Subject, Verdict, cases};

/// Timeout for probing a backend, and for cleaning up after a case.
const HOUSEKEEPING_TIMEOUT: Duration = Duration::from_secs(60);

/// Which cases to run and how many at once.
#[derive(Debug, Clone)]
pub struct KitOptions {
    /// Only cases whose name or clause holds one of these texts. Empty: all.
    pub only: Vec<String>,
    /// How many cases run at once.
    pub jobs: usize,
}

impl Default for KitOptions {
    fn default() -> Self {
        Self { only: Vec::new(), jobs: 4 }
    }
}

impl KitOptions {
    fn is_selected(&self, case: &Case) -> bool {
        let named = |text: &String| case.name.contains(text.as_str()) || case.clause == *text;
        self.only.is_empty() || self.only.iter().any(named)
    }
}

/// Judges a subject. Never fails: what goes wrong is in the report.
pub async fn run(subject: Arc<dyn Subject>, options: &KitOptions) -> Report {
    run_cases(cases::all(), subject, options).await
}

/// Judges a subject by these cases.
pub(crate) async fn run_cases(
    cases: Vec<Case>,
    subject: Arc<dyn Subject>,
    options: &KitOptions,
) -> Report {
    let backend = subject.backend();
    let capabilities =
        tokio::time::timeout(HOUSEKEEPING_TIMEOUT, backend.probe()).await.unwrap_or_else(|_| {
            let (reason, remedy) = ("measuring it took too long", "see why it hangs");
            Capabilities::unavailable(backend.name(), Boundary::None, reason, remedy)
        });
    let shelf = Shelf::new(subject.probe()).map(Arc::new);
    let turns = Arc::new(Semaphore::new(options.jobs.max(1)));
    let mut running = JoinSet::new();
    let mut reports = Vec::new();
    for (at, case) in cases.into_iter().filter(|case| options.is_selected(case)).enumerate() {
        let (subject, capabilities) = (Arc::clone(&subject), capabilities.clone());
        let (turns, shelf) = (Arc::clone(&turns), shelf.clone());
        running.spawn(async move {
            let _turn = turns.acquire_owned().await;
            (at, judge_case(case, subject, capabilities, shelf).await)
        });
    }
    while let Some(judged) = running.join_next().await {
        // Each case runs in a task of its own inside this one, so this one does not panic.
        reports.extend(judged);
    }
    reports.sort_by_key(|(at, _)| *at);
    let cases = reports.into_iter().map(|(_, report)| report).collect();
    Report { subject: subject.name(), boundary: capabilities.boundary, cases }
}

async fn judge_case(
    case: Case,
    subject: Arc<dyn Subject>,
    capabilities: Capabilities,
    shelf: Verdict<Arc<Shelf>>,
) -> CaseReport {
    let begun = Instant::now();
    let status = match skip_reason(&case, &capabilities) {
        Some(reason) => Status::Skipped(reason),
        None => status_of(run_case(case, subject, &capabilities, shelf).await, &capabilities),
    };
    CaseReport { name: case.name, clause: case.clause, status, took: begun.elapsed() }
}

/// Why there is nothing to check, if so: the first feature that is not declared in full.
fn skip_reason(case: &Case, capabilities: &Capabilities) -> Option<String> {
    if let Some((reason, _)) = &capabilities.unavailable {
        return Some(format!("{} is not available: {reason}", capabilities.backend));
    }
    let reason = |feature| match capabilities.support(feature) {
        Support::Full { .. } => None,
        Support::Partial { gap, .. } => Some(format!("needs {feature}, which is partial: {gap}")),
        Support::Missing { reason, .. } => Some(format!("needs {feature}: {reason}")),
    };
    case.needs.iter().find_map(|feature| reason(*feature))
}

async fn run_case(
    case: Case,
    subject: Arc<dyn Subject>,
    capabilities: &Capabilities,
    shelf: Verdict<Arc<Shelf>>,
) -> Verdict {
    let kit = Kit::new(subject, capabilities.clone(), shelf?, None).await?;
    let body = tokio::spawn(tokio::time::timeout(case.limit, (case.run)(kit.clone())));
    let verdict = match body.await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => Err(Stop::failed(format!("took longer than {:?}", case.limit))),
        Err(join) => Err(Stop::failed(format!("the case itself went wrong: {join}"))),
    };
    // Leftovers of the case are not judged any more, but must not disturb the next one.
    let _ = tokio::time::timeout(HOUSEKEEPING_TIMEOUT, kit.close()).await;
    verdict
}

fn status_of(verdict: Verdict, capabilities: &Capabilities) -> Status {
    match verdict {
        Ok(()) => Status::Passed,
        Err(Stop::Failed(message)) => Status::Failed(message),
        Err(Stop::Unfit(reason)) => Status::Skipped(reason),
        Err(Stop::Lacking(feature)) if capabilities.has(feature) => {
            Status::Failed(format!("{feature} is declared, but the case was skipped for it"))
        }
        Err(Stop::Lacking(feature)) => Status::Skipped(format!("needs {feature}")),
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::Feature;

    use super::*;
    use crate::simulated::Simulated;

    async fn judge_on_mock(case: Case) -> Status {
        let subject = Arc::new(Simulated::default());
        let capabilities = subject.backend().probe().await;
        let shelf = Shelf::new(subject.probe()).map(Arc::new);
        judge_case(case, subject, capabilities, shelf).await.status
    }

    const fn new_case(run: crate::case::CaseBody) -> Case {
        Case::new("a case", "C-01", run)
    }

    #[tokio::test]
    async fn a_case_that_panics_has_failed() {
        let status = judge_on_mock(new_case(|_| Box::pin(async { panic!("on purpose") }))).await;
        assert!(matches!(status, Status::Failed(why) if why.contains("panicked")));
    }

    #[tokio::test]
    async fn a_case_that_hangs_has_failed() {
        let hangs = new_case(|_| Box::pin(std::future::pending())).within(1);
        let status = judge_on_mock(hangs).await;
        assert!(matches!(status, Status::Failed(why) if why.contains("took longer")));
    }

    #[tokio::test]
    async fn a_skip_of_something_declared_has_failed() {
        let skips = new_case(|_| Box::pin(async { Err(Stop::Lacking(Feature::Stdin)) }));
        assert!(matches!(judge_on_mock(skips).await, Status::Failed(why) if why.contains("stdin")));
        let requires = new_case(|kit| Box::pin(async move { kit.require(Feature::OciImage) }));
        assert!(
            matches!(judge_on_mock(requires).await, Status::Skipped(why) if why.contains("oci-image"))
        );
    }

    #[tokio::test]
    async fn a_case_that_needs_what_is_missing_is_skipped_with_the_backends_own_reason() {
        let needs = new_case(|_| Box::pin(async { Ok(()) })).needs(&[Feature::LocalWorkspace]);
        let status = judge_on_mock(needs).await;
        assert_eq!(
            status,
            Status::Skipped("needs local-workspace: its files are in memory only".into())
        );
    }

    #[tokio::test]
    async fn a_backend_that_cannot_work_here_passes_nothing() {
        let subject = Arc::new(Simulated::default());
        let name = subject.backend().name();
        let gone = Capabilities::unavailable(name, Boundary::None, "no daemon", "start it");
        let shelf = Shelf::new(subject.probe()).map(Arc::new);
        let status =
            judge_case(new_case(|_| Box::pin(async { Ok(()) })), subject, gone, shelf).await.status;
        assert!(matches!(status, Status::Skipped(why) if why.contains("no daemon")));
    }
}
