//! Questions about hosts that no rule covers (`--net ask`), put to a person in the same way as those about tools.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade_core::SandboxId;
use stockade_engine::{HostAnswer, HostAsker, HostQuestion};

use crate::approval::{Detail, Facts, NetworkFact, Programs};
use crate::{Ask, Decision, Question};

/// A person who is asked about the hosts of every sandbox.
pub struct AskedPerson(pub Arc<dyn Ask>);

#[async_trait]
impl HostAsker for AskedPerson {
    async fn ask(&self, question: HostQuestion) -> HostAnswer {
        put_question(self.0.as_ref(), question).await
    }
}

type AskersBySandbox = HashMap<SandboxId, Vec<Arc<dyn Ask>>>;

/// The persons behind the calls that run a command, by sandbox. Clones share them.
#[derive(Clone, Default)]
pub struct HostAsks(Arc<Mutex<AskersBySandbox>>);

/// A call that runs a command: its person is asked until this is dropped.
pub(crate) struct RegisteredAsk {
    asks: HostAsks,
    sandbox: SandboxId,
    ask: Arc<dyn Ask>,
}

impl fmt::Debug for HostAsks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostAsks")
    }
}

impl HostAsks {
    /// Has this one asked about the hosts of a sandbox, if it can ask while a command runs.
    pub(crate) fn register(
        &self,
        sandbox: &SandboxId,
        ask: &Arc<dyn Ask>,
    ) -> Option<RegisteredAsk> {
        if !ask.asks_while_running() {
            return None;
        }
        self.lock().entry(sandbox.clone()).or_default().push(Arc::clone(ask));
        Some(RegisteredAsk { asks: self.clone(), sandbox: sandbox.clone(), ask: Arc::clone(ask) })
    }

    /// The person of the newest call.
    fn find(&self, sandbox: &SandboxId) -> Option<Arc<dyn Ask>> {
        self.lock().get(sandbox).and_then(|asks| asks.last().cloned())
    }

    fn lock(&self) -> MutexGuard<'_, AskersBySandbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RegisteredAsk {
    fn drop(&mut self) {
        let mut all = self.asks.lock();
        if let Some(asks) = all.get_mut(&self.sandbox) {
            // One of them: calls may share a person.
            if let Some(at) = asks.iter().position(|ask| Arc::ptr_eq(ask, &self.ask)) {
                asks.remove(at);
            }
            if asks.is_empty() {
                all.remove(&self.sandbox);
            }
        }
    }
}

#[async_trait]
impl HostAsker for HostAsks {
    async fn ask(&self, question: HostQuestion) -> HostAnswer {
        match self.find(&question.sandbox) {
            Some(ask) => put_question(ask.as_ref(), question).await,
            None => {
                let because = "no call runs in the sandbox whose client could be asked meanwhile";
                HostAnswer::Unanswered { because: because.into() }
            }
        }
    }
}

async fn put_question(ask: &dyn Ask, question: HostQuestion) -> HostAnswer {
    let HostQuestion { sandbox, backend, boundary, rule } = question;
    let host = rule.to_string();
    let text = format!("Allow programs in sandbox {sandbox} to reach `{host}`?");
    let facts = Facts {
        tool: "network".into(),
        programs: Programs::NONE,
        paths: Vec::new(),
        network: NetworkFact::Egress,
        backend: Some(backend),
        boundary,
        widens: false,
        person_only: true,
        details: vec![Detail::open("reach", host)],
    };
    let question = Question { text, sandbox: Some(sandbox), facts, lasting: true };
    match ask.ask(question).await {
        Decision::Yes => HostAnswer::Once,
        Decision::YesForSandbox => HostAnswer::Sandbox,
        Decision::No { .. } => HostAnswer::Never,
        Decision::Unanswered { because } => HostAnswer::Unanswered { because },
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::{BackendName, Boundary};

    use super::*;
    use crate::Nobody;

    /// Decides every question alike.
    struct Decides(Decision);

    #[async_trait]
    impl Ask for Decides {
        async fn ask(&self, _question: Question) -> Decision {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn only_a_no_that_was_said_is_for_good() {
        let because = || "the client was closed".to_owned();
        for (decision, expected) in [
            (Decision::Yes, HostAnswer::Once),
            (Decision::YesForSandbox, HostAnswer::Sandbox),
            (Decision::No { because: because() }, HostAnswer::Never),
            (
                Decision::Unanswered { because: because() },
                HostAnswer::Unanswered { because: because() },
            ),
        ] {
            let person = AskedPerson(Arc::new(Decides(decision)));
            assert_eq!(person.ask(question("boxa")).await, expected);
        }
    }

    fn question(sandbox: &str) -> HostQuestion {
        HostQuestion {
            sandbox: sandbox.parse().unwrap(),
            backend: BackendName::literal("mock"),
            boundary: Boundary::None,
            rule: "a.org".parse().unwrap(),
        }
    }

    #[tokio::test]
    async fn the_person_behind_a_call_is_asked_while_it_runs() {
        let asks = HostAsks::default();
        let nobody: Arc<dyn Ask> = Arc::new(Nobody);
        let call = asks.register(&"boxa".parse().unwrap(), &nobody);
        let told = asks.ask(question("boxa")).await;
        let because = "there is no way to ask a person".to_owned();
        assert_eq!(told, HostAnswer::Unanswered { because });
        let elsewhere = asks.ask(question("boxb")).await;
        assert!(matches!(elsewhere, HostAnswer::Unanswered { .. }), "{elsewhere:?}");
        drop(call);
        let later = asks.ask(question("boxa")).await;
        assert!(matches!(later, HostAnswer::Unanswered { .. }), "{later:?}");
        assert!(asks.lock().is_empty());
    }
}
