//! The relay of one sandbox: reads what the network helper asks for, and serves each connection in a task of
//! its own. It ends with the helper, and the helper with it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stockade_agent::protocol::network::{FromHelper, RefusalKind, Setup, ToHelper};
use stockade_agent::protocol::{HEADER_BYTES, frame_length};
use stockade_core::{
    Error, ErrorCode, Process, ProcessControl, ProcessEvent, ProcessEvents, Result, clean_foreign,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::connection::{OpenRequest, serve_connection};
use crate::outbox::Outbox;
use crate::policy::Egress;
use crate::stream::{Broken, GuestStream, Streams};

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
    ("ALL_PROXY", "socks5h://127.63.0.53:1080"),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("http_proxy", "http://127.63.0.53:3128"),
    ("https_proxy", "http://127.63.0.53:3128"),
    ("all_proxy", "socks5h://127.63.0.53:1080"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
];

/// How long the helper may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

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
}

impl Drop for WritingTask {
    fn drop(&mut self) {
        self.shared.outbox.close();
        self.task.abort();
        self.shared.streams.reset_all();
    }
}

struct RelayShared {
    egress: Arc<Egress>,
    outbox: Arc<Outbox>,
    streams: Arc<Streams>,
    /// The number of the last stream that was opened from this side: even.
    last_own: Mutex<u32>,
    control: Arc<dyn ProcessControl>,
}

impl Relay {
    /// Takes a helper into use. Returns once it listens; until then no program may run.
    pub async fn start(helper: Process, egress: Arc<Egress>) -> Result<Self> {
        Self::start_with(helper, egress, default_setup()).await
    }

    async fn start_with(helper: Process, egress: Arc<Egress>, setup: Setup) -> Result<Self> {
        let Process { events, control } = helper;
        let shared = Arc::new(RelayShared {
            egress,
            outbox: Arc::default(),
            streams: Arc::default(),
            last_own: Mutex::new(0),
            control,
        });
        shared.outbox.send(&ToHelper::Setup(setup));
        let writing = WritingTask::start(Arc::clone(&shared));
        let mut reader = FrameReader { events, buffer: BytesMut::new() };
        let ready = timeout(READY_TIMEOUT, wait_until_ready(&mut reader)).await;
        if let Err(reason) = ready.unwrap_or_else(|_| Err("it does not answer".into())) {
            let message = format!("the sandbox's network cannot be set up: {reason}");
            return Err(Error::new(ErrorCode::System, "network", message));
        }
        let reader = tokio::spawn(read_messages(shared, reader));
        Ok(Self { writing, reader })
    }

    /// What decides about connections.
    pub fn egress(&self) -> &Arc<Egress> {
        &self.writing.shared.egress
    }

    /// Whether the helper is there.
    pub fn is_open(&self) -> bool {
        !self.reader.is_finished()
    }

    /// Connects to a port on the sandbox's own loopback.
    pub async fn connect(&self, port: u16) -> Result<GuestStream> {
        let shared = &self.writing.shared;
        let number = {
            let mut last = shared.last_own.lock().unwrap_or_else(PoisonError::into_inner);
            *last += 2;
            *last
        };
        let stream = shared.streams.open(number, &shared.outbox);
        shared.outbox.send(&ToHelper::Connect(number, port));
        stream.wait_until_opened().await.map_err(|error| {
            let message = format!("nothing listens at port {port} of the sandbox");
            Error::new(ErrorCode::NotFound, "connect", message).source(error)
        })?;
        Ok(stream)
    }
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

/// Reads whole frames.
struct FrameReader {
    events: Box<dyn ProcessEvents>,
    buffer: BytesMut,
}

impl FrameReader {
    /// The body of the next frame.
    async fn next(&mut self) -> std::result::Result<Bytes, String> {
        loop {
            let length = frame_length(&self.buffer).map_err(|error| error.to_string())?;
            if let Some(length) = length.filter(|it| self.buffer.len() >= HEADER_BYTES + it) {
                let frame = self.buffer.split_to(HEADER_BYTES + length).freeze();
                return Ok(frame.slice(HEADER_BYTES..));
            }
            match self.events.next().await {
                Some(ProcessEvent::Output(_, data)) => self.buffer.extend_from_slice(&data),
                Some(ProcessEvent::Exit(exit)) => {
                    return Err(format!("it ended: {:?}", exit.status));
                }
                None => return Err("it ended".into()),
            }
        }
    }
}

async fn wait_until_ready(reader: &mut FrameReader) -> std::result::Result<(), String> {
    let body = reader.next().await?;
    match FromHelper::decode(&body) {
        Ok(FromHelper::Ready) => Ok(()),
        Ok(FromHelper::Failed(reason)) => Err(clean_foreign(reason)),
        Ok(
            FromHelper::Lookup(..)
            | FromHelper::Open { .. }
            | FromHelper::Opened(_)
            | FromHelper::Data(..)
            | FromHelper::End(_)
            | FromHelper::Reset(_)
            | FromHelper::Credit(..),
        ) => Err("it spoke out of turn".into()),
        Err(error) => Err(error.to_string()),
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
async fn read_messages(shared: Arc<RelayShared>, mut reader: FrameReader) {
    let mut connections = JoinSet::new();
    let mut last_stream = 0;
    while let Ok(body) = reader.next().await {
        // A helper that asks and does not read its answers waits here.
        if !shared.outbox.wait_for_room().await {
            break;
        }
        while connections.try_join_next().is_some() {}
        let Ok(message) = FromHelper::decode(&body) else { break };
        if handle_message(&shared, message, &mut last_stream, &mut connections).is_err() {
            break;
        }
    }
    shared.outbox.close();
    shared.streams.reset_all();
}

fn handle_message(
    shared: &Arc<RelayShared>,
    message: FromHelper<'_>,
    last_stream: &mut u32,
    connections: &mut JoinSet<()>,
) -> std::result::Result<(), Broken> {
    let streams = &shared.streams;
    match message {
        FromHelper::Ready | FromHelper::Failed(_) => Err(Broken("it said twice that it listens")),
        FromHelper::Lookup(query, name) => {
            let ports = shared.egress.look_up(name);
            shared.outbox.send(&ToHelper::Found(query, ports));
            Ok(())
        }
        FromHelper::Open { stream, host, port, via } => {
            if stream % 2 == 0 || stream <= *last_stream {
                return Err(Broken("it used a number twice"));
            }
            *last_stream = stream;
            let request = OpenRequest { host: host.to_owned(), port, via };
            open_connection(shared, stream, request, connections);
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
    shared: &Arc<RelayShared>,
    number: u32,
    request: OpenRequest,
    connections: &mut JoinSet<()>,
) {
    let is_full = shared.streams.count() >= shared.egress.limits.connections;
    let slot = Arc::clone(&shared.egress.shared.slots).try_acquire_owned();
    let stream = shared.streams.open(number, &shared.outbox);
    let Ok(slot) = slot.map_err(drop).and_then(|slot| if is_full { Err(()) } else { Ok(slot) })
    else {
        return stream.refuse(RefusalKind::Busy, "there are too many connections");
    };
    let egress = Arc::clone(&shared.egress);
    connections.spawn(async move {
        serve_connection(egress, stream, request).await;
        drop(slot);
    });
}
