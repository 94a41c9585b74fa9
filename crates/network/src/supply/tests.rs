use std::collections::VecDeque;

use stockade_core::EgressRule;
use tokio::sync::Notify;
use tokio::time::{advance, sleep};

use super::*;
use crate::record::ConnectionRecord;

const HOUR: Duration = Duration::from_secs(3600);
/// The hosts of the secret.
const HOST: &str = "a.test";
const OTHER_HOST: &str = "b.test";

/// Answers in order; when there is no answer left, waits until it is dropped.
#[derive(Default)]
struct ScriptedIssuer {
    answers: Mutex<VecDeque<Result<IssuedSecret, String>>>,
    asked: Mutex<usize>,
    /// Told when a question comes.
    begun: Notify,
    pace: Duration,
}

#[async_trait]
impl SecretIssuer for ScriptedIssuer {
    async fn issue(&self) -> Result<IssuedSecret, String> {
        *self.asked.lock().unwrap() += 1;
        self.begun.notify_one();
        sleep(self.pace).await;
        let next = self.answers.lock().unwrap().pop_front();
        match next {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

#[derive(Default)]
struct RenewalLog(Mutex<Vec<SecretRenewal>>);

impl ConnectionLog for RenewalLog {
    fn record(&self, _record: ConnectionRecord) {}

    fn observe(&self, _rule: EgressRule) {}

    fn record_renewal(&self, renewal: SecretRenewal) {
        self.0.lock().unwrap().push(renewal);
    }
}

fn value_of(number: usize) -> SecretValue {
    SecretValue::try_from(format!("value-{number}-of-the-test")).unwrap()
}

/// The value of this number, which holds for so long.
fn issue_for(number: usize, life: Option<Duration>) -> IssuedSecret {
    IssuedSecret { value: value_of(number), expires: life.map(|life| SystemTime::now() + life) }
}

fn failed() -> Result<IssuedSecret, String> {
    Err("its command failed: exit status: 3".to_owned())
}

/// A supply whose first value is number 0, and what stands around it.
struct TestSupply {
    supply: Arc<SecretSupply>,
    issuer: Arc<ScriptedIssuer>,
    log: Arc<RenewalLog>,
    begun: Mutex<Vec<AbortHandle>>,
    secret: EnvName,
}

impl TestSupply {
    fn new(life: Option<Duration>, answers: Vec<Result<IssuedSecret, String>>) -> Self {
        let answers = Mutex::new(answers.into());
        let issuer = ScriptedIssuer { answers, ..ScriptedIssuer::default() };
        Self::with_issuer(life, issuer)
    }

    fn with_issuer(life: Option<Duration>, issuer: ScriptedIssuer) -> Self {
        let issuer = Arc::new(issuer);
        let asked: Arc<dyn SecretIssuer> = issuer.clone();
        let supply = Arc::new(SecretSupply::new(issue_for(0, life), asked));
        let (log, begun) = (Arc::default(), Mutex::default());
        Self { supply, issuer, log, begun, secret: "KEY".parse().unwrap() }
    }

    /// The value for a request.
    async fn fetch(&self) -> Result<SecretValue, String> {
        self.fetch_for(HOST).await
    }

    async fn fetch_for(&self, host: &str) -> Result<SecretValue, String> {
        let log: Arc<dyn ConnectionLog> = self.log.clone();
        let context = RenewalContext { secret: &self.secret, host, log: &log, begun: &self.begun };
        self.supply.fetch_value(&context).await.map(|current| current.value)
    }

    /// A request that the host answers with 401.
    async fn fetch_unauthorized(&self) -> SecretValue {
        let value = self.fetch().await.unwrap();
        self.supply.note_unauthorized(self.supply.generation(), HOST);
        value
    }

    fn asked(&self) -> usize {
        *self.issuer.asked.lock().unwrap()
    }

    fn renewals(&self) -> Vec<(RenewalCause, bool)> {
        let renewals = self.log.0.lock().unwrap();
        renewals.iter().map(|renewal| (renewal.cause, renewal.failure.is_none())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_is_asked_for_again_before_it_expires() {
    let test = TestSupply::new(Some(HOUR), vec![Ok(issue_for(1, None))]);
    advance(HOUR - RENEWAL_MARGIN * 2).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(0)), 0));
    advance(RENEWAL_MARGIN * 3 / 2).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
    assert_eq!(test.supply.known_values(), [value_of(1), value_of(0)]);
    assert_eq!(test.renewals(), [(RenewalCause::Expiry, true)]);
    advance(HOUR).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
}

#[tokio::test(start_paused = true)]
async fn a_value_with_a_short_life_is_used_for_most_of_it() {
    let life = RENEWAL_MARGIN * 3;
    let test = TestSupply::new(Some(life), vec![Ok(issue_for(1, None))]);
    advance(life * 7 / 10).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(0)), 0));
    advance(life / 5).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
}

#[tokio::test(start_paused = true)]
async fn an_expired_value_is_not_used_and_a_failing_command_not_run_in_a_loop() {
    let answers = vec![failed(), failed(), Ok(issue_for(1, None))];
    let test = TestSupply::new(Some(HOUR), answers);
    advance(HOUR - Duration::from_secs(30)).await;
    // It still holds, so that the failure hinders nobody.
    for _ in 0..3 {
        assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(0)), 1));
    }
    advance(Duration::from_secs(31)).await;
    for _ in 0..3 {
        let refused = test.fetch().await.unwrap_err();
        assert!(refused.contains("exit status: 3"), "{refused}");
        assert_eq!(test.asked(), 2);
    }
    advance(RETRY_INTERVAL).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 3));
    let cause = RenewalCause::Expiry;
    assert_eq!(test.renewals(), [(cause, false), (cause, false), (cause, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_expires_at_once_does_not_make_a_loop() {
    let second = Duration::from_secs(1);
    let answers = (1..100).map(|number| Ok(issue_for(number, Some(second)))).collect();
    let test = TestSupply::new(Some(second), answers);
    for _ in 0..100 {
        advance(second * 2).await;
        // Some are refused.
        let _ = test.fetch().await;
    }
    let most = 1 + (second * 200).as_secs() / RETRY_INTERVAL.as_secs();
    assert!(test.asked() as u64 <= most, "{} questions", test.asked());
}

#[tokio::test(start_paused = true)]
async fn a_value_that_a_host_refuses_is_asked_for_once() {
    let test = TestSupply::new(None, vec![Ok(issue_for(1, None)), Ok(issue_for(2, None))]);
    assert_eq!(test.fetch_unauthorized().await, value_of(0));
    assert_eq!(test.fetch_unauthorized().await, value_of(1));
    // The new one is refused as well: a hostile host does so for ever.
    advance(UNAUTHORIZED_INTERVAL - Duration::from_secs(1)).await;
    for _ in 0..50 {
        assert_eq!(test.fetch_unauthorized().await, value_of(1));
    }
    assert_eq!(test.asked(), 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(test.fetch_unauthorized().await, value_of(1));
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(2)), 2));
    assert_eq!(test.renewals(), [(RenewalCause::Unauthorized, true); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_one_host_refuses_is_used_for_the_others() {
    let test = TestSupply::new(None, vec![failed(), Ok(issue_for(1, None))]);
    assert_eq!(test.fetch_unauthorized().await, value_of(0));
    for _ in 0..2 {
        let refused = test.fetch().await.unwrap_err();
        assert!(refused.contains("exit status: 3"), "{refused}");
        assert_eq!((test.fetch_for(OTHER_HOST).await, test.asked()), (Ok(value_of(0)), 1));
    }
    advance(RETRY_INTERVAL).await;
    assert_eq!((test.fetch_for(OTHER_HOST).await, test.asked()), (Ok(value_of(0)), 1));
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 2));
    assert_eq!(test.fetch_for(OTHER_HOST).await, Ok(value_of(1)));
    assert_eq!(
        test.renewals(),
        [(RenewalCause::Unauthorized, false), (RenewalCause::Unauthorized, true)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_value_that_one_host_refuses_is_not_used_for_the_others_after_its_expiry() {
    let test = TestSupply::new(Some(HOUR), vec![failed(), failed()]);
    test.fetch_unauthorized().await;
    assert!(test.fetch().await.is_err());
    advance(HOUR).await;
    assert!(test.fetch_for(OTHER_HOST).await.is_err());
    assert_eq!(
        test.renewals(),
        [(RenewalCause::Unauthorized, false), (RenewalCause::Expiry, false)]
    );
}

#[tokio::test(start_paused = true)]
async fn other_hosts_do_not_wait_for_a_value_that_one_has_refused() {
    let issuer = ScriptedIssuer {
        answers: Mutex::new([Ok(issue_for(1, None))].into()),
        pace: Duration::from_secs(5),
        ..ScriptedIssuer::default()
    };
    let test = TestSupply::with_issuer(None, issuer);
    test.fetch_unauthorized().await;
    let other = async {
        test.issuer.begun.notified().await;
        test.fetch_for(OTHER_HOST).await
    };
    assert_eq!(tokio::join!(test.fetch(), other), (Ok(value_of(1)), Ok(value_of(0))));
}

#[tokio::test(start_paused = true)]
async fn a_late_refusal_of_an_earlier_value_changes_nothing() {
    let test = TestSupply::new(None, vec![Ok(issue_for(1, None))]);
    let generation = test.supply.generation();
    test.fetch_unauthorized().await;
    assert_eq!(test.fetch().await, Ok(value_of(1)));
    advance(HOUR).await;
    test.supply.note_unauthorized(generation, HOST);
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_stale_is_asked_for_before_it_is_used() {
    let test =
        TestSupply::new(None, vec![Ok(issue_for(1, None)), failed(), Ok(issue_for(0, None))]);
    test.supply.mark_stale(RenewalCause::Resumed);
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
    // Its owner need not wait, and a failure leaves nothing that could be used.
    test.supply.mark_stale(RenewalCause::Restored);
    for _ in 0..2 {
        assert!(test.fetch().await.is_err());
    }
    assert_eq!(test.asked(), 2);
    test.supply.mark_stale(RenewalCause::Restored);
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(0)), 3));
    // The same value again is masked once.
    assert_eq!(test.supply.known_values(), [value_of(0), value_of(1)]);
}

#[tokio::test(start_paused = true)]
async fn one_question_stands_at_a_time() {
    let issuer = ScriptedIssuer {
        answers: Mutex::new([Ok(issue_for(1, None))].into()),
        pace: Duration::from_secs(5),
        ..ScriptedIssuer::default()
    };
    let test = TestSupply::with_issuer(None, issuer);
    test.supply.mark_stale(RenewalCause::Resumed);
    let fetched = tokio::join!(test.fetch(), test.fetch(), test.fetch());
    assert_eq!(fetched, (Ok(value_of(1)), Ok(value_of(1)), Ok(value_of(1))));
    assert_eq!(test.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_holds_is_used_while_the_next_is_asked_for() {
    let issuer = ScriptedIssuer {
        answers: Mutex::new([Ok(issue_for(1, None))].into()),
        pace: Duration::from_secs(5),
        ..ScriptedIssuer::default()
    };
    let test = TestSupply::with_issuer(Some(HOUR), issuer);
    advance(HOUR - Duration::from_secs(30)).await;
    let other = async {
        test.issuer.begun.notified().await;
        test.fetch().await
    };
    assert_eq!(tokio::join!(test.fetch(), other), (Ok(value_of(1)), Ok(value_of(0))));
}

#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_ends() {
    let test = TestSupply::new(Some(HOUR), Vec::new());
    advance(HOUR).await;
    let begun = Instant::now();
    let refused = test.fetch().await.unwrap_err();
    assert!(refused.contains("no answer within 30 s"), "{refused}");
    assert!(begun.elapsed() >= ISSUE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_for_a_question_in_vain_ask_no_other() {
    let test = TestSupply::new(Some(HOUR), Vec::new());
    advance(HOUR).await;
    let begun = Instant::now();
    let fetched = tokio::join!(test.fetch(), test.fetch(), test.fetch());
    assert!(fetched.0.is_err() && fetched.1.is_err() && fetched.2.is_err());
    assert_eq!(test.asked(), 1);
    assert!(begun.elapsed() < ISSUE_TIMEOUT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_broken_off_does_not_end_the_question() {
    let issuer = ScriptedIssuer {
        answers: Mutex::new([Ok(issue_for(1, None))].into()),
        pace: Duration::from_secs(5),
        ..ScriptedIssuer::default()
    };
    let test = TestSupply::with_issuer(None, issuer);
    test.supply.mark_stale(RenewalCause::Resumed);
    tokio::select! {
        _ = test.fetch() => panic!("there was no answer yet"),
        () = test.issuer.begun.notified() => {}
    }
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 1));
    assert_eq!(test.renewals(), [(RenewalCause::Resumed, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_stopped_leaves_no_value() {
    let test = TestSupply::new(Some(HOUR), Vec::new());
    advance(HOUR).await;
    let stop = async {
        test.issuer.begun.notified().await;
        test.begun.lock().unwrap().drain(..).for_each(|task| task.abort());
    };
    let (fetched, ()) = tokio::join!(test.fetch(), stop);
    assert!(fetched.is_err());
    assert!(test.renewals().is_empty());
    // Others, whose sandboxes go on, need not wait.
    test.issuer.answers.lock().unwrap().push_back(Ok(issue_for(1, None)));
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(1)), 2));
}

#[tokio::test(start_paused = true)]
async fn a_new_value_that_cannot_be_used_is_none() {
    let overlapping = SecretValue::try_from("value-0-of-the-test-and-more".to_owned()).unwrap();
    let expired = IssuedSecret { value: value_of(1), expires: Some(SystemTime::UNIX_EPOCH) };
    let within = IssuedSecret { value: overlapping, expires: None };
    for (issued, told) in [(within, "could not be masked"), (expired, "expired already")] {
        let test = TestSupply::new(None, vec![Ok(issued)]);
        test.supply.mark_stale(RenewalCause::Resumed);
        let refused = test.fetch().await.unwrap_err();
        assert!(refused.contains(told) && !refused.contains("value-"), "{refused}");
        assert_eq!(test.supply.known_values(), [value_of(0)]);
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_earlier_values_are_masked() {
    let count = MAX_PAST_VALUES + 3;
    let answers = (1..=count).map(|number| Ok(issue_for(number, None))).collect();
    let test = TestSupply::new(None, answers);
    for number in 1..=count {
        test.supply.mark_stale(RenewalCause::Resumed);
        assert_eq!(test.fetch().await, Ok(value_of(number)));
    }
    let known: Vec<_> = (0..=MAX_PAST_VALUES).map(|back| value_of(count - back)).collect();
    assert_eq!(test.supply.known_values(), known);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_nothing_issues_stays() {
    let test = TestSupply {
        supply: Arc::new(SecretSupply::from(value_of(7))),
        ..TestSupply::new(None, Vec::new())
    };
    test.supply.mark_stale(RenewalCause::Restored);
    assert_eq!(test.fetch_unauthorized().await, value_of(7));
    advance(HOUR).await;
    assert_eq!((test.fetch().await, test.asked()), (Ok(value_of(7)), 0));
}
