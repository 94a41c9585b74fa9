//! The network of a sandbox that may reach other hosts: the relay beside it, and the record of what it
//! reached. The walls let nothing out; what the relay connects to is all there is (C-50, C-51).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};

use stockade_core::{Network, Result, Sandbox, SandboxId, clean_foreign};
use stockade_network::{
    ConnectionLog, ConnectionRecord, ConnectionVerdict, Egress, EgressLimits, NameResolver, Relay,
    ResolverSettings,
};

use crate::engine::{EngineInner, lock_mutex};
use crate::journal::{Event, Journal};
use crate::sandboxes::{RunningSandbox, SandboxOrder};

/// The most connections of one sandbox that are recorded one by one.
const MAX_RECORDED_CONNECTIONS: usize = 1000;

/// The resolver of an engine, made when it is first needed.
#[derive(Default)]
pub(crate) struct SharedResolver(OnceLock<Arc<NameResolver>>);

impl SharedResolver {
    fn get(&self, settings: &ResolverSettings) -> Result<Arc<NameResolver>> {
        if let Some(resolver) = self.0.get() {
            return Ok(Arc::clone(resolver));
        }
        let resolver = Arc::new(NameResolver::new(settings)?);
        Ok(Arc::clone(self.0.get_or_init(|| resolver)))
    }
}

impl EngineInner {
    /// Starts the relay of a sandbox, if its spec asks for one. No program has run in it yet.
    pub(crate) async fn open_network(
        &self,
        order: &SandboxOrder,
        sandbox: &dyn Sandbox,
    ) -> Result<Option<Relay>> {
        let Network::Egress(rules) = &order.admitted.spec().network else {
            return Ok(None);
        };
        let resolver = self.resolver.get(&self.config.resolver)?;
        let log = JournalLog::new(sandbox.id().clone(), Arc::clone(&self.journal));
        let limits = EgressLimits::default();
        let egress = Egress::new(rules.clone(), resolver, limits, Arc::new(log));
        let helper = sandbox.open_network().await?;
        Relay::start(helper, Arc::new(egress)).await.map(Some)
    }

    /// Starts another relay where the one there was has ended with the state that it belonged to.
    pub(crate) async fn reopen_network(&self, live: &RunningSandbox) -> Result<()> {
        if lock_mutex(&live.network).as_ref().is_some_and(Relay::is_open) {
            return Ok(());
        }
        let relay = self.open_network(&live.order, live.sandbox.as_ref()).await?;
        *lock_mutex(&live.network) = relay;
        Ok(())
    }
}

/// Records connections in the journal, as many as are of use to a reader.
struct JournalLog {
    sandbox: SandboxId,
    journal: Arc<Journal>,
    seen: Mutex<SeenConnections>,
}

#[derive(Default)]
struct SeenConnections {
    recorded: usize,
    denied: HashSet<(String, Option<u16>)>,
    omitted: u64,
}

impl JournalLog {
    fn new(sandbox: SandboxId, journal: Arc<Journal>) -> Self {
        Self { sandbox, journal, seen: Mutex::default() }
    }

    /// Whether this one is recorded: a denial that was recorded before is not, nor one too many.
    fn admit_record(&self, record: &ConnectionRecord) -> bool {
        let mut seen = lock_mutex(&self.seen);
        let is_denied = matches!(record.verdict, ConnectionVerdict::Denied { .. });
        let is_full = seen.recorded >= MAX_RECORDED_CONNECTIONS;
        let is_known =
            is_denied && !is_full && !seen.denied.insert((record.host.clone(), record.port));
        if is_full || is_known {
            seen.omitted += 1;
        } else {
            seen.recorded += 1;
        }
        !is_full && !is_known
    }

    /// From another thread: the journal waits for a lock and for a disk.
    fn append(&self, event: Event) {
        let journal = Arc::clone(&self.journal);
        let append = move || drop(journal.append(event));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(append)),
            Err(_) => append(),
        }
    }
}

impl ConnectionLog for JournalLog {
    fn record(&self, record: ConnectionRecord) {
        if !self.admit_record(&record) {
            return;
        }
        let (allowed, reason) = match record.verdict {
            ConnectionVerdict::Allowed { rule } => (true, rule),
            ConnectionVerdict::Failed { reason } => (true, reason),
            ConnectionVerdict::Denied { reason } => (false, reason),
        };
        self.append(Event::Connection {
            sandbox: self.sandbox.clone(),
            host: clean_foreign(&record.host),
            port: record.port,
            address: record.address,
            allowed,
            reason: clean_foreign(&reason),
            sent: record.sent,
            received: record.received,
        });
    }
}

impl Drop for JournalLog {
    fn drop(&mut self) {
        let count = lock_mutex(&self.seen).omitted;
        if count > 0 {
            self.append(Event::ConnectionsOmitted { sandbox: self.sandbox.clone(), count });
        }
    }
}
