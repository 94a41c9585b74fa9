//! Questions that were handed out and whose answers come in a request of their own. A handle is
//! random, serves once, and only for the very call it was given to: what a client sends along is never
//! taken for more than a name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{CallToolRequestParams, ElicitResult};
use sha2::{Digest, Sha256};
use stockade_tools::{Decision, Question};

use super::person;
use crate::secret::random_hex;

/// Key of the one question in a result.
pub const APPROVAL_KEY: &str = "approval";
/// Questions that are open at once; the oldest makes room.
const MAX_OPEN_QUESTIONS: usize = 64;

/// Open questions.
pub struct PendingQuestions {
    open: Mutex<HashMap<String, PendingQuestion>>,
    patience: Duration,
}

struct PendingQuestion {
    call: [u8; 32],
    question: Question,
    since: Instant,
}

/// Why an answer cannot be taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitAnswer {
    /// Never given out, or used before.
    #[error("requestState names no open question")]
    Unknown,
    /// Given out to another call.
    #[error("requestState belongs to a call with another tool or other arguments")]
    OtherCall,
}

impl PendingQuestions {
    /// None yet. No answer within this time is a no.
    pub fn new(patience: Duration) -> Self {
        Self { open: Mutex::default(), patience }
    }

    /// Notes a question; answers the handle under which its answer will come.
    pub fn open(
        &self,
        call: &CallToolRequestParams,
        question: Question,
    ) -> std::io::Result<String> {
        let handle = random_hex()?;
        let mut open = self.lock_open();
        if open.len() >= MAX_OPEN_QUESTIONS {
            let oldest = open.iter().min_by_key(|(_, one)| one.since).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| open.remove(&oldest));
        }
        let asked = PendingQuestion { call: digest_call(call), question, since: Instant::now() };
        open.insert(handle.clone(), asked);
        Ok(handle)
    }

    /// The question that a call brings the answer to, if it brings one.
    pub fn answer(
        &self,
        call: &CallToolRequestParams,
    ) -> Result<Option<(Question, Decision)>, UnfitAnswer> {
        let Some(handle) = &call.request_state else { return Ok(None) };
        let open = self.lock_open().remove(handle).ok_or(UnfitAnswer::Unknown)?;
        if open.call != digest_call(call) {
            return Err(UnfitAnswer::OtherCall);
        }
        if open.since.elapsed() > self.patience {
            return Ok(Some((open.question, person::not_now("the answer came too late"))));
        }
        let given = call.input_responses.as_ref().and_then(|all| all.get(APPROVAL_KEY));
        let given = given.and_then(|one| serde_json::from_value::<ElicitResult>(one.clone()).ok());
        let decision = given
            .map_or_else(|| person::not_now("there was no answer"), |one| person::decision(&one));
        Ok(Some((open.question, decision)))
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<String, PendingQuestion>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest_call(call: &CallToolRequestParams) -> [u8; 32] {
    let arguments = serde_json::to_vec(&call.arguments).unwrap_or_default();
    let mut digest = Sha256::new();
    digest.update(call.name.as_bytes());
    digest.update([0]);
    digest.update(arguments);
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stockade_core::Boundary;
    use stockade_tools::{Facts, NetworkFact, Programs};

    use super::*;

    fn call(line: &str, state: Option<&str>, allow: bool) -> CallToolRequestParams {
        serde_json::from_value(json!({
            "name": "bash",
            "arguments": { "command": line },
            "requestState": state,
            "inputResponses": { APPROVAL_KEY: { "action": "accept", "content": { "allow": allow } } },
        }))
        .unwrap()
    }

    fn question() -> Question {
        let facts = Facts {
            tool: "bash".into(),
            programs: Programs::NONE,
            paths: Vec::new(),
            network: NetworkFact::Host,
            backend: None,
            boundary: Boundary::None,
            widens: false,
            person_only: false,
            details: Vec::new(),
        };
        Question { text: "May it?".into(), sandbox: None, facts, lasting: false }
    }

    #[test]
    fn an_answer_serves_once_and_only_its_own_call() {
        let pending = PendingQuestions::new(Duration::from_secs(60));
        let state = pending.open(&call("make", None, true), question()).unwrap();
        let other = pending.open(&call("make", None, true), question()).unwrap();
        assert_ne!(state, other);
        let given = pending.answer(&call("make", Some(&state), true)).unwrap();
        assert_eq!(given, Some((question(), Decision::Yes)));
        assert_eq!(pending.answer(&call("make", Some(&state), true)), Err(UnfitAnswer::Unknown));
        assert_eq!(pending.answer(&call("rm x", Some(&other), true)), Err(UnfitAnswer::OtherCall));
        assert_eq!(pending.answer(&call("make", Some("made up"), true)), Err(UnfitAnswer::Unknown));
        assert_eq!(pending.answer(&call("make", None, true)), Ok(None));
    }

    #[test]
    fn a_late_answer_is_a_no() {
        let pending = PendingQuestions::new(Duration::ZERO);
        let state = pending.open(&call("make", None, true), question()).unwrap();
        let given = pending.answer(&call("make", Some(&state), true)).unwrap().unwrap();
        assert!(
            matches!(given.1, Decision::Unanswered { because } if because.contains("too late"))
        );
    }

    #[test]
    fn more_questions_than_there_is_room_for_push_out_the_oldest() {
        let pending = PendingQuestions::new(Duration::from_secs(60));
        let all: Vec<_> = (0..=MAX_OPEN_QUESTIONS)
            .map(|_| pending.open(&call("x", None, true), question()).unwrap())
            .collect();
        assert_eq!(pending.answer(&call("x", Some(&all[0]), true)), Err(UnfitAnswer::Unknown));
        assert!(
            pending.answer(&call("x", Some(&all[MAX_OPEN_QUESTIONS]), true)).unwrap().is_some()
        );
    }
}
