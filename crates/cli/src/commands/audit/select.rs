//! Which jobs are asked about.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use stockade_core::{BackendName, Ending, Span, TenantName};
use stockade_engine::{Filter, Job, Timestamp};

/// Which jobs.
#[derive(Debug, Clone, Args)]
pub struct SelectArgs {
    /// Only for this tenant.
    #[arg(long, value_name = "NAME")]
    tenant: Option<TenantName>,
    /// Only on this backend.
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendName>,
    /// Only runs that started at this time or later: `2h` (ago), `2026-01-31` or `2026-01-31T12:00:00Z`.
    #[arg(long, value_name = "TIME")]
    since: Option<TimeArg>,
    /// Only runs that started before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<TimeArg>,
    /// Only runs with this outcome.
    #[arg(long, value_name = "HOW")]
    outcome: Option<JobResult>,
}

/// How a job ended, roughly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobResult {
    /// It exited with 0.
    Success,
    /// It exited with another code, or by a signal.
    Failure,
    /// It could not be started.
    NotStarted,
    /// It went beyond a limit.
    Limit,
    /// Its timeout expired.
    TimedOut,
    /// The caller ended it.
    Cancelled,
    /// Another process ended it.
    Killed,
    /// It was refused.
    Refused,
    /// Its sandbox was lost.
    Lost,
    /// Its engine died before it.
    Unknown,
    /// It runs, as far as is known.
    Running,
}

impl JobResult {
    /// Of this job.
    pub fn of(job: &Job) -> Self {
        let Some(stopped) = &job.stopped else { return Self::Running };
        match stopped.event.outcome().map(|outcome| &outcome.ending) {
            None => Self::Unknown,
            Some(Ending::Exited(0)) => Self::Success,
            Some(Ending::Exited(_) | Ending::Signalled(_)) => Self::Failure,
            Some(Ending::StartFailed(_)) => Self::NotStarted,
            Some(Ending::LimitExceeded(_)) => Self::Limit,
            Some(Ending::TimedOut) => Self::TimedOut,
            Some(Ending::Cancelled) => Self::Cancelled,
            Some(Ending::Killed) => Self::Killed,
            Some(Ending::Refused(_)) => Self::Refused,
            Some(Ending::Lost(_)) => Self::Lost,
        }
    }

    /// As the flag takes it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl SelectArgs {
    /// What the journal can be asked for.
    pub fn filter(&self) -> Filter {
        Filter {
            tenant: self.tenant.clone(),
            backend: self.backend.clone(),
            since: self.since.map(|when| when.0),
            until: self.until.map(|when| when.0),
            ..Filter::default()
        }
    }

    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        self.filter() == Filter::default() && self.outcome.is_none()
    }

    /// Whether a job that the journal gave ended as was asked for.
    pub fn admits(&self, job: &Job) -> bool {
        self.outcome.is_none_or(|outcome| JobResult::of(job) == outcome)
    }
}

/// An instant, as people write one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TimeArg(Timestamp);

impl FromStr for TimeArg {
    type Err = String;

    fn from_str(given: &str) -> std::result::Result<Self, String> {
        if let Ok(ago) = given.parse::<Span>() {
            let then = SystemTime::now().checked_sub(Duration::from(ago));
            return then.map(|then| Self(then.into())).ok_or_else(|| "is too long ago".into());
        }
        let whole = match given.len() {
            10 => format!("{given}T00:00:00Z"),
            _ => given.to_owned(),
        };
        Timestamp::try_from(whole).map(Self).map_err(|_| {
            "is not a time: give `2h` for two hours ago, `2026-01-31` or `2026-01-31T12:00:00Z`"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_span_ago_a_day_or_an_instant() {
        let when = |text: &str| text.parse::<TimeArg>().map(|when| when.0.to_string());
        assert_eq!(when("2026-01-31").unwrap(), "2026-01-31T00:00:00.000Z");
        assert_eq!(when("2026-01-31T12:00:01Z").unwrap(), "2026-01-31T12:00:01.000Z");
        assert!(when("2h").unwrap() < Timestamp::now().to_string());
        for wrong in ["", "yesterday", "2026-13-01", "2026-01-31 12:00"] {
            assert!(when(wrong).is_err(), "{wrong}");
        }
    }
}
