//! Runs the cases that a subject's features select, and writes down what became of each. A case that
//! hangs, panics or skips what the backend declared has failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_core::{Boundary, Capabilities, Support};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::kit::Shelf;
use crate::{Case, CaseReport, Kit, Report, Status, Stop, Subject, Verdict, cases};

/// How long measuring a backend, and tidying up after a case, may take.
const TIDY: Duration = Duration::from_secs(60);

/// Which cases to run and how many at once.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only cases whose name or clause holds one of these texts. Empty: all.
    pub only: Vec<String>,
    /// How many cases run at once.
    pub jobs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { only: Vec::new(), jobs: 4 }
    }
}

impl Options {
    fn takes(&self, case: &Case) -> bool {
        let named = |text: &String| case.name.contains(text.as_str()) || case.clause == *text;
        self.only.is_empty() || self.only.iter().any(named)
    }
}

/// Judges a subject. Never fails: what goes wrong is in the report.
pub async fn run(subject: Arc<dyn Subject>, options: &Options) -> Report {
    run_cases(cases::all(), subject, options).await
}

/// Judges a subject by these cases.
pub(crate) async fn run_cases(
    cases: Vec<Case>,
    subject: Arc<dyn Subject>,
    options: &Options,
) -> Report {
    let backend = subject.backend();
    let capabilities = tokio::time::timeout(TIDY, backend.probe()).await.unwrap_or_else(|_| {
        let (reason, remedy) = ("measuring it took too long", "see why it hangs");
        Capabilities::unavailable(backend.name(), Boundary::None, reason, remedy)
    });
    let shelf = Shelf::new(subject.probe()).map(Arc::new);
    let turns = Arc::new(Semaphore::new(options.jobs.max(1)));
    let mut running = JoinSet::new();
    let mut reports = Vec::new();
    for (at, case) in cases.into_iter().filter(|case| options.takes(case)).enumerate() {
        let (subject, capabilities) = (Arc::clone(&subject), capabilities.clone());
        let (turns, shelf) = (Arc::clone(&turns), shelf.clone());
        running.spawn(async move {
            let _turn = turns.acquire_owned().await;
            (at, judge(case, subject, capabilities, shelf).await)
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

async fn judge(
    case: Case,
    subject: Arc<dyn Subject>,
    capabilities: Capabilities,
    shelf: Verdict<Arc<Shelf>>,
) -> CaseReport {
    let begun = Instant::now();
    let status = match unfit(&case, &capabilities) {
        Some(reason) => Status::Skipped(reason),
        None => status_of(attend(case, subject, &capabilities, shelf).await, &capabilities),
    };
    CaseReport { name: case.name, clause: case.clause, status, took: begun.elapsed() }
}

/// Why there is nothing to check, if so: the first feature that is not declared in full.
fn unfit(case: &Case, capabilities: &Capabilities) -> Option<String> {
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

async fn attend(
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
    // Whatever the case left is not its subject any more, but must not disturb the next one.
    let _ = tokio::time::timeout(TIDY, kit.close()).await;
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
