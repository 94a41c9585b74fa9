//! The result of each case, and the three forms of the report.

mod junit;
pub(crate) mod table;

use std::time::Duration;

use serde::Serialize;
use stockade_core::Boundary;

/// What became of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", content = "detail", rename_all = "kebab-case")]
pub enum Status {
    /// It holds.
    Passed,
    /// It does not: what was expected and what was seen.
    Failed(String),
    /// It was not checked, and why.
    Skipped(String),
}

/// One case and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The case's sentence.
    pub name: &'static str,
    /// The clause it checks.
    pub clause: &'static str,
    /// What became of it.
    #[serde(flatten)]
    pub status: Status,
    /// How long that took.
    #[serde(rename = "seconds", serialize_with = "in_seconds")]
    pub took: Duration,
}

fn in_seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}

/// How one subject did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Who was judged.
    pub subject: String,
    /// The boundary it claims.
    pub boundary: Boundary,
    /// Each case that was selected, in the registry's order.
    pub cases: Vec<CaseReport>,
}

/// How many cases came to what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Cases that hold.
    pub passed: usize,
    /// Cases that do not.
    pub failed: usize,
    /// Cases that were not checked.
    pub skipped: usize,
}

impl Report {
    /// How many cases came to what.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for case in &self.cases {
            match case.status {
                Status::Passed => counts.passed += 1,
                Status::Failed(_) => counts.failed += 1,
                Status::Skipped(_) => counts.skipped += 1,
            }
        }
        counts
    }

    /// Whether something was checked and nothing failed.
    pub fn success(&self) -> bool {
        let counts = self.counts();
        counts.failed == 0 && counts.passed > 0
    }

    /// The names of the cases that failed.
    pub fn failures(&self) -> Vec<&'static str> {
        let failed = |case: &&CaseReport| matches!(case.status, Status::Failed(_));
        self.cases.iter().filter(failed).map(|case| case.name).collect()
    }

    /// The report as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "subject": self.subject,
            "boundary": self.boundary,
            "counts": self.counts(),
            "cases": self.cases,
        })
    }

    /// The report as a table of at most a hundred columns.
    pub fn table(&self) -> String {
        table::render_table(self)
    }

    /// The report as JUnit XML.
    pub fn junit(&self) -> String {
        junit::render_junit(self)
    }
}

#[cfg(test)]
pub(crate) fn sample_report() -> Report {
    let case = |name, status| CaseReport {
        name,
        clause: "C-10",
        status,
        took: Duration::from_millis(1500),
    };
    let failed = Status::Failed(format!("expected <a> & \"b\",\u{1} saw {}", "long ".repeat(40)));
    Report {
        subject: "mock & more".into(),
        boundary: Boundary::None,
        cases: vec![
            case("one case holds", Status::Passed),
            case(
                "another one, with a name that takes more room than a single line of the table has, does not",
                failed,
            ),
            case("a third was not checked", Status::Skipped("needs stdin: not offered".into())),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_counted_once() {
        let counts = sample_report().counts();
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 1 });
        assert!(!sample_report().success());
    }

    #[test]
    fn a_report_in_which_nothing_was_checked_is_no_success() {
        let empty = Report { cases: Vec::new(), ..sample_report() };
        assert!(!empty.success());
    }

    #[test]
    fn the_json_form_has_counts_status_and_reason() {
        let json = sample_report().json();
        assert_eq!(json["counts"]["skipped"], 1);
        assert_eq!(json["cases"][0]["status"], "passed");
        assert_eq!(json["cases"][2]["detail"], "needs stdin: not offered");
        assert_eq!(json["cases"][0]["seconds"], 1.5);
    }
}
