//! Reaching the person behind a client. Where a client cannot ask, or the answer is anything but a
//! clear yes, the answer is no, and says how to allow it by a rule.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use rmcp::model::{
    BooleanSchema, ClientCapabilities, ClientResult, ElicitRequest, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationSchema, ServerRequest,
};
use rmcp::{Peer, RoleServer};
use serde_json::Value;
use stockade_tools::{Ask, Decision, Question};
use tokio::sync::mpsc;

const ALLOW_FIELD: &str = "allow";
const LASTING_FIELD: &str = "forThisSandbox";
const BY_RULE: &str =
    "it can be allowed by a rule in the section [approval] of the user's configuration file";

/// Whether a client can ask a person (elicitation).
pub fn can_ask(capabilities: Option<&ClientCapabilities>) -> bool {
    let asks = capabilities.and_then(|all| all.elicitation.as_ref());
    // A client of the revision that brought this says neither: it means forms.
    asks.is_some_and(|asks| asks.form.is_some() || asks.url.is_none())
}

/// The question as the protocol puts it.
pub fn form(question: &Question) -> Option<ElicitRequest> {
    let allow = |schema: BooleanSchema| schema.title("Allow it, this once");
    let mut schema = ElicitationSchema::builder().required_bool_with(ALLOW_FIELD, allow);
    if question.lasting {
        let lasting = |schema: BooleanSchema| schema.title("And from now on, in this sandbox");
        schema = schema.optional_bool_with(LASTING_FIELD, lasting);
    }
    let schema = schema.build().ok()?;
    Some(ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: question.text.clone(),
        requested_schema: schema,
    }))
}

/// What an answer means.
pub fn decision(answer: &ElicitResult) -> Decision {
    let is_ticked = |field: &str| {
        let given = answer.content.as_ref().and_then(|content| content.get(field));
        given == Some(&Value::Bool(true))
    };
    if answer.action == ElicitationAction::Accept && is_ticked(ALLOW_FIELD) {
        let lasting = is_ticked(LASTING_FIELD);
        return if lasting { Decision::YesForSandbox } else { Decision::Yes };
    }
    if answer.action == ElicitationAction::Cancel {
        return not_now("the person did not answer");
    }
    no("denied by the user")
}

/// A no with a way out.
pub fn no(why: &str) -> Decision {
    Decision::No { because: format!("{why}; {BY_RULE}") }
}

/// No answer, with a way out.
pub fn not_now(why: &str) -> Decision {
    Decision::Unanswered { because: format!("{why}; {BY_RULE}") }
}

/// For clients without elicitation, where there is no other way to ask a person either.
pub struct Unreachable;

#[async_trait]
impl Ask for Unreachable {
    async fn ask(&self, _question: Question) -> Decision {
        not_now("a person has to be asked, and this client does not support that (elicitation)")
    }
}

/// Asks while the call waits, as the revisions with a handshake do.
pub struct Elicit(pub Peer<RoleServer>);

#[async_trait]
impl Ask for Elicit {
    async fn ask(&self, question: Question) -> Decision {
        let Some(request) = form(&question) else {
            return not_now("the question cannot be written");
        };
        match self.0.send_request(ServerRequest::ElicitRequest(request)).await {
            Ok(ClientResult::ElicitResult(answer)) => decision(&answer),
            Ok(_) => not_now("the client's answer does not fit the question"),
            Err(error) => not_now(&format!("the client could not ask: {error}")),
        }
    }
}

/// Hands the question out, for a client that comes back with the answer in a second request.
pub struct Postpone {
    answered: Mutex<Option<(Question, Decision)>>,
    raised: mpsc::Sender<Question>,
}

impl Postpone {
    /// With what was answered before, and where a question comes out.
    pub fn new(answered: Option<(Question, Decision)>) -> (Self, mpsc::Receiver<Question>) {
        let (raised, questions) = mpsc::channel(1);
        (Self { answered: Mutex::new(answered), raised }, questions)
    }

    /// An answer holds for the very question that was put, and once.
    fn take_answer(&self, question: &Question) -> Option<Decision> {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.take().filter(|(asked, _)| asked == question).map(|(_, decision)| decision)
    }
}

#[async_trait]
impl Ask for Postpone {
    async fn ask(&self, question: Question) -> Decision {
        if let Some(decision) = self.take_answer(&question) {
            return decision;
        }
        // The receiver of the question drops this call: it is made anew when the answer is there.
        if self.raised.send(question).await.is_ok() {
            std::future::pending::<()>().await;
        }
        not_now("the call was cancelled")
    }

    /// A question ends the call, and a command with it.
    fn asks_while_running(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        let answer = |action, content: Option<Value>| {
            let mut answer = ElicitResult::new(action);
            answer.content = content;
            decision(&answer) == Decision::Yes
        };
        assert!(answer(ElicitationAction::Accept, Some(json!({"allow": true}))));
        for content in [json!({"allow": false}), json!({"allow": "true"}), json!({}), json!(true)] {
            assert!(!answer(ElicitationAction::Accept, Some(content)));
        }
        assert!(!answer(ElicitationAction::Accept, None));
        assert!(!answer(ElicitationAction::Decline, Some(json!({"allow": true}))));
        assert!(!answer(ElicitationAction::Cancel, Some(json!({"allow": true}))));
        let mut lasting = ElicitResult::new(ElicitationAction::Accept);
        lasting.content = Some(json!({"allow": true, "forThisSandbox": true}));
        assert_eq!(decision(&lasting), Decision::YesForSandbox);
        let cancelled = decision(&ElicitResult::new(ElicitationAction::Cancel));
        assert!(matches!(cancelled, Decision::Unanswered { .. }), "{cancelled:?}");
        lasting.content = Some(json!({"forThisSandbox": true}));
        assert!(matches!(decision(&lasting), Decision::No { .. }));
    }

    #[test]
    fn a_client_that_names_no_mode_means_forms() {
        let said = |text: Value| -> ClientCapabilities { serde_json::from_value(text).unwrap() };
        assert!(can_ask(Some(&said(json!({"elicitation": {}})))));
        assert!(can_ask(Some(&said(json!({"elicitation": {"form": {}, "url": {}}})))));
        assert!(!can_ask(Some(&said(json!({"elicitation": {"url": {}}})))));
        assert!(!can_ask(Some(&said(json!({})))));
        assert!(!can_ask(None));
    }
}
