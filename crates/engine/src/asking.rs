//! Questions about hosts that no rule covers, put to a person through the front end that opened the engine. A
//! guest raises them, so there is a bound: one at a time for each sandbox, a number for its whole life, and a time
//! limit for each connection that waits.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{Admitted, BackendName, Boundary, EgressRule, Refusal, SandboxId, TenantName};
use stockade_network::{Egress, HostApprover};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::engine::{Engine, EngineInner};
use crate::journal::{Event, Journal};
use crate::lifecycle::{SandboxHandle, in_a_task};

/// How long a connection waits for its answer, and for its turn to be asked about.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// The most questions about hosts of one sandbox.
const MAX_HOST_QUESTIONS: usize = 100;

/// A host that a program wants to reach and no rule covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostQuestion {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The backend that built its walls.
    pub backend: BackendName,
    /// What stands between it and the host's kernel.
    pub boundary: Boundary,
    /// The rule that would allow the host.
    pub rule: EgressRule,
}

/// What a person answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAnswer {
    /// It may be reached by the connections that wait now.
    Once,
    /// It may be reached from now on, by this sandbox.
    Sandbox,
    /// It may not be reached by this sandbox, and is not asked about again.
    Never,
    /// There was no answer; the next connection may be asked about.
    Unanswered {
        /// Why.
        because: String,
    },
}

/// Reaches a person.
#[async_trait]
pub trait HostAsker: Send + Sync {
    /// Puts the question. Dropped when its time is over.
    async fn ask(&self, question: HostQuestion) -> HostAnswer;
}

/// What reaches a person, with the engine whose sandboxes are asked about.
pub(crate) struct KnownAsker {
    asker: Arc<dyn HostAsker>,
    engine: Weak<EngineInner>,
}

impl Engine {
    /// Has this one asked about hosts of sandboxes with `ask` among their rules, which are refused until then. The first
    /// one stays.
    pub fn set_host_asker(&self, asker: Arc<dyn HostAsker>) {
        let engine = Arc::downgrade(&self.inner);
        let _ = self.inner.host_asker.set(KnownAsker { asker, engine });
    }
}

impl EngineInner {
    /// Why rules with `ask` cannot hold here: a policy that asks no person is not what was asked for.
    pub(crate) fn refuse_asking(&self, asks: bool) -> Option<Refusal> {
        (asks && self.host_asker.get().is_none()).then(|| Refusal {
            field: "network".into(),
            feature: None,
            reason: "`ask` needs a person who can be asked about hosts, and here is none".into(),
            remedy:
                "list the hosts instead, or use `stockade run` at a terminal, or `stockade mcp`"
                    .into(),
            backend: None,
        })
    }

    /// What asks about the hosts of one sandbox.
    pub(crate) fn open_questions(
        &self,
        sandbox: &SandboxId,
        admitted: &Admitted,
        handle: &SandboxHandle,
    ) -> Option<HostQuestions> {
        let KnownAsker { asker, engine } = self.host_asker.get()?;
        let rules = LiveRules { engine: Weak::clone(engine), sandbox: Arc::clone(handle) };
        Some(HostQuestions {
            sandbox: sandbox.clone(),
            tenant: admitted.spec().tenant.clone(),
            walls: (admitted.backend().clone(), admitted.boundary()),
            asker: Arc::clone(asker),
            rules: Box::new(rules),
            journal: Arc::clone(&self.journal),
            asked: Mutex::default(),
        })
    }
}

/// The questions of one sandbox.
pub(crate) struct HostQuestions {
    sandbox: SandboxId,
    tenant: TenantName,
    walls: (BackendName, Boundary),
    asker: Arc<dyn HostAsker>,
    rules: Box<dyn RuleKeeper>,
    journal: Arc<Journal>,
    /// Held while a question is open: others wait for their turn.
    asked: Mutex<AskedHosts>,
}

#[derive(Default)]
struct AskedHosts {
    count: usize,
    /// When a host was last allowed once. At most one entry for each question.
    allowed_once: HashMap<EgressRule, Instant>,
}

/// Keeps the rules that answers add.
#[async_trait]
trait RuleKeeper: Send + Sync {
    /// Puts one more rule in force, or says why that cannot be.
    async fn add_rule(&self, rule: EgressRule) -> Result<(), String>;
}

/// The rules of a live sandbox. They are changed as its owner changes them, so that copies, a state that is brought back
/// and later changes have them too.
struct LiveRules {
    engine: Weak<EngineInner>,
    sandbox: SandboxHandle,
}

#[async_trait]
impl RuleKeeper for LiveRules {
    async fn add_rule(&self, rule: EgressRule) -> Result<(), String> {
        let live = self.sandbox.get().and_then(Weak::upgrade);
        let (Some(engine), Some(live)) = (self.engine.upgrade(), live) else {
            return Err("the sandbox has ended, or is not ready yet".into());
        };
        // In a task: a connection that ends between record and change must not leave the one without the other.
        let changed = in_a_task(async move {
            engine.change_rules(&live, move |old| extend_rules(old, rule)).await
        });
        changed.await.map(drop).map_err(|error| error.message().to_owned())
    }
}

fn extend_rules(old: &[EgressRule], rule: EgressRule) -> Vec<EgressRule> {
    let mut rules = old.to_vec();
    if !rules.contains(&rule) {
        rules.push(rule);
    }
    rules
}

#[async_trait]
impl HostApprover for HostQuestions {
    async fn approve(
        &self,
        egress: &Egress,
        rule: EgressRule,
    ) -> Result<Option<EgressRule>, String> {
        let answered = timeout(ANSWER_TIMEOUT, self.ask_in_turn(egress, &rule)).await;
        answered.unwrap_or_else(|_| {
            Err(format!("there was no answer about `{rule}` in {} s", ANSWER_TIMEOUT.as_secs()))
        })
    }
}

impl HostQuestions {
    async fn ask_in_turn(
        &self,
        egress: &Egress,
        rule: &EgressRule,
    ) -> Result<Option<EgressRule>, String> {
        let since = Instant::now();
        let mut asked = self.asked.lock().await;
        // What was answered while this one waited is not asked about again.
        if egress.rules().contains(rule) {
            return Ok(None);
        }
        if egress.rules().contains(&rule.clone().with_denial(true)) {
            return Err(describe_no(rule));
        }
        if asked.allowed_once.get(rule).is_some_and(|answered| *answered >= since) {
            return Ok(Some(rule.clone()));
        }
        if asked.count >= MAX_HOST_QUESTIONS {
            return Err(format!("`{rule}` is not asked about: there were too many questions"));
        }
        asked.count += 1;
        let question = HostQuestion {
            sandbox: self.sandbox.clone(),
            backend: self.walls.0.clone(),
            boundary: self.walls.1,
            rule: rule.clone(),
        };
        match self.asker.ask(question).await {
            HostAnswer::Once => {
                self.record_decision(rule, true, "this once").await?;
                asked.allowed_once.insert(rule.clone(), Instant::now());
                Ok(Some(rule.clone()))
            }
            HostAnswer::Sandbox => {
                self.record_decision(rule, true, "from this sandbox").await?;
                self.rules.add_rule(rule.clone()).await.map(|()| None)
            }
            HostAnswer::Never => {
                self.record_decision(rule, false, "never from this sandbox").await?;
                self.rules.add_rule(rule.clone().with_denial(true)).await?;
                Err(describe_no(rule))
            }
            HostAnswer::Unanswered { because } => {
                Err(format!("`{rule}` was asked about: {because}"))
            }
        }
    }

    async fn record_decision(
        &self,
        rule: &EgressRule,
        allowed: bool,
        how_long: &str,
    ) -> Result<(), String> {
        self.record(Event::Decided {
            job: None,
            sandbox: Some(self.sandbox.clone()),
            tenant: self.tenant.clone(),
            tool: "network".into(),
            allowed,
            asked: true,
            rule: "--net ask".into(),
            facts: format!("reach {rule}, {how_long}"),
        })
        .await
    }

    /// What cannot be recorded is not done.
    async fn record(&self, event: Event) -> Result<(), String> {
        let journal = Arc::clone(&self.journal);
        let written = tokio::task::spawn_blocking(move || journal.append(event).map(drop)).await;
        if matches!(written, Ok(Ok(()))) {
            return Ok(());
        }
        Err("the answer cannot be recorded".into())
    }
}

fn describe_no(rule: &EgressRule) -> String {
    format!("`{rule}` was asked about, and the answer was no")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use stockade_network::{
        ConnectionLog, ConnectionRecord, EgressLimits, ResolverSettings, SecretRenewal,
        SharedNetwork,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::journal::JournalOptions;

    /// Answers in order, after a while; waits for ever when there is no answer left.
    struct Answers {
        left: StdMutex<Vec<HostAnswer>>,
        asked: StdMutex<usize>,
    }

    #[async_trait]
    impl HostAsker for Answers {
        async fn ask(&self, _question: HostQuestion) -> HostAnswer {
            *self.asked.lock().unwrap() += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let next = self.left.lock().unwrap().pop();
            match next {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }

    struct NoLog;

    impl ConnectionLog for NoLog {
        fn record(&self, _record: ConnectionRecord) {}

        fn observe(&self, _rule: EgressRule) {}

        fn record_renewal(&self, _renewal: SecretRenewal) {}
    }

    /// Rules without a sandbox around them.
    struct BareRules(Arc<Egress>);

    #[async_trait]
    impl RuleKeeper for BareRules {
        async fn add_rule(&self, rule: EgressRule) -> Result<(), String> {
            self.0.replace_rules(extend_rules(&self.0.rules(), rule));
            Ok(())
        }
    }

    struct Bench {
        questions: HostQuestions,
        answers: Arc<Answers>,
        egress: Arc<Egress>,
        state: TempDir,
    }

    impl Bench {
        /// The last answer is given first.
        fn new(left: Vec<HostAnswer>) -> Self {
            let state = tempfile::tempdir().unwrap();
            let answers = Arc::new(Answers { left: StdMutex::new(left), asked: StdMutex::new(0) });
            let journal = Journal::open_in(state.path(), JournalOptions::default()).unwrap();
            let asker: Arc<dyn HostAsker> = answers.clone();
            let settings = ResolverSettings { servers: vec!["127.0.0.1:9".parse().unwrap()] };
            let shared = Arc::new(SharedNetwork::new(&settings).unwrap());
            let rules = vec!["ask".parse().unwrap()];
            let limits = EgressLimits::default();
            let egress = Arc::new(Egress::new(rules, shared, limits, Arc::new(NoLog)));
            let questions = HostQuestions {
                sandbox: "boxa".parse().unwrap(),
                tenant: TenantName::default(),
                walls: (BackendName::literal("mock"), Boundary::None),
                asker,
                rules: Box::new(BareRules(Arc::clone(&egress))),
                journal: Arc::new(journal),
                asked: Mutex::default(),
            };
            Self { questions, answers, egress, state }
        }

        async fn approve(&self, rule: &str) -> Result<Option<EgressRule>, String> {
            self.questions.approve(&self.egress, rule.parse().unwrap()).await
        }

        fn asked(&self) -> usize {
            *self.answers.asked.lock().unwrap()
        }

        fn rules(&self) -> Vec<String> {
            self.egress.rules().iter().map(ToString::to_string).collect()
        }

        fn journal_text(&self) -> String {
            let files = std::fs::read_dir(self.state.path().join("journal")).unwrap().flatten();
            files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
        }
    }

    #[tokio::test]
    async fn connections_that_wait_for_the_same_host_share_one_answer() {
        let bench = Bench::new(vec![HostAnswer::Once, HostAnswer::Once]);
        let rule: EgressRule = "a.org".parse().unwrap();
        let (first, second) = tokio::join!(bench.approve("a.org"), bench.approve("a.org"));
        assert_eq!((first, second), (Ok(Some(rule.clone())), Ok(Some(rule.clone()))));
        assert_eq!(bench.asked(), 1);
        assert_eq!(bench.approve("a.org").await, Ok(Some(rule)));
        assert_eq!((bench.asked(), bench.rules()), (2, vec!["ask".to_owned()]));
    }

    #[tokio::test]
    async fn an_answer_for_the_sandbox_becomes_a_rule_and_is_recorded() {
        let bench = Bench::new(vec![HostAnswer::Never, HostAnswer::Sandbox]);
        assert_eq!(bench.approve("a.org").await, Ok(None));
        for _ in 0..2 {
            assert!(bench.approve("b.org:22").await.unwrap_err().contains("the answer was no"));
        }
        assert_eq!((bench.asked(), bench.rules().join(",")), (2, "ask,a.org,!b.org:22".into()));
        let journal = bench.journal_text();
        for part in ["reach a.org, from this sandbox", "reach b.org:22, never"] {
            assert!(journal.contains(part), "{part}: {journal}");
        }
    }

    #[tokio::test]
    async fn a_rule_for_a_sandbox_that_is_gone_is_a_denial() {
        let gone = LiveRules { engine: Weak::new(), sandbox: SandboxHandle::default() };
        let error = gone.add_rule("a.org".parse().unwrap()).await.unwrap_err();
        assert!(error.contains("has ended"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_in_time_is_a_denial() {
        let bench = Bench::new(Vec::new());
        let (first, second) = tokio::join!(bench.approve("a.org"), bench.approve("b.org"));
        assert!(first.unwrap_err().contains("no answer about `a.org` in 120 s"));
        assert!(second.unwrap_err().contains("no answer"));
        assert_eq!(bench.rules(), ["ask"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_hosts_raises_a_bounded_number_of_questions() {
        let unanswered = HostAnswer::Unanswered { because: "not now".into() };
        let bench = Bench::new(vec![unanswered; 2 * MAX_HOST_QUESTIONS]);
        for number in 0..MAX_HOST_QUESTIONS + 5 {
            bench.approve(&format!("n{number}.org")).await.unwrap_err();
        }
        assert_eq!(bench.asked(), MAX_HOST_QUESTIONS);
        let error = bench.approve("a.org").await.unwrap_err();
        assert!(error.contains("too many questions"), "{error}");
    }
}
