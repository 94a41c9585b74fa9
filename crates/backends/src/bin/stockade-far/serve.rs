//! One connection: reads, writes, and ends everything when the peer is not heard any more.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use stockade_backends::native::Native;
use stockade_backends::peer::frame::{Frame, FrameError};
use stockade_backends::peer::protocol::{PeerEvent, RemoteRequest};
use stockade_core::Result;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::agent::AGENT_TIMEOUT;
use crate::base::FarBase;
use crate::identity::Papers;
use crate::session::FarSession;
use crate::streams::{InputStream, OutputStream};
use crate::watch::Watches;

/// Timeout after which a silent peer counts as gone; it sends a frame at least every two seconds.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Capacity of the queue of each direction, in frames.
const QUEUE_CAPACITY: usize = 8;

/// Where frames for the peer go.
#[derive(Clone)]
pub struct Outbox(mpsc::Sender<OutboxItem>);

/// What waits for the peer.
enum OutboxItem {
    Frame(Bytes),
    /// The last before this side stands still.
    Last(Bytes),
    /// What follows is for the peer of a copy; what is before it is dropped.
    Anew,
}

/// How this side goes on after it stood still.
pub enum ResumeMode {
    /// As if nothing had happened.
    On,
    /// As a copy: what waits is thrown away.
    Anew,
}

impl Outbox {
    /// Waits while the peer does not read.
    pub async fn send_frame(&self, frame: Frame) -> Result<(), FrameError> {
        self.push_item(OutboxItem::Frame(frame.encode()?)).await
    }

    /// What follows is for the peer of this copy.
    pub async fn mark_new_peer(&self) -> Result<(), FrameError> {
        self.push_item(OutboxItem::Anew).await
    }

    async fn push_item(&self, item: OutboxItem) -> Result<(), FrameError> {
        let gone = |_| FrameError::Io(io::ErrorKind::BrokenPipe.into());
        self.0.send(item).await.map_err(gone)
    }
}

/// Where bytes for the agent go, once there is one.
pub type AgentInbox = Arc<Mutex<Option<mpsc::Sender<Bytes>>>>;

/// What is asked of this side, in order.
pub enum SessionRequest {
    /// A piece of the other copy of the workspace.
    Piece(Bytes),
    /// A request.
    Ask(RemoteRequest),
    /// Something that cannot be read.
    Nonsense(serde_json::Error),
}

/// How the peer is known to be there.
pub enum PeerLiveness {
    /// It speaks at least once in so long.
    Within(Duration),
    /// It cannot go without this one, which is a machine of its own.
    InACopy(Papers),
}

/// Serves one sandbox to a peer that has read the hello. Nothing of it is left when this returns.
pub async fn serve_connection(
    native: Native,
    base: Result<FarBase>,
    (input, output): (InputStream, OutputStream),
    heard: PeerLiveness,
) -> io::Result<()> {
    let (silence, papers) = match heard {
        PeerLiveness::Within(silence) => (Some(silence), None),
        PeerLiveness::InACopy(papers) => (None, Some(papers)),
    };
    let (outbox, waiting) = mpsc::channel(QUEUE_CAPACITY);
    let (requests, asked) = mpsc::channel(QUEUE_CAPACITY);
    let (over, to_agent) = (Arc::new(Notify::new()), AgentInbox::default());
    let watches = Arc::new(Watches::new(Outbox(outbox.clone())));
    let (ways, way) = mpsc::channel(1);
    let reader = FrameReader {
        requests,
        agent: Arc::clone(&to_agent),
        watches: Arc::clone(&watches),
        out: Outbox(outbox.clone()),
        ways: ways.clone(),
    };
    tokio::spawn(write_frames(waiting, output, way, Arc::clone(&over)));
    tokio::spawn(reader.read_frames(input, silence, Arc::clone(&over)));
    let mut session =
        FarSession::new(native, base, (Outbox(outbox), ways), to_agent, watches, papers);
    tokio::select! {
        () = over.notified() => {}
        () = session.run_requests(asked) => {}
    }
    session.shut_down().await
}

async fn write_frames(
    mut waiting: mpsc::Receiver<OutboxItem>,
    mut output: OutputStream,
    mut way: mpsc::Receiver<ResumeMode>,
    over: Arc<Notify>,
) {
    while let Some(item) = waiting.recv().await {
        let (bytes, last) = match item {
            OutboxItem::Frame(bytes) => (bytes, false),
            OutboxItem::Last(bytes) => (bytes, true),
            OutboxItem::Anew => continue,
        };
        if output.write_all(&bytes).await.is_err() {
            break;
        }
        if last {
            stand_still(&mut waiting, &mut way).await;
        }
    }
    over.notify_one();
}

/// Until it is said how it goes on.
async fn stand_still(
    waiting: &mut mpsc::Receiver<OutboxItem>,
    way: &mut mpsc::Receiver<ResumeMode>,
) {
    if let Some(ResumeMode::Anew) = way.recv().await {
        while let Some(OutboxItem::Frame(_) | OutboxItem::Last(_)) = waiting.recv().await {}
    }
}

/// Sorts what arrives.
struct FrameReader {
    requests: mpsc::Sender<SessionRequest>,
    agent: AgentInbox,
    watches: Arc<Watches>,
    out: Outbox,
    ways: mpsc::Sender<ResumeMode>,
}

impl FrameReader {
    async fn read_frames(self, input: InputStream, silence: Option<Duration>, over: Arc<Notify>) {
        let mut input = BufReader::with_capacity(64 * 1024, input);
        let silence = silence.unwrap_or(Duration::MAX);
        while let Ok(Ok(Some(frame))) = timeout(silence, Frame::read(&mut input)).await {
            let went = match frame {
                Frame::Beat => true,
                Frame::Agent(data) => self.send_to_agent(data).await,
                Frame::Tree(piece) => {
                    self.requests.send(SessionRequest::Piece(piece)).await.is_ok()
                }
                Frame::Word(text) => self.handle_word(&text).await,
            };
            if !went {
                break;
            }
        }
        over.notify_one();
    }

    /// An execution is watched before anything that was sent after that reaches the agent, also while another
    /// request is in progress.
    async fn handle_word(&self, text: &[u8]) -> bool {
        let asked = match serde_json::from_slice(text) {
            Ok(RemoteRequest::Watch { execution, cpu_time }) => {
                return self.watches.watch_execution(execution, cpu_time).await.is_ok();
            }
            Ok(RemoteRequest::Started { execution, pid }) => {
                self.watches.mark_started(execution, pid);
                return true;
            }
            Ok(RemoteRequest::StandStill) => return self.stand_still().await.is_ok(),
            Ok(RemoteRequest::GoOn) => return self.ways.send(ResumeMode::On).await.is_ok(),
            Ok(ask) => SessionRequest::Ask(ask),
            Err(error) => SessionRequest::Nonsense(error),
        };
        self.requests.send(asked).await.is_ok()
    }

    /// Replies as the last frame for now: the peer has no other request under way.
    async fn stand_still(&self) -> Result<(), FrameError> {
        let text = serde_json::to_vec(&PeerEvent::Done { conflicts: Vec::new() });
        let text = text.map_err(io::Error::from)?;
        self.out.push_item(OutboxItem::Last(Frame::Word(text.into()).encode()?)).await
    }

    /// An agent that does not read what it is told is not one that can be kept.
    async fn send_to_agent(&self, data: Bytes) -> bool {
        let inbox = self.agent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(inbox) = inbox else { return false };
        // One that has ended already is asked about later.
        timeout(AGENT_TIMEOUT, inbox.send(data)).await.is_ok()
    }
}
