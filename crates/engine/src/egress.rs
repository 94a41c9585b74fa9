//! The network of a sandbox that may reach other hosts: the relay beside it, and the record of what it
//! reached. The walls let nothing out; what the relay connects to is all there is (C-50, C-51).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stockade_core::{
    EgressRule, Error, ErrorCode, Network, Result, Sandbox, SandboxId, SandboxSpec, clean_foreign,
};
use stockade_network::{
    ConnectionLog, ConnectionRecord, ConnectionVerdict, Egress, Relay, SecretRenewal, SharedNetwork,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::EngineConfig;
use crate::denials::DenialWatchers;
use crate::engine::{EngineInner, lock_mutex};
use crate::journal::{EgressVerdict, Event, Journal};
use crate::lifecycle::{RunningSandbox, SandboxHandle, SandboxOrder};
use crate::secrets::write_bundle;

/// The most connections of one sandbox that were made and are recorded one by one.
const MAX_RECORDED_CONNECTIONS: usize = 1000;
/// The most different denials of one sandbox that are recorded: a guest makes as many as it likes.
const MAX_RECORDED_DENIALS: usize = 200;
/// The most renewals of one sandbox's secrets that are recorded: a host that refuses every value causes many.
const MAX_RECORDED_RENEWALS: usize = 1000;
/// Records that wait to be written.
const RECORD_QUEUE_LEN: usize =
    MAX_RECORDED_CONNECTIONS + MAX_RECORDED_DENIALS + MAX_RECORDED_RENEWALS + 1;
/// How long the end of a sandbox waits for the records of its connections.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// What the networks of an engine's sandboxes share, made when it is first needed.
#[derive(Default)]
pub(crate) struct LazyNetwork(OnceLock<Arc<SharedNetwork>>);

impl LazyNetwork {
    fn get(&self, config: &EngineConfig) -> Result<Arc<SharedNetwork>> {
        if let Some(shared) = self.0.get() {
            return Ok(Arc::clone(shared));
        }
        let direct = SharedNetwork::new(&config.resolver)?;
        let shared = match &config.upstream_proxy {
            Some(proxy) => direct.with_proxy(proxy)?,
            None => direct,
        };
        let shared = Arc::new(shared);
        Ok(Arc::clone(self.0.get_or_init(|| shared)))
    }
}

/// The relay of a sandbox, and the task that writes its records.
pub(crate) struct SandboxNetwork {
    relay: Arc<Relay>,
    /// Absent where there is nothing to record: no other host is reached.
    records: Option<JoinHandle<()>>,
}

impl SandboxNetwork {
    /// For ports alone.
    pub(crate) fn for_ports(relay: Arc<Relay>) -> Self {
        Self { relay, records: None }
    }

    /// Ends every connection and waits until each is recorded.
    async fn close(self) {
        // Not by dropping it: one who connects to a port at this moment holds it too.
        self.relay.close();
        drop(self.relay);
        if let Some(records) = self.records {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, records).await;
        }
    }
}

impl EngineInner {
    /// Starts the relay of a sandbox, if its policy asks for one. No program has run in it yet.
    pub(crate) async fn open_network(
        &self,
        policy: &Network,
        order: &SandboxOrder,
        sandbox: &dyn Sandbox,
        denials: &Arc<DenialWatchers>,
        handle: &SandboxHandle,
    ) -> Result<Option<SandboxNetwork>> {
        let Network::Egress(rules) = policy else {
            return Ok(None);
        };
        let shared = self.network.get(&self.config)?;
        if policy.observes() {
            denials.observed.begin();
        }
        let (log, queue) = JournalLog::new(sandbox.id().clone(), Arc::clone(denials));
        if let Some(secrets) = &order.secrets {
            write_bundle(sandbox, secrets).await?;
        }
        let limits = self.config.egress_limits;
        let mut egress = Egress::new(rules.clone(), shared, limits, Arc::new(log))
            .with_secrets(order.secrets.clone());
        if let Some(budget) = self.egress_budget(&order.admitted.spec().tenant) {
            egress = egress.with_tenant_budget(budget);
        }
        if let Some(questions) = self.open_questions(sandbox.id(), &order.admitted, handle) {
            egress = egress.with_approver(Arc::new(questions));
        }
        let helper = sandbox.open_network().await?;
        let relay = Arc::new(Relay::start(helper, Arc::new(egress)).await?);
        let records = tokio::spawn(write_records(Arc::clone(&self.journal), queue));
        Ok(Some(SandboxNetwork { relay, records: Some(records) }))
    }

    /// Starts another relay in the place of the one there was: what it knew belongs to an earlier state.
    pub(crate) async fn reopen_network(&self, live: &RunningSandbox) -> Result<()> {
        let _changes = live.network_changes.lock().await;
        self.close_network(live).await;
        let (policy, sandbox) = (live.network_policy(), live.sandbox.as_ref());
        let (denials, handle) = (&live.denials, &live.handle);
        let network = self.open_network(&policy, &live.order, sandbox, denials, handle).await?;
        *lock_mutex(&live.network) = network;
        Ok(())
    }

    /// Ends the network of a sandbox, before its walls are taken down.
    pub(crate) async fn close_network(&self, live: &RunningSandbox) {
        let network = lock_mutex(&live.network).take();
        if let Some(network) = network {
            network.close().await;
        }
        // No request is left that waits for an answer.
        if let Some(secrets) = &live.order.secrets {
            secrets.stop_asking();
        }
    }
}

impl RunningSandbox {
    /// Its relay, if there is one and its helper lives.
    pub(crate) fn find_relay(&self) -> Option<Arc<Relay>> {
        let network = lock_mutex(&self.network);
        network.as_ref().map(|it| Arc::clone(&it.relay)).filter(|relay| relay.is_open())
    }

    /// What it may reach now: its rules may have changed since it was made.
    pub(crate) fn network_policy(&self) -> Network {
        match &self.order.admitted.spec().network {
            Network::Egress(_) => Network::Egress(lock_mutex(&self.rules).clone()),
            policy @ (Network::Auto | Network::None | Network::Loopback) => policy.clone(),
        }
    }

    /// What it was asked to be, with what it may reach now: a copy gets no more than that.
    pub(crate) fn current_spec(&self) -> SandboxSpec {
        let network = self.network_policy();
        SandboxSpec { network, ..self.order.admitted.spec().clone() }
    }

    /// Refuses to go on without the network that was promised (C-52).
    pub(crate) fn check_network(&self) -> Result<()> {
        let wants = matches!(self.order.admitted.spec().network, Network::Egress(_));
        if !wants || self.find_relay().is_some() {
            return Ok(());
        }
        let message = "the sandbox's network is gone: its helper was ended from inside";
        Err(Error::new(ErrorCode::WallMissing, "spawn", message).remedy("make another sandbox"))
    }
}

/// Writes one record after the other, until no one is left who could send one.
async fn write_records(journal: Arc<Journal>, mut queue: mpsc::Receiver<Event>) {
    while let Some(event) = queue.recv().await {
        let journal = Arc::clone(&journal);
        // An error is ignored: the connection is over, and the next record says whether the journal works.
        let _ = tokio::task::spawn_blocking(move || journal.append(event)).await;
    }
}

/// Records connections in the journal, as many as are of use to a reader.
struct JournalLog {
    sandbox: SandboxId,
    queue: mpsc::Sender<Event>,
    seen: Mutex<SeenConnections>,
    denials: Arc<DenialWatchers>,
}

#[derive(Default)]
struct SeenConnections {
    made: usize,
    /// By host, port, request and reason.
    denied: HashSet<(String, Option<u16>, Option<String>, String)>,
    renewals: usize,
    omitted: u64,
}

impl SeenConnections {
    /// Whether this one is recorded: a denial that was recorded before is not, nor one too many.
    fn admit_record(&mut self, record: &ConnectionRecord) -> bool {
        let is_admitted = match &record.verdict {
            ConnectionVerdict::Denied { reason, .. } => {
                let (host, request) = (record.host.clone(), record.request.clone());
                self.denied.len() < MAX_RECORDED_DENIALS
                    && self.denied.insert((host, record.port, request, reason.clone()))
            }
            ConnectionVerdict::Allowed { .. } | ConnectionVerdict::Failed { .. } => {
                let is_admitted = self.made < MAX_RECORDED_CONNECTIONS;
                self.made += usize::from(is_admitted);
                is_admitted
            }
        };
        self.omitted += u64::from(!is_admitted);
        is_admitted
    }

    fn admit_renewal(&mut self) -> bool {
        let is_admitted = self.renewals < MAX_RECORDED_RENEWALS;
        self.renewals += usize::from(is_admitted);
        self.omitted += u64::from(!is_admitted);
        is_admitted
    }
}

impl JournalLog {
    fn new(sandbox: SandboxId, denials: Arc<DenialWatchers>) -> (Self, mpsc::Receiver<Event>) {
        let (queue, events) = mpsc::channel(RECORD_QUEUE_LEN);
        (Self { sandbox, queue, seen: Mutex::default(), denials }, events)
    }

    fn send(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            lock_mutex(&self.seen).omitted += 1;
        }
    }
}

fn build_connection_event(sandbox: SandboxId, record: ConnectionRecord) -> Event {
    let (verdict, rule, reason) = match record.verdict {
        ConnectionVerdict::Allowed { rule } => (EgressVerdict::Allowed, Some(rule), None),
        ConnectionVerdict::Denied { reason, .. } => (EgressVerdict::Denied, None, Some(reason)),
        ConnectionVerdict::Failed { rule, reason } => (EgressVerdict::Failed, rule, Some(reason)),
    };
    Event::Connection {
        sandbox,
        host: clean_foreign(&record.host),
        port: record.port,
        address: record.address,
        begun: record.begun.into(),
        request: record.request.map(|request| clean_foreign(&request)),
        verdict,
        rule,
        reason: reason.map(|reason| clean_foreign(&reason)),
        sent: record.sent,
        received: record.received,
    }
}

impl ConnectionLog for JournalLog {
    fn record(&self, record: ConnectionRecord) {
        self.denials.add_record(&record);
        if !lock_mutex(&self.seen).admit_record(&record) {
            return;
        }
        self.send(build_connection_event(self.sandbox.clone(), record));
    }

    fn observe(&self, rule: EgressRule) {
        self.denials.observed.add(rule);
    }

    fn record_renewal(&self, SecretRenewal { secret, cause, failure }: SecretRenewal) {
        if lock_mutex(&self.seen).admit_renewal() {
            let (sandbox, failure) =
                (self.sandbox.clone(), failure.map(|reason| clean_foreign(&reason)));
            self.send(Event::SecretRenewal { sandbox, secret, cause, failure });
        }
    }
}

impl Drop for JournalLog {
    fn drop(&mut self) {
        let count = lock_mutex(&self.seen).omitted;
        if count > 0 {
            let event = Event::ConnectionsOmitted { sandbox: self.sandbox.clone(), count };
            // The queue is longer than all that one sandbox may have recorded.
            let _ = self.queue.try_send(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::RenewalCause;

    use super::*;

    fn record_of(host: &str, verdict: ConnectionVerdict) -> ConnectionRecord {
        ConnectionRecord {
            host: host.to_owned(),
            port: None,
            address: None,
            via: None,
            begun: std::time::SystemTime::UNIX_EPOCH,
            request: None,
            verdict,
            sent: 0,
            received: 0,
        }
    }

    fn denied() -> ConnectionVerdict {
        ConnectionVerdict::Denied { reason: "no rule".into(), missing_rule: Some("a.org".into()) }
    }

    #[test]
    fn denials_do_not_use_up_the_room_for_connections() {
        let allowed = ConnectionVerdict::Allowed { rule: String::new() };
        let mut seen = SeenConnections::default();
        let admitted =
            (0..5000).filter(|it| seen.admit_record(&record_of(&it.to_string(), denied())));
        assert_eq!(admitted.count(), MAX_RECORDED_DENIALS);
        assert!(seen.admit_record(&record_of("a.org", allowed)));
        assert_eq!(seen.omitted, 5000 - MAX_RECORDED_DENIALS as u64);
    }

    #[test]
    fn a_host_that_is_denied_for_another_reason_is_recorded_again() {
        let over = || ConnectionVerdict::Denied { reason: "the quota".into(), missing_rule: None };
        let mut seen = SeenConnections::default();
        let verdicts = [denied(), denied(), over(), over()];
        let admitted = verdicts.map(|verdict| seen.admit_record(&record_of("a.org", verdict)));
        assert_eq!(admitted, [true, false, true, false]);
    }

    #[test]
    fn a_record_tells_allowed_denied_and_failed_apart() {
        let failed = |rule: Option<&str>| ConnectionVerdict::Failed {
            rule: rule.map(str::to_owned),
            reason: "no such name".into(),
        };
        let allowed = ConnectionVerdict::Allowed { rule: "a.org".into() };
        let no_name = Some("no such name");
        for (verdict, told) in [
            (allowed, [Some("allowed"), Some("a.org"), None]),
            (denied(), [Some("denied"), None, Some("no rule")]),
            (failed(Some("a.org")), [Some("failed"), Some("a.org"), no_name]),
            (failed(None), [Some("failed"), None, no_name]),
        ] {
            let record = record_of("a.org", verdict);
            let event = build_connection_event("boxa".parse().unwrap(), record);
            let json = serde_json::to_value(&event).unwrap();
            let fields = ["verdict", "rule", "reason"].map(|key| json[key].as_str());
            assert_eq!(fields, told);
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }

    #[tokio::test]
    async fn renewals_of_secrets_are_recorded_up_to_a_number() {
        let (log, mut queue) = JournalLog::new("boxa".parse().unwrap(), Arc::default());
        for _ in 0..=MAX_RECORDED_RENEWALS {
            log.record_renewal(SecretRenewal {
                secret: "KEY".parse().unwrap(),
                cause: RenewalCause::Unauthorized,
                failure: Some("its command failed: exit status: 3".into()),
            });
        }
        drop(log);
        let first = serde_json::to_value(queue.recv().await.unwrap()).unwrap();
        let expected = serde_json::json!({
            "kind": "secretRenewal", "sandbox": "boxa", "secret": "KEY", "cause": "unauthorized",
            "failure": "its command failed: exit status: 3",
        });
        assert_eq!(first, expected);
        let (mut recorded, mut omitted) = (1, 0);
        while let Some(event) = queue.recv().await {
            if let Event::ConnectionsOmitted { count, .. } = event {
                omitted += count;
            } else {
                recorded += 1;
            }
        }
        assert_eq!((recorded, omitted), (MAX_RECORDED_RENEWALS, 1));
    }

    #[tokio::test]
    async fn a_denial_that_is_recorded_once_is_told_to_each_execution() {
        let denials = Arc::new(DenialWatchers::default());
        let (log, mut queue) = JournalLog::new("boxa".parse().unwrap(), Arc::clone(&denials));
        for _ in 0..2 {
            let watch = denials.watch();
            log.record(record_of("a.org", denied()));
            let told = watch.finish().denied;
            assert_eq!(told.len(), 1);
            assert_eq!(told[0].allow_with.as_deref(), Some("a.org"));
        }
        drop(log);
        assert!(matches!(queue.recv().await, Some(Event::Connection { .. })));
        assert!(matches!(queue.recv().await, Some(Event::ConnectionsOmitted { count: 1, .. })));
        assert!(queue.recv().await.is_none());
    }
}
