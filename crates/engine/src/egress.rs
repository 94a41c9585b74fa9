//! The network of a sandbox that may reach other hosts: the relay beside it, and the record of what it
//! reached. The walls let nothing out; what the relay connects to is all there is (C-50, C-51).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Network, Result, Sandbox, SandboxId, clean_foreign};
use stockade_network::{
    ConnectionLog, ConnectionRecord, ConnectionVerdict, Egress, EgressLimits, Relay,
    ResolverSettings, SharedNetwork,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::engine::{EngineInner, lock_mutex};
use crate::journal::{Event, Journal};
use crate::sandboxes::{RunningSandbox, SandboxOrder};

/// The most connections of one sandbox that were made and are recorded one by one.
const MAX_RECORDED_CONNECTIONS: usize = 1000;
/// The most different denials of one sandbox that are recorded: a guest makes as many as it likes.
const MAX_RECORDED_DENIALS: usize = 200;
/// Records that wait to be written.
const RECORD_QUEUE_LEN: usize = MAX_RECORDED_CONNECTIONS + MAX_RECORDED_DENIALS + 1;
/// How long the end of a sandbox waits for the records of its connections.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// What the networks of an engine's sandboxes share, made when it is first needed.
#[derive(Default)]
pub(crate) struct LazyNetwork(OnceLock<Arc<SharedNetwork>>);

impl LazyNetwork {
    fn get(&self, settings: &ResolverSettings) -> Result<Arc<SharedNetwork>> {
        if let Some(shared) = self.0.get() {
            return Ok(Arc::clone(shared));
        }
        let shared = Arc::new(SharedNetwork::new(settings)?);
        Ok(Arc::clone(self.0.get_or_init(|| shared)))
    }
}

/// The relay of a sandbox, and the task that writes its records.
pub(crate) struct SandboxNetwork {
    relay: Relay,
    records: JoinHandle<()>,
}

impl SandboxNetwork {
    /// Ends every connection and waits until each is recorded.
    async fn close(self) {
        drop(self.relay);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.records).await;
    }
}

impl EngineInner {
    /// Starts the relay of a sandbox, if its spec asks for one. No program has run in it yet.
    pub(crate) async fn open_network(
        &self,
        order: &SandboxOrder,
        sandbox: &dyn Sandbox,
    ) -> Result<Option<SandboxNetwork>> {
        let Network::Egress(rules) = &order.admitted.spec().network else {
            return Ok(None);
        };
        let shared = self.network.get(&self.config.resolver)?;
        let (log, queue) = JournalLog::new(sandbox.id().clone());
        let egress = Egress::new(rules.clone(), shared, EgressLimits::default(), Arc::new(log));
        let helper = sandbox.open_network().await?;
        let relay = Relay::start(helper, Arc::new(egress)).await?;
        let records = tokio::spawn(write_records(Arc::clone(&self.journal), queue));
        Ok(Some(SandboxNetwork { relay, records }))
    }

    /// Starts another relay in the place of the one there was: what it knew belongs to an earlier state.
    pub(crate) async fn reopen_network(&self, live: &RunningSandbox) -> Result<()> {
        self.close_network(live).await;
        let network = self.open_network(&live.order, live.sandbox.as_ref()).await?;
        *lock_mutex(&live.network) = network;
        Ok(())
    }

    /// Ends the network of a sandbox, before its walls are taken down.
    pub(crate) async fn close_network(&self, live: &RunningSandbox) {
        let network = lock_mutex(&live.network).take();
        if let Some(network) = network {
            network.close().await;
        }
    }
}

impl RunningSandbox {
    /// Refuses to go on without the network that was promised (C-52).
    pub(crate) fn check_network(&self) -> Result<()> {
        let wants = matches!(self.order.admitted.spec().network, Network::Egress(_));
        let has = lock_mutex(&self.network).as_ref().is_some_and(|it| it.relay.is_open());
        if !wants || has {
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
}

#[derive(Default)]
struct SeenConnections {
    made: usize,
    denied: HashSet<(String, Option<u16>)>,
    omitted: u64,
}

impl SeenConnections {
    /// Whether this one is recorded: a denial that was recorded before is not, nor one too many.
    fn admit_record(&mut self, record: &ConnectionRecord) -> bool {
        let is_denied = matches!(record.verdict, ConnectionVerdict::Denied { .. });
        let is_admitted = if is_denied {
            self.denied.len() < MAX_RECORDED_DENIALS
                && self.denied.insert((record.host.clone(), record.port))
        } else {
            self.made < MAX_RECORDED_CONNECTIONS
        };
        self.made += usize::from(is_admitted && !is_denied);
        self.omitted += u64::from(!is_admitted);
        is_admitted
    }
}

impl JournalLog {
    fn new(sandbox: SandboxId) -> (Self, mpsc::Receiver<Event>) {
        let (queue, events) = mpsc::channel(RECORD_QUEUE_LEN);
        (Self { sandbox, queue, seen: Mutex::default() }, events)
    }
}

impl ConnectionLog for JournalLog {
    fn record(&self, record: ConnectionRecord) {
        if !lock_mutex(&self.seen).admit_record(&record) {
            return;
        }
        let (allowed, reason) = match record.verdict {
            ConnectionVerdict::Allowed { rule } => (true, rule),
            ConnectionVerdict::Failed { reason } => (true, reason),
            ConnectionVerdict::Denied { reason } => (false, reason),
        };
        let event = Event::Connection {
            sandbox: self.sandbox.clone(),
            host: clean_foreign(&record.host),
            port: record.port,
            address: record.address,
            allowed,
            reason: clean_foreign(&reason),
            sent: record.sent,
            received: record.received,
        };
        if self.queue.try_send(event).is_err() {
            lock_mutex(&self.seen).omitted += 1;
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
    use super::*;

    fn record_of(host: &str, verdict: ConnectionVerdict) -> ConnectionRecord {
        let (sent, received) = (0, 0);
        let host = host.to_owned();
        ConnectionRecord { host, port: None, address: None, via: None, verdict, sent, received }
    }

    #[test]
    fn denials_do_not_use_up_the_room_for_connections() {
        let (denied, allowed) = (
            ConnectionVerdict::Denied { reason: String::new() },
            ConnectionVerdict::Allowed { rule: String::new() },
        );
        let mut seen = SeenConnections::default();
        let admitted =
            (0..5000).filter(|it| seen.admit_record(&record_of(&it.to_string(), denied.clone())));
        assert_eq!(admitted.count(), MAX_RECORDED_DENIALS);
        assert!(seen.admit_record(&record_of("a.org", allowed)));
        assert_eq!(seen.omitted, 5000 - MAX_RECORDED_DENIALS as u64);
    }
}
