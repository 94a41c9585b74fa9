//! A helper played by the test.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_agent::protocol::network::{FromHelper, Setup, ToHelper, Via};
use stockade_agent::protocol::split_frame;
use stockade_core::{
    EgressRule, Exit, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessEvents, Result,
    StreamId,
};
use stockade_network::{
    ConnectionLog, ConnectionRecord, Egress, EgressLimits, HostApprover, Relay, ResolverSettings,
    SecretRenewal, SecretSet, SharedNetwork,
};
use tokio::sync::{RwLock, mpsc};

/// Longer than anything takes here on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

struct HelperEvents(mpsc::UnboundedReceiver<Bytes>, Arc<HelperPipe>);

#[async_trait]
impl ProcessEvents for HelperEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        Some(match self.0.recv().await {
            Some(data) => {
                self.1.read_count.fetch_add(1, Ordering::SeqCst);
                ProcessEvent::Output(StreamId::Stdout, data)
            }
            None => ProcessEvent::Exit(Exit::from(ExitStatus::Exited(0))),
        })
    }
}

/// The pipe to the helper, as a test sees it and stops it.
#[derive(Default)]
pub struct HelperPipe {
    /// Nothing is written while a test holds it for itself.
    pub gate: RwLock<()>,
    /// How many messages of the helper were read.
    pub read_count: AtomicUsize,
    /// How many bytes were written at once, at the most.
    pub longest_write: AtomicUsize,
}

struct HelperControl(mpsc::UnboundedSender<Bytes>, Arc<HelperPipe>);

#[async_trait]
impl ProcessControl for HelperControl {
    async fn kill(&self) -> Result<()> {
        Ok(())
    }

    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        let _open = self.1.gate.read().await;
        self.1.longest_write.fetch_max(data.len(), Ordering::SeqCst);
        // A test that has ended listens no more.
        let _ = self.0.send(data);
        Ok(())
    }
}

/// Keeps what was recorded.
#[derive(Default)]
pub struct KeptLog(Mutex<Vec<ConnectionRecord>>, Mutex<Vec<EgressRule>>, Mutex<Vec<SecretRenewal>>);

impl ConnectionLog for KeptLog {
    fn record(&self, record: ConnectionRecord) {
        self.0.lock().unwrap().push(record);
    }

    fn observe(&self, rule: EgressRule) {
        self.1.lock().unwrap().push(rule);
    }

    fn record_renewal(&self, renewal: SecretRenewal) {
        self.2.lock().unwrap().push(renewal);
    }
}

impl KeptLog {
    pub fn records(&self) -> Vec<ConnectionRecord> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until so many connections are recorded.
    pub async fn wait_for_records(&self, count: usize) -> Vec<ConnectionRecord> {
        let all = async {
            while self.records().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, all).await.expect("it is recorded");
        self.records()
    }

    /// The questions for values of secrets.
    pub fn renewals(&self) -> Vec<SecretRenewal> {
        self.2.lock().unwrap().clone()
    }

    /// The rules that would have been enough, in text.
    pub fn observed(&self) -> Vec<String> {
        self.1.lock().unwrap().iter().map(ToString::to_string).collect()
    }
}

/// What the engine says, with its own data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Found(u32, Vec<u16>),
    Opened(u32),
    Refused(u32, String),
    Data(u32, Vec<u8>),
    End(u32),
    Reset(u32),
    Credit(u32, u32),
    Connect(u32, u16),
}

pub struct TestHelper {
    says: mpsc::UnboundedSender<Bytes>,
    hears: mpsc::UnboundedReceiver<Bytes>,
    heard: Vec<u8>,
    waiting: VecDeque<Said>,
    /// Where it was told to listen.
    pub setup: Option<Setup>,
    pub relay: Option<Relay>,
    pub pipe: Arc<HelperPipe>,
    pub egress: Arc<Egress>,
    pub log: Arc<KeptLog>,
}

impl TestHelper {
    /// A relay under these rules.
    pub async fn start(rules: &[String]) -> Self {
        Self::start_egress(rules, EgressLimits::default(), |egress| egress).await
    }

    /// The same, with secrets.
    pub async fn start_with_secrets(rules: &[String], secrets: Option<Arc<SecretSet>>) -> Self {
        let limits = EgressLimits::default();
        Self::start_egress(rules, limits, |egress| egress.with_secrets(secrets)).await
    }

    /// A relay under these rules and limits.
    pub async fn start_limited(rules: &[String], limits: EgressLimits) -> Self {
        Self::start_egress(rules, limits, |egress| egress).await
    }

    /// A relay under these rules, with one who decides about hosts that they do not cover.
    pub async fn start_asking(rules: &[String], approver: Arc<dyn HostApprover>) -> Self {
        let limits = EgressLimits::default();
        Self::start_egress(rules, limits, |egress| egress.with_approver(approver)).await
    }

    /// A relay under these rules and limits, with what this adds.
    pub async fn start_egress(
        rules: &[String],
        limits: EgressLimits,
        change: impl FnOnce(Egress) -> Egress,
    ) -> Self {
        let (mut helper, process) = Self::new(rules, limits, silent_network(), change);
        helper.relay = Some(Relay::start(process, helper.egress.clone()).await.unwrap());
        helper
    }

    /// A relay under these rules that reaches other hosts so.
    pub async fn start_shared(rules: &[String], shared: SharedNetwork) -> Self {
        let limits = EgressLimits::default();
        let (mut helper, process) = Self::new(rules, limits, shared, |egress| egress);
        helper.relay = Some(Relay::start(process, helper.egress.clone()).await.unwrap());
        helper
    }

    /// A relay for ports alone.
    pub async fn start_for_ports() -> Self {
        let (mut helper, process) =
            Self::new(&[], EgressLimits::default(), silent_network(), |egress| egress);
        helper.relay = Some(Relay::start_for_ports(process).await.unwrap());
        helper
    }

    fn new(
        rules: &[String],
        limits: EgressLimits,
        shared: SharedNetwork,
        change: impl FnOnce(Egress) -> Egress,
    ) -> (Self, Process) {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let (says, events) = mpsc::unbounded_channel();
        let (control, hears) = mpsc::unbounded_channel();
        let log = Arc::new(KeptLog::default());
        let egress = Egress::new(rules, Arc::new(shared), limits, log.clone());
        let egress = Arc::new(change(egress));
        let pipe = Arc::new(HelperPipe::default());
        let process = Process {
            events: Box::new(HelperEvents(events, Arc::clone(&pipe))),
            control: Arc::new(HelperControl(control, Arc::clone(&pipe))),
        };
        let (heard, waiting) = (Vec::new(), VecDeque::new());
        let (setup, relay) = (None, None);
        let helper = Self { says, hears, heard, waiting, setup, relay, pipe, egress, log };
        helper.say(&FromHelper::Ready);
        (helper, process)
    }

    pub fn say(&self, message: &FromHelper<'_>) {
        let mut frame = Vec::new();
        message.encode(&mut frame).unwrap();
        self.say_bytes(&frame);
    }

    pub fn say_bytes(&self, bytes: &[u8]) {
        // The relay may have ended already.
        let _ = self.says.send(Bytes::copy_from_slice(bytes));
    }

    pub fn open(&self, stream: u32, host: &str, port: u16) {
        self.say(&FromHelper::Open { stream, host, port, via: Via::Connect });
    }

    /// The next thing that the engine says; nothing after its last word.
    pub async fn hear(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = self.waiting.pop_front() {
                return Some(said);
            }
            let next = tokio::time::timeout(STEP_TIMEOUT, self.hears.recv()).await;
            self.heard.extend_from_slice(&next.expect("the engine says something")?);
            self.decode_heard();
        }
    }

    fn decode_heard(&mut self) {
        while let Some((body, rest)) = split_frame(&self.heard).unwrap() {
            let said = match ToHelper::decode(body).unwrap() {
                ToHelper::Setup(setup) => {
                    self.setup = setup;
                    None
                }
                ToHelper::Found(query, ports) => Some(Said::Found(query, ports)),
                ToHelper::Opened(stream) => Some(Said::Opened(stream)),
                ToHelper::Refused(stream, _, reason) => Some(Said::Refused(stream, reason.into())),
                ToHelper::Data(stream, data) => Some(Said::Data(stream, data.to_vec())),
                ToHelper::End(stream) => Some(Said::End(stream)),
                ToHelper::Reset(stream) => Some(Said::Reset(stream)),
                ToHelper::Credit(stream, amount) => Some(Said::Credit(stream, amount)),
                ToHelper::Connect(stream, port) => Some(Said::Connect(stream, port)),
            };
            self.waiting.extend(said);
            self.heard = rest.to_vec();
        }
    }

    /// Hears until the engine says this.
    pub async fn hear_until(&mut self, expected: &Said) {
        while self.hear().await.expect("the engine goes on") != *expected {}
    }

    /// Waits until the relay has ended.
    pub async fn wait_for_end(&self) {
        let ended = async {
            while self.relay.as_ref().is_some_and(Relay::is_open) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, ended).await.expect("the relay ends");
    }

    /// Waits until so many connections are recorded.
    pub async fn wait_for_records(&self, count: usize) -> Vec<ConnectionRecord> {
        self.log.wait_for_records(count).await
    }
}

/// A network whose name server never answers: a test resolves nothing but `localhost`.
fn silent_network() -> SharedNetwork {
    network_asking("127.0.0.1:9".parse().unwrap())
}

/// A network that asks this name server.
pub fn network_asking(server: SocketAddr) -> SharedNetwork {
    SharedNetwork::new(&ResolverSettings { servers: vec![server] }).unwrap()
}

/// A rule for a server.
pub fn rule_for(address: SocketAddr) -> String {
    address.to_string()
}
