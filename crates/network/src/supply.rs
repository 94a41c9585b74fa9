//! The value of one secret while sandboxes use it, and when it is asked for again: before it expires, once after a host has
//! refused it, and when its sandbox goes on after a pause or in another state. A guest and a host can cause questions, so
//! each has a timeout, one stands at a time, and the next one comes after an interval. What one host refuses is still used
//! for the others until it expires.
//!
//! A value is never used after its expiry, and the reasons given here never hold one (C-41).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use stockade_core::{EnvName, RenewalCause, SecretValue};
use tokio::sync::OwnedMutexGuard;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::record::{ConnectionLog, SecretRenewal};

/// How long an issuer may take. Requests to the hosts of the secret wait meanwhile.
const ISSUE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long before its expiry a value is asked for again; a quarter of its life, where that is shorter.
const RENEWAL_MARGIN: Duration = Duration::from_secs(60);
/// The least time between two questions that the guest's requests cause.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The least time between any question and one that an answer of 401 causes: a host may refuse every value.
const UNAUTHORIZED_INTERVAL: Duration = Duration::from_secs(60);
/// How many earlier values of one secret are still masked in answers.
const MAX_PAST_VALUES: usize = 8;

/// A value, and until when it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedSecret {
    /// The value.
    pub value: SecretValue,
    /// When it expires, by the host's clock. Absent: it is not known to.
    pub expires: Option<SystemTime>,
}

/// Gives the value of a secret, as often as it is asked.
#[async_trait]
pub trait SecretIssuer: Send + Sync {
    /// The value now. Dropped when its time is over.
    ///
    /// - An error says why there is none, in the words of a denial, and never holds a value.
    async fn issue(&self) -> Result<IssuedSecret, String>;
}

/// The value of one secret, shared by all sandboxes that have it.
pub struct SecretSupply {
    /// Absent: the value stays as it is.
    issuer: Option<Arc<dyn SecretIssuer>>,
    state: Mutex<SupplyState>,
    /// Held while a question is open: one stands at a time.
    asking: Arc<tokio::sync::Mutex<()>>,
}

struct SupplyState {
    value: SecretValue,
    expiry: Option<ValueExpiry>,
    /// Earlier values, the newest first. They are masked as well.
    past: Vec<SecretValue>,
    /// Counts the values.
    generation: u64,
    /// Why it has to be asked for before it is used again, for any host.
    pending: Option<RenewalCause>,
    /// Hosts that have refused the value: for them it has to be asked for. They are hosts that it is bound to.
    refused_by: BTreeSet<String>,
    /// When a question for it was last answered, by a value or a failure.
    last_asked: Option<Instant>,
    /// Why that gave no value.
    failure: Option<String>,
}

/// When a value expires. By two clocks: that of the host may be set back, and the other stands still while the host sleeps.
struct ValueExpiry {
    time: SystemTime,
    /// Absent where it is too far away to be written down.
    deadline: Option<Instant>,
    margin: Duration,
}

/// Whether a value has to be asked for before a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RenewalNeed {
    No,
    /// It still holds, and soon does not.
    Early,
    /// It must not be used.
    Due(RenewalCause),
    /// It must not be used, nor asked for so soon after the last time.
    Refused(String),
}

/// A value that holds now.
#[derive(Clone)]
pub(crate) struct CurrentValue {
    pub value: SecretValue,
    pub generation: u64,
}

/// On whose behalf a value is asked for again.
pub(crate) struct RenewalContext<'a> {
    pub secret: &'a EnvName,
    /// The host that the value is for, in canonical form.
    pub host: &'a str,
    pub log: &'a Arc<dyn ConnectionLog>,
    /// The questions that were begun for one sandbox.
    pub begun: &'a Mutex<Vec<AbortHandle>>,
}

impl RenewalContext<'_> {
    fn note_begun(&self, task: AbortHandle) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.retain(|task| !task.is_finished());
        begun.push(task);
    }
}

impl ValueExpiry {
    fn new(time: SystemTime) -> Self {
        let left = time.duration_since(SystemTime::now()).unwrap_or_default();
        let deadline = Instant::now().checked_add(left);
        Self { time, deadline, margin: RENEWAL_MARGIN.min(left / 4) }
    }

    fn time_left(&self) -> Duration {
        let by_host = self.time.duration_since(SystemTime::now()).unwrap_or_default();
        let now = Instant::now();
        self.deadline
            .map_or(by_host, |deadline| by_host.min(deadline.saturating_duration_since(now)))
    }
}

impl SupplyState {
    fn new(value: SecretValue, expires: Option<SystemTime>) -> Self {
        Self {
            value,
            expiry: expires.map(ValueExpiry::new),
            past: Vec::new(),
            generation: 0,
            pending: None,
            refused_by: BTreeSet::new(),
            last_asked: None,
            failure: None,
        }
    }

    fn was_asked_within(&self, interval: Duration) -> bool {
        self.last_asked.is_some_and(|asked| asked.elapsed() < interval)
    }

    fn find_need(&self, host: &str) -> RenewalNeed {
        let left = self.expiry.as_ref().map(|expiry| (expiry.time_left(), expiry.margin));
        let cause = match (self.pending, left) {
            (Some(cause), _) => cause,
            (None, Some((left, _))) if left.is_zero() => RenewalCause::Expiry,
            (None, Some(_) | None) if self.refused_by.contains(host) => RenewalCause::Unauthorized,
            (None, Some((left, margin))) if left < margin => {
                let is_soon = self.was_asked_within(RETRY_INTERVAL);
                return if is_soon { RenewalNeed::No } else { RenewalNeed::Early };
            }
            (None, Some(_) | None) => return RenewalNeed::No,
        };
        match self.find_obstacle(cause) {
            Some(reason) => RenewalNeed::Refused(reason),
            None => RenewalNeed::Due(cause),
        }
    }

    /// Why it is not asked for now, although it should be.
    fn find_obstacle(&self, cause: RenewalCause) -> Option<String> {
        if !self.was_asked_within(RETRY_INTERVAL) {
            return None;
        }
        let seconds = RETRY_INTERVAL.as_secs();
        match (&self.failure, cause) {
            (Some(failure), _) => Some(failure.clone()),
            (None, RenewalCause::Expiry) => {
                Some(format!("it has expired within {seconds} s after it was asked for"))
            }
            // What its owner does is no guest's doing.
            (None, RenewalCause::Resumed | RenewalCause::Restored | RenewalCause::Unauthorized) => {
                None
            }
        }
    }

    /// Takes another value in place of the one that there is.
    fn accept(&mut self, issued: IssuedSecret) -> Result<(), String> {
        let IssuedSecret { value, expires } = issued;
        let expiry = expires.map(ValueExpiry::new);
        if expiry.as_ref().is_some_and(|expiry| expiry.time_left().is_zero()) {
            return Err("it was given a value that has expired already".to_owned());
        }
        if self.known().any(|known| *known != value && overlaps(known, &value)) {
            let reason =
                "its new value and an earlier one are parts of each other, and could not be masked";
            return Err(reason.to_owned());
        }
        self.past.retain(|past| *past != value);
        if self.value != value {
            self.past.insert(0, std::mem::replace(&mut self.value, value));
            self.past.truncate(MAX_PAST_VALUES);
        }
        (self.expiry, self.pending) = (expiry, None);
        self.refused_by.clear();
        self.generation += 1;
        Ok(())
    }

    /// Every value that is masked.
    fn known(&self) -> impl Iterator<Item = &SecretValue> {
        [&self.value].into_iter().chain(&self.past)
    }
}

/// Whether one is a part of the other, which then could not be masked reliably.
pub(crate) fn overlaps(one: &SecretValue, other: &SecretValue) -> bool {
    one.expose().contains(other.expose()) || other.expose().contains(one.expose())
}

impl From<SecretValue> for SecretSupply {
    /// Of a value that stays as it is.
    fn from(value: SecretValue) -> Self {
        let state = Mutex::new(SupplyState::new(value, None));
        Self { issuer: None, state, asking: Arc::default() }
    }
}

impl SecretSupply {
    /// Of a value that was given, and is asked for again when that is due.
    pub fn new(issued: IssuedSecret, issuer: Arc<dyn SecretIssuer>) -> Self {
        let state = Mutex::new(SupplyState::new(issued.value, issued.expires));
        Self { issuer: Some(issuer), state, asking: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, SupplyState> {
        // Nothing panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_need(&self, host: &str) -> RenewalNeed {
        self.lock().find_need(host)
    }

    fn current(&self) -> CurrentValue {
        let state = self.lock();
        CurrentValue { value: state.value.clone(), generation: state.generation }
    }

    /// Which value this is: another one has another number.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Every value that is masked in answers: the one that holds, and earlier ones.
    pub(crate) fn known_values(&self) -> Vec<SecretValue> {
        self.lock().known().cloned().collect()
    }

    /// Has it asked for before it is used again.
    pub(crate) fn mark_stale(&self, cause: RenewalCause) {
        if self.issuer.is_some() {
            let mut state = self.lock();
            // What has failed before may work now.
            (state.pending, state.failure) = (Some(cause), None);
        }
    }

    /// A host has refused a request with this value. The next request to it has another, unless one was asked for lately.
    pub(crate) fn note_unauthorized(&self, generation: u64, host: &str) {
        let mut state = self.lock();
        let is_current = state.generation == generation && state.pending.is_none();
        if self.issuer.is_some() && is_current && !state.was_asked_within(UNAUTHORIZED_INTERVAL) {
            state.refused_by.insert(host.to_owned());
        }
    }

    /// The value for a request, asked for again first where that is due. Why there is none, otherwise.
    pub(crate) async fn fetch_value(
        self: &Arc<Self>,
        context: &RenewalContext<'_>,
    ) -> Result<CurrentValue, String> {
        let Some(issuer) = &self.issuer else { return Ok(self.current()) };
        let turn = self.take_turn(context.host).await?;
        let Some(turn) = turn else { return Ok(self.current()) };
        // Another request may have asked while this one waited.
        let cause = match self.find_need(context.host) {
            RenewalNeed::No => return Ok(self.current()),
            RenewalNeed::Refused(reason) => return Err(reason),
            RenewalNeed::Early => RenewalCause::Expiry,
            RenewalNeed::Due(cause) => cause,
        };
        self.renew(cause, issuer, turn, context).await;
        match self.find_need(context.host) {
            RenewalNeed::No | RenewalNeed::Early => Ok(self.current()),
            RenewalNeed::Refused(reason) => Err(reason),
            RenewalNeed::Due(_) => Err("the question for it was broken off".to_owned()),
        }
    }

    /// Waits until no other request asks. Nothing where this one need not.
    async fn take_turn(&self, host: &str) -> Result<Option<OwnedMutexGuard<()>>, String> {
        let asking = Arc::clone(&self.asking);
        match self.find_need(host) {
            RenewalNeed::No => Ok(None),
            RenewalNeed::Refused(reason) => Err(reason),
            // A value that still holds is used while another request asks for the next.
            RenewalNeed::Early => Ok(asking.try_lock_owned().ok()),
            RenewalNeed::Due(_) => Ok(Some(asking.lock_owned().await)),
        }
    }

    async fn renew(
        self: &Arc<Self>,
        cause: RenewalCause,
        issuer: &Arc<dyn SecretIssuer>,
        turn: OwnedMutexGuard<()>,
        context: &RenewalContext<'_>,
    ) {
        let (supply, issuer) = (Arc::clone(self), Arc::clone(issuer));
        let (secret, log) = (context.secret.clone(), Arc::clone(context.log));
        // In a task: a program that breaks off its request must not end the question for others.
        let task = tokio::spawn(async move {
            let failure = supply.ask(issuer.as_ref()).await.err();
            supply.note_answer(&failure);
            log.record_renewal(SecretRenewal { secret, cause, failure });
            drop(turn);
        });
        context.note_begun(task.abort_handle());
        // One that was aborted, with its sandbox, has changed nothing: the next request asks at once.
        let _ = task.await;
    }

    fn note_answer(&self, failure: &Option<String>) {
        let mut state = self.lock();
        state.failure.clone_from(failure);
        // From here on the interval counts: a question may take longer than that, and one that was aborted is none.
        state.last_asked = Some(Instant::now());
    }

    async fn ask(&self, issuer: &dyn SecretIssuer) -> Result<(), String> {
        match timeout(ISSUE_TIMEOUT, issuer.issue()).await {
            Ok(issued) => self.lock().accept(issued?),
            Err(_) => {
                let seconds = ISSUE_TIMEOUT.as_secs();
                Err(format!("it was asked for, and there was no answer within {seconds} s"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
