//! The relay of one sandbox: reads what the network helper asks for, and serves each connection in a task of
//! its own. It ends with the helper, and the helper with it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stockade_agent::protocol::network::{FromHelper, Setup, ToHelper};
use stockade_core::{Error, ErrorCode, Process, ProcessControl, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::connection::{OpenRequest, refuse_busy, serve_connection};
use crate::frame_reader::HelperFrameReader;
use crate::outbox::HelperOutbox;
use crate::policy::{Egress, MAX_SHARED_CONNECTIONS};
use crate::port::PortStream;
use crate::stream::{BrokenProtocol, Streams};

/// Where the helper answers name queries, and where its proxies are.
pub const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 63, 0, 53);
const DNS_PORT: u16 = 53;
const HTTP_PORT: u16 = 3128;
const SOCKS_PORT: u16 = 1080;

/// The variables by which programs inside find the proxies. Those that ignore them find the same way by
/// looking up names.
pub const GUEST_ENVIRONMENT: [(&str, &str); 8] = [
    ("HTTP_PROXY", "http://127.63.0.53:3128"),
    ("HTTPS_PROXY", "http://127.63.0.53:3128"),
    ("ALL_PROXY", "http://127.63.0.53:3128"),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("http_proxy", "http://127.63.0.53:3128"),
    ("https_proxy", "http://127.63.0.53:3128"),
    ("all_proxy", "http://127.63.0.53:3128"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
];

/// How long the helper may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a port inside may take to answer.
const PORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections to ports inside at once.
const MAX_PORT_CONNECTIONS: usize = 256;

/// The network of one sandbox. Dropping it ends every connection.
pub struct Relay {
    writing: WritingTask,
    reader: JoinHandle<()>,
}

/// What sends to the helper. It ends with this value.
struct WritingTask {
    shared: Arc<RelayShared>,
    task: JoinHandle<()>,
}

impl WritingTask {
    fn start(shared: Arc<RelayShared>) -> Self {
        let task = tokio::spawn(write_messages(Arc::clone(&shared)));
        Self { shared, task }
    }

    fn end(&self) {
        self.shared.outbox.close();
        self.task.abort();
        self.shared.streams.reset_all();
    }
}

impl Drop for WritingTask {
    fn drop(&mut self) {
        self.end();
    }
}

struct RelayShared {
    /// What decides about other hosts. Absent where only ports inside are connected to.
    egress: Option<Arc<Egress>>,
    outbox: Arc<HelperOutbox>,
    streams: Arc<Streams>,
    /// The number of the last stream that was opened from this side: even.
    last_own: Mutex<u32>,
    port_slots: Arc<Semaphore>,
    control: Arc<dyn ProcessControl>,
}

impl RelayShared {
    /// What decides about other hosts. A helper for ports alone was told to offer none, and may not ask.
    fn egress(&self) -> std::result::Result<&Arc<Egress>, BrokenProtocol> {
        self.egress
            .as_ref()
            .ok_or(BrokenProtocol("it asks for another host, and is for ports alone"))
    }

    fn take_number(&self) -> u32 {
        let mut last = self.last_own.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 2;
        *last
    }
}

impl Relay {
    /// Takes a helper into use. Returns once it listens; until then no program may run.
    pub async fn start(helper: Process, egress: Arc<Egress>) -> Result<Self> {
        Self::start_with(helper, Some(egress), Some(default_setup())).await
    }

    /// Takes a helper into use for [`Relay::connect`] alone: it listens nowhere, and asking for another host
    /// ends it.
    pub async fn start_for_ports(helper: Process) -> Result<Self> {
        Self::start_with(helper, None, None).await
    }

    async fn start_with(
        helper: Process,
        egress: Option<Arc<Egress>>,
        setup: Option<Setup>,
    ) -> Result<Self> {
        let Process { events, control } = helper;
        let shared = Arc::new(RelayShared {
            egress,
            outbox: Arc::default(),
            streams: Arc::default(),
            last_own: Mutex::new(0),
            port_slots: Arc::new(Semaphore::new(MAX_PORT_CONNECTIONS)),
            control,
        });
        shared.outbox.send(&ToHelper::Setup(setup));
        let writing = WritingTask::start(Arc::clone(&shared));
        let mut reader = HelperFrameReader::new(events);
        let ready = timeout(READY_TIMEOUT, reader.wait_until_ready()).await;
        if let Err(reason) = ready.unwrap_or_else(|_| Err("it does not answer".into())) {
            let message = format!("the sandbox's network cannot be set up: {reason}");
            return Err(Error::new(ErrorCode::System, "network", message));
        }
        let reader = tokio::spawn(read_messages(shared, reader));
        Ok(Self { writing, reader })
    }

    /// What decides about connections to other hosts, where there may be any.
    pub fn egress(&self) -> Option<&Arc<Egress>> {
        self.writing.shared.egress.as_ref()
    }

    /// Whether the helper is there.
    pub fn is_open(&self) -> bool {
        !self.reader.is_finished() && !self.writing.shared.outbox.is_closed()
    }

    /// Ends the helper and every connection, also those that others still wait for.
    pub fn close(&self) {
        self.reader.abort();
        self.writing.end();
    }

    /// Connects to a port on the sandbox's own loopback.
    pub async fn connect(&self, port: u16) -> Result<PortStream> {
        let shared = &self.writing.shared;
        let slot = Arc::clone(&shared.port_slots).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_PORT_CONNECTIONS} connections to its ports are open");
            connect_error(ErrorCode::TooLarge, message).remedy("wait until one has ended")
        })?;
        let number = shared.take_number();
        let stream = shared.streams.open(number, &shared.outbox);
        shared.outbox.send(&ToHelper::Connect(number, port));
        // Checked after the stream was opened: a relay that ends from here on resets it.
        let gone = || connect_error(ErrorCode::Gone, "the sandbox's network helper is gone".into());
        if !self.is_open() {
            return Err(gone());
        }
        let opened = timeout(PORT_TIMEOUT, stream.wait_until_opened()).await;
        match opened {
            Ok(Ok(())) => Ok(PortStream::new(stream, slot)),
            Ok(Err(_)) if !self.is_open() => Err(gone()),
            Ok(Err(error)) => {
                let message = format!("nothing listens at port {port} of the sandbox");
                Err(connect_error(ErrorCode::NotFound, message)
                    .remedy("start the server, or see at which port it listens")
                    .source(error))
            }
            Err(_) => {
                let message = format!("port {port} of the sandbox does not answer");
                Err(connect_error(ErrorCode::TooSlow, message))
            }
        }
    }
}

fn connect_error(code: ErrorCode, message: String) -> Error {
    Error::new(code, "connect", message)
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Addresses are invented from a random one on, so that those of an earlier life lead nowhere.
fn default_setup() -> Setup {
    let random = RandomState::new().build_hasher().finish().to_be_bytes();
    Setup {
        address: NAME_SERVER.octets(),
        first: [127, 64 | random[0] & 0x1F, random[1], random[2] | 1],
        dns_port: DNS_PORT,
        http_port: HTTP_PORT,
        socks_port: SOCKS_PORT,
    }
}

async fn write_messages(shared: Arc<RelayShared>) {
    while let Some(bytes) = shared.outbox.take().await {
        if shared.control.write_stdin(bytes.into()).await.is_err() {
            break;
        }
    }
    shared.outbox.close();
}

/// Reads until the helper ends or breaks the protocol: then every connection is over.
async fn read_messages(shared: Arc<RelayShared>, mut reader: HelperFrameReader) {
    let mut connections = JoinSet::new();
    while let Ok(body) = reader.next().await {
        // A helper that asks and does not read its answers waits here.
        if !shared.outbox.wait_for_room().await {
            break;
        }
        while connections.try_join_next().is_some() {}
        let Ok(message) = FromHelper::decode(&body) else { break };
        if handle_message(&shared, message, &mut connections).is_err() {
            break;
        }
    }
    shared.outbox.close();
    shared.streams.reset_all();
}

fn handle_message(
    shared: &Arc<RelayShared>,
    message: FromHelper<'_>,
    connections: &mut JoinSet<()>,
) -> std::result::Result<(), BrokenProtocol> {
    let streams = &shared.streams;
    match message {
        FromHelper::Ready | FromHelper::Failed(_) => {
            Err(BrokenProtocol("it said twice that it listens"))
        }
        FromHelper::Lookup(query, name) => {
            let ports = shared.egress()?.look_up(name);
            shared.outbox.send(&ToHelper::Found(query, ports));
            Ok(())
        }
        FromHelper::Open { stream, host, port, via } => {
            if stream % 2 == 0 || streams.is_open(stream) {
                return Err(BrokenProtocol("it used a number that is not free"));
            }
            let request = OpenRequest { host: host.to_owned(), port, via };
            open_connection(shared, shared.egress()?, stream, request, connections);
            Ok(())
        }
        FromHelper::Opened(number) => streams.change(number, |stream| {
            stream.opened();
            Ok(())
        }),
        FromHelper::Data(number, data) => streams.change(number, |stream| stream.push(data)),
        FromHelper::End(number) => streams.change(number, |stream| {
            stream.end();
            Ok(())
        }),
        FromHelper::Reset(number) => streams.change(number, |stream| {
            stream.reset();
            Ok(())
        }),
        FromHelper::Credit(number, amount) => streams.change(number, |stream| stream.grant(amount)),
    }
}

fn open_connection(
    shared: &RelayShared,
    egress: &Arc<Egress>,
    number: u32,
    request: OpenRequest,
    connections: &mut JoinSet<()>,
) {
    let slot = find_room(shared, egress);
    let stream = shared.streams.open(number, &shared.outbox).metered(Arc::clone(&egress.meter));
    let slot = match slot {
        Ok(slot) => slot,
        Err(reason) => return refuse_busy(egress, stream, &request, &reason),
    };
    let egress = Arc::clone(egress);
    connections.spawn(async move {
        serve_connection(egress, stream, request).await;
        drop(slot);
    });
}

/// A slot among the connections of all sandboxes. Why there is none for one more of this sandbox, otherwise.
fn find_room(
    shared: &RelayShared,
    egress: &Egress,
) -> std::result::Result<OwnedSemaphorePermit, String> {
    let most = egress.limits.connections;
    if shared.streams.count_opened_inside() >= most {
        return Err(format!(
            "too many connections: `network.connections` lets the sandbox have {most} at once"
        ));
    }
    Arc::clone(&egress.shared.slots).try_acquire_owned().map_err(|_| {
        let most = MAX_SHARED_CONNECTIONS;
        format!("too many connections: all sandboxes of the engine have {most} at once")
    })
}
