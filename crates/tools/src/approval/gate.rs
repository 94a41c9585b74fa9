//! Lets a call through or not, and records which (C-40).

use stockade_core::{ErrorCode, JobId, SandboxId, TenantName};
use stockade_engine::{Engine, Event};

use super::{ApprovalConfig, Facts, Programs, Ruling, Verdict};
use crate::{Call, Decision, Question, ToolError};

/// The most of a fact that is recorded or shown.
const MOST_SHOWN: usize = 2000;

/// What a decision is about.
pub(crate) struct Subject<'a> {
    pub engine: &'a Engine,
    pub tenant: &'a TenantName,
    /// Absent for what happens on the host itself.
    pub sandbox: Option<&'a SandboxId>,
    /// The execution it lets through, if it is one.
    pub job: Option<&'a JobId>,
    pub facts: Facts,
}

/// Decides by rule or by asking, records the decision, and only then returns. A no is an error.
pub(crate) async fn pass(
    config: &ApprovalConfig,
    subject: Subject<'_>,
    call: &Call,
) -> Result<(), ToolError> {
    let ruling = config.judge(&subject.facts);
    let refusal = match ruling.verdict {
        Verdict::Allow => None,
        Verdict::Deny => Some("the user's rules do not allow it".to_owned()),
        Verdict::Ask => asked(config, &subject, call).await,
    };
    record(&subject, &ruling, refusal.is_none()).await?;
    match refusal {
        None => Ok(()),
        Some(because) => Err(refused(&subject.facts, &ruling, &because)),
    }
}

/// The person's no, in words.
async fn asked(config: &ApprovalConfig, subject: &Subject<'_>, call: &Call) -> Option<String> {
    let question = Question {
        text: format!(
            "Allow `{}` {}: {}?",
            subject.facts.tool,
            place(&subject.facts),
            what(&subject.facts)
        ),
        sandbox: subject.sandbox.cloned(),
        facts: subject.facts.clone(),
    };
    let patience = config.patience();
    let decision = tokio::select! {
        decision = tokio::time::timeout(patience, call.ask.ask(question)) => decision,
        () = call.cancelled.wait() => return Some("the call was cancelled".into()),
    };
    match decision {
        Ok(Decision::Yes) => None,
        Ok(Decision::No { because }) => Some(because),
        Err(_) => Some(format!("nobody answered within {} s", patience.as_secs())),
    }
}

async fn record(subject: &Subject<'_>, ruling: &Ruling, allowed: bool) -> Result<(), ToolError> {
    let event = Event::Decided {
        job: subject.job.filter(|_| allowed).cloned(),
        sandbox: subject.sandbox.cloned(),
        tenant: subject.tenant.clone(),
        tool: subject.facts.tool.clone(),
        allowed,
        asked: ruling.verdict == Verdict::Ask,
        rule: ruling.rule.clone(),
        facts: format!("{}: {}", place(&subject.facts), what(&subject.facts)),
    };
    Ok(subject.engine.record(event).await?)
}

fn refused(facts: &Facts, ruling: &Ruling, because: &str) -> ToolError {
    let message =
        format!("`{}` {} was not approved ({}): {because}", facts.tool, place(facts), ruling.rule);
    ToolError::new(ErrorCode::Denied, message).remedy(
        "do it another way, or have the user allow it by a rule in the `approval` section of the \
         configuration",
    )
}

fn place(facts: &Facts) -> String {
    match &facts.backend {
        Some(backend) => format!("on {backend} (boundary {})", facts.boundary),
        None => "on this machine".into(),
    }
}

/// What would be done, with control characters escaped: it is the agent's text.
fn what(facts: &Facts) -> String {
    let text = match &facts.programs {
        Programs::Known(argvs) if argvs.is_empty() => facts.paths.join(", "),
        Programs::Known(argvs) => {
            argvs.iter().map(|argv| argv.join(" ")).collect::<Vec<_>>().join("; ")
        }
        Programs::Opaque(line) => line.clone(),
    };
    let end = text.floor_char_boundary(MOST_SHOWN);
    let more = if end < text.len() { "…" } else { "" };
    let wider = if facts.widens { " (more than was set out)" } else { "" };
    format!("{}{more}{wider}", text[..end].escape_debug())
}
