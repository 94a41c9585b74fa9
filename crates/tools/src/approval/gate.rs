//! Lets a call through or not, and records which (C-40).

use stockade_core::{Boundary, ErrorCode, JobId, SandboxId, TenantName};
use stockade_engine::{Engine, Event};

use super::facts::cut_middle;
use super::{ApprovalConfig, Detail, Facts, Programs, RuleVerdict, Ruling};
use crate::{Call, Decision, Question, ToolError};

/// The most of a fact that is recorded or shown.
const MAX_SHOWN_BYTES: usize = 2000;
/// The most paths in a question.
const MAX_SHOWN_PATHS: usize = 1000;

/// What a decision is about.
pub(crate) struct ApprovalSubject<'a> {
    pub engine: &'a Engine,
    pub tenant: &'a TenantName,
    /// Absent for what happens on the host itself.
    pub sandbox: Option<&'a SandboxId>,
    /// The execution it lets through, if it is one.
    pub job: Option<&'a JobId>,
    pub facts: Facts,
}

/// Decides by rule or by asking, records the decision, and only then returns. A no is an error.
pub(crate) async fn approve_call(
    config: &ApprovalConfig,
    subject: ApprovalSubject<'_>,
    call: &Call,
) -> Result<(), ToolError> {
    let ruling = config.judge(&subject.facts);
    let refusal = match ruling.verdict {
        RuleVerdict::Allow => None,
        RuleVerdict::Deny => Some("the user's rules do not allow it".to_owned()),
        RuleVerdict::Ask => ask_user(config, &subject, call).await,
    };
    record_decision(&subject, &ruling, refusal.is_none()).await?;
    match refusal {
        None => Ok(()),
        Some(because) => Err(refusal_error(&subject.facts, &ruling, &because)),
    }
}

/// The person's no, in words.
async fn ask_user(
    config: &ApprovalConfig,
    subject: &ApprovalSubject<'_>,
    call: &Call,
) -> Option<String> {
    let question = Question {
        text: format!(
            "Allow `{}` {}: {}{}?",
            subject.facts.tool,
            describe_place(&subject.facts),
            describe_action(&subject.facts),
            describe_details(&subject.facts, DetailAudience::Person),
        ),
        sandbox: subject.sandbox.cloned(),
        facts: shorten_paths(&subject.facts),
        lasting: false,
    };
    let patience = config.patience();
    let decision = tokio::select! {
        decision = tokio::time::timeout(patience, call.ask.ask(question)) => decision,
        () = call.cancelled.wait() => return Some("the call was cancelled".into()),
    };
    match decision {
        Ok(Decision::Yes | Decision::YesForSandbox) => None,
        Ok(Decision::No { because } | Decision::Unanswered { because }) => Some(because),
        Err(_) => Some(format!("no answer within {} s", patience.as_secs())),
    }
}

/// The facts as they are shown: of very many paths the first and the last. Rules have seen all of them.
fn shorten_paths(facts: &Facts) -> Facts {
    let mut shown = facts.clone();
    let left_out = shown.paths.len().saturating_sub(MAX_SHOWN_PATHS);
    if left_out > 0 {
        let between = MAX_SHOWN_PATHS / 2..MAX_SHOWN_PATHS / 2 + left_out;
        shown.paths.splice(between, [format!("… {left_out} paths are not shown …")]);
    }
    shown
}

async fn record_decision(
    subject: &ApprovalSubject<'_>,
    ruling: &Ruling,
    allowed: bool,
) -> Result<(), ToolError> {
    let event = Event::Decided {
        job: subject.job.filter(|_| allowed).cloned(),
        sandbox: subject.sandbox.cloned(),
        tenant: subject.tenant.clone(),
        tool: subject.facts.tool.clone(),
        allowed,
        asked: ruling.verdict == RuleVerdict::Ask,
        rule: ruling.rule.clone(),
        facts: format!(
            "{}: {}{}",
            describe_place(&subject.facts),
            describe_action(&subject.facts),
            describe_details(&subject.facts, DetailAudience::Journal),
        ),
    };
    Ok(subject.engine.record(event).await?)
}

fn refusal_error(facts: &Facts, ruling: &Ruling, because: &str) -> ToolError {
    let message = format!(
        "`{}` {} was not approved ({}): {because}",
        facts.tool,
        describe_place(facts),
        ruling.rule
    );
    ToolError::new(ErrorCode::Denied, message).remedy(
        "do it another way, or have the user allow it by a rule in the `approval` section of the \
         configuration",
    )
}

fn describe_place(facts: &Facts) -> String {
    match (&facts.backend, facts.boundary) {
        (Some(backend), boundary) => format!("on {backend} (boundary {boundary})"),
        (None, Boundary::None) => "on this machine".into(),
        (None, _) => "behind walls of its own".into(),
    }
}

/// Who reads about a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DetailAudience {
    Person,
    Journal,
}

/// The details, with control characters escaped.
fn describe_details(facts: &Facts, reader: DetailAudience) -> String {
    let one = |detail: &Detail| match reader {
        DetailAudience::Journal if detail.private => {
            format!("; {} ({} bytes)", detail.name, detail.text.len())
        }
        DetailAudience::Person | DetailAudience::Journal => {
            format!("; {}: {:?}", detail.name, detail.text)
        }
    };
    cut_middle(&facts.details.iter().map(one).collect::<String>(), MAX_SHOWN_BYTES)
}

/// What would be done, with control characters escaped: it is the agent's text.
fn describe_action(facts: &Facts) -> String {
    let text = match &facts.programs {
        Programs::Known(argvs) if argvs.is_empty() => join_words(&facts.paths, ", "),
        Programs::Known(argvs) => {
            argvs.iter().map(|argv| join_words(argv, " ")).collect::<Vec<_>>().join("; ")
        }
        Programs::Opaque(line) => line.escape_debug().to_string(),
    };
    let wider = if facts.widens { " (more than the server was started with)" } else { "" };
    format!("{}{wider}", cut_middle(&text, MAX_SHOWN_BYTES))
}

fn join_words(words: &[String], between: &str) -> String {
    words.iter().map(|one| quote_word(one)).collect::<Vec<_>>().join(between)
}

/// A word as it is where that is plain, else in quotes: what is asked about must not read like another.
fn quote_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+^~".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkFact;

    fn told(programs: Programs) -> String {
        describe_action(&Facts {
            tool: "bash".into(),
            programs,
            paths: Vec::new(),
            network: NetworkFact::Host,
            backend: None,
            boundary: Boundary::None,
            widens: false,
            person_only: false,
            details: Vec::new(),
        })
    }

    #[test]
    fn words_do_not_read_like_others() {
        let known = |words: &[&str]| {
            told(Programs::Known(vec![words.iter().map(|&word| word.to_owned()).collect()]))
        };
        assert_eq!(known(&["rm", "-r", "a", "b"]), "rm -r a b");
        assert_eq!(known(&["rm", "-r", "a b", ""]), r#"rm -r "a b" """#);
        assert_eq!(known(&["true", "; rm"]), r#"true "; rm""#);
        assert_eq!(known(&["echo", "\u{1b}[2J"]), r#"echo "\u{1b}[2J""#);
    }

    #[test]
    fn the_end_of_a_long_line_is_seen() {
        let line = format!("echo {}; rm -rf /", "ä".repeat(5000));
        let told = told(Programs::Opaque(line));
        assert!(told.starts_with("echo ä") && told.ends_with("ä; rm -rf /"), "{told}");
        assert!(told.contains("bytes are not shown") && told.len() < 2100, "{told}");
    }
}
