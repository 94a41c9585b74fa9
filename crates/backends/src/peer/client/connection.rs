//! One connection to the peer, for one sandbox: the agent's pipe, requests one at a time, and a
//! heartbeat. When it is lost, everything that goes over it is, and the peer ends by itself.
//!
//! The peer is hostile and slow: each request has one deadline from its first byte to its answer, a
//! frame that is not taken in time ends the connection, and nothing that arrives starts more than one task
//! per execution.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use stockade_agent::client::Deadline;
use stockade_core::{Error, ErrorCode, ProcessControl, Result};
use tokio::io::{
    AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf,
    duplex, split,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};

use super::{Peer, PeerConnection, lock};
use crate::peer::blocking_io;
use crate::peer::frame::Frame;
use crate::peer::protocol::{PeerEvent, RemoteRequest};
use crate::peer::tree::{Conflict, Tree, TreeError};

/// Interval of the heartbeat that the peer hears.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a request may take until its answer, and how long with all that is transferred for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the peer may take to read one frame, with those that wait before it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Frame queue length in either direction.
const FRAME_QUEUE_LENGTH: usize = 8;
/// Buffer of the agent's pipe.
const PIPE_BUFFER_BYTES: usize = 256 * 1024;
/// Largest chunk of the agent's pipe in one frame.
const PIPE_CHUNK_BYTES: usize = 64 * 1024;

/// One end of a workspace, shared with the threads that read and write it.
pub(crate) type WorkspaceTree = Arc<Mutex<Tree>>;
type Controls = Arc<Mutex<HashMap<u32, Slot>>>;

/// An execution that the peer may want ended.
#[derive(Clone)]
enum Slot {
    /// The agent has not heard of it yet.
    Expected,
    /// It is to be ended as soon as it has begun.
    Doomed,
    Running(Arc<dyn ProcessControl>),
    /// It is being ended, which happens once however often it is asked for.
    Ending(Arc<dyn ProcessControl>),
    /// The peer was taken back to before it began: what has its number there is another one.
    Gone,
}

/// What was answered, and what had changed here too of that which came with it, or why it could not be
/// taken over.
pub(crate) type TurnAnswer = (PeerEvent, Result<Vec<Conflict>>);
type Taking = (mpsc::Sender<Bytes>, JoinHandle<Result<Vec<Conflict>, TreeError>>);

/// What arrives for the caller whose request is open.
enum HeardFrame {
    Tree(Bytes),
    PeerEvent(PeerEvent),
}

/// What waits to be sent.
enum QueuedFrame {
    Frame(Bytes),
    /// The last for now: nothing else is sent until the other end of this is dropped.
    Last(Bytes, oneshot::Receiver<()>),
}

/// One connection.
pub(crate) struct PeerLink {
    peer: Peer,
    out: mpsc::Sender<QueuedFrame>,
    /// Held from a request to its answer.
    heard: Arc<tokio::sync::Mutex<mpsc::Receiver<HeardFrame>>>,
    controls: Controls,
    carrier: CarrierSlot,
    tasks: Vec<AbortHandle>,
}

/// The carrier of the connection, until it is closed.
type CarrierSlot = Arc<Mutex<Option<Box<dyn Send>>>>;

/// This side's end of the agent's pipe.
pub(crate) type AgentPipe = DuplexStream;

impl PeerLink {
    /// Takes a connection into use.
    pub fn new(peer: Peer, connection: PeerConnection) -> (Arc<Self>, AgentPipe) {
        let PeerConnection { input, output, carrier } = connection;
        let (ours, theirs) = duplex(PIPE_BUFFER_BYTES);
        let (from_client, to_client) = split(theirs);
        let (out, waiting) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let (hear, heard) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let controls = Controls::default();
        let reader =
            PeerFrameReader { to_client: Some(to_client), hear, controls: Arc::clone(&controls) };
        let carrier: CarrierSlot = Arc::new(Mutex::new(Some(carrier)));
        let writing = tokio::spawn(write_frames(waiting, input));
        let mut tasks = vec![
            writing.abort_handle(),
            tokio::spawn(pump_agent_bytes(from_client, out.clone())).abort_handle(),
            tokio::spawn(send_heartbeats(out.clone())).abort_handle(),
        ];
        let (others, carried) = (tasks.clone(), Arc::clone(&carrier));
        let serving = tokio::spawn(async move {
            tokio::select! {
                _ = writing => {}
                () = reader.read_frames(output) => {}
            }
            // Whichever direction failed: the other one is of no use alone.
            others.iter().for_each(AbortHandle::abort);
            drop(lock(&carried).take());
        });
        tasks.push(serving.abort_handle());
        let heard = Arc::new(tokio::sync::Mutex::new(heard));
        (Arc::new(Self { peer, out, heard, controls, carrier, tasks }), ours)
    }

    /// The peer.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn lost_error(&self, operation: &'static str) -> Error {
        let message = format!("the connection to {} was lost", self.peer);
        self.peer.error(ErrorCode::Unavailable, operation, message)
    }

    fn too_slow(&self, operation: &'static str) -> Error {
        let message = format!("{} did not do it in time, and the connection was closed", self.peer);
        self.peer.error(ErrorCode::TooSlow, operation, message)
    }

    /// Ends the connection. Idempotent.
    pub fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        // Killed with it: what it would still say is of no interest.
        drop(lock(&self.carrier).take());
        lock(&self.controls).clear();
    }

    async fn send_frame(&self, frame: Frame) -> Result<()> {
        let bytes = frame.encode().map_err(|error| {
            Error::new(ErrorCode::TooLarge, "send", "the request is too long").source(error)
        })?;
        // A full queue blocks this until the writing task reaches its timeout, which closes the queue.
        self.out.send(QueuedFrame::Frame(bytes)).await.map_err(|_| self.lost_error("send"))
    }

    /// Says something that is not answered.
    pub async fn send_request(&self, ask: &RemoteRequest) -> Result<()> {
        self.send_frame(request_frame(ask)?).await
    }

    /// The peer may want an execution ended before its control is registered here.
    pub fn expect_execution(&self, execution: u32) {
        lock(&self.controls).insert(execution, Slot::Expected);
    }

    /// Registers the control of an execution, used when the peer wants it ended.
    pub fn attach_control(&self, execution: u32, control: &Arc<dyn ProcessControl>) {
        let mut controls = lock(&self.controls);
        if let Some(Slot::Doomed) = controls.insert(execution, Slot::Running(Arc::clone(control))) {
            end_execution(&mut controls, execution);
        }
    }

    /// Takes over the controls of executions from the connection that this one replaces. The peer of this one knows
    /// only those that are `kept`.
    pub fn inherit_controls(&self, from: &Self, kept: impl Fn(u32) -> bool) {
        let slot = |execution, slot: &Slot| match slot {
            _ if !kept(execution) => Slot::Gone,
            // The kill under way was sent over the old connection: it can be requested again on this one.
            Slot::Ending(control) => Slot::Running(Arc::clone(control)),
            Slot::Expected | Slot::Doomed | Slot::Running(_) | Slot::Gone => slot.clone(),
        };
        let inherited: Vec<_> = lock(&from.controls)
            .iter()
            .map(|(number, old)| (*number, slot(*number, old)))
            .collect();
        lock(&self.controls).extend(inherited);
    }

    /// Whether the restored peer does not know this execution, because it began after the snapshot.
    pub fn is_gone(&self, execution: u32) -> bool {
        matches!(lock(&self.controls).get(&execution), Some(Slot::Gone))
    }

    /// An execution is over.
    pub fn forget_execution(&self, execution: u32) {
        lock(&self.controls).remove(&execution);
    }

    /// Has both sides say nothing more until the answer is dropped: nothing is under way meanwhile.
    pub async fn stand_still(self: &Arc<Self>, operation: &'static str) -> Result<Standing> {
        let (goes_on, until) = oneshot::channel();
        let mut turn = self.take_turn().await;
        turn.open = true;
        let ask = request_frame(&RemoteRequest::StandStill)?
            .encode()
            .map_err(|_| self.lost_error(operation))?;
        self.out
            .send(QueuedFrame::Last(ask, until))
            .await
            .map_err(|_| self.lost_error(operation))?;
        let told = turn.read_reply(operation, None, &mut None).await?;
        turn.open = false;
        match told {
            PeerEvent::Done { .. } => Ok(Standing { _goes_on: goes_on, _turn: turn }),
            PeerEvent::Failed(failure) => Err(self.peer.failure_error(operation, failure)),
            PeerEvent::Judged(_) | PeerEvent::Kill { .. } => Err(turn.unexpected_error(operation)),
        }
    }

    /// Takes the lock for one request and its reply. A caller that gives up between the two ends the
    /// connection: the next reply could not be matched to its request.
    pub async fn take_turn(self: &Arc<Self>) -> Turn {
        let heard = Arc::clone(&self.heard).lock_owned().await;
        let deadline = Deadline::after(ANSWER_TIMEOUT, TRANSFER_TIMEOUT);
        Turn { heard, link: Arc::clone(self), open: false, deadline }
    }
}

fn request_frame(ask: &RemoteRequest) -> Result<Frame> {
    let text = serde_json::to_vec(ask).map_err(|error| {
        Error::new(ErrorCode::Invalid, "send", "the request has no written form").source(error)
    })?;
    Ok(Frame::Word(text.into()))
}

/// Both sides stand still until this is dropped.
pub(crate) struct Standing {
    // Dropped before the turn: the next request is sent when the connection goes on.
    _goes_on: oneshot::Sender<()>,
    _turn: Turn,
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.close();
    }
}

/// One request and its answer.
pub(crate) struct Turn {
    heard: tokio::sync::OwnedMutexGuard<mpsc::Receiver<HeardFrame>>,
    link: Arc<PeerLink>,
    open: bool,
    /// When all of it has to be over.
    deadline: Deadline,
}

impl Turn {
    /// The connection that it is one of.
    pub fn link(&self) -> &Arc<PeerLink> {
        &self.link
    }

    /// Sends what has changed in this copy. Says whether anything has.
    pub async fn send_tree(&mut self, tree: &WorkspaceTree) -> Result<bool> {
        let tree = Arc::clone(tree);
        let (drain, mut pieces) = blocking_io::drain();
        let packing = tokio::task::spawn_blocking(move || lock(&tree).send(drain));
        let (mut any, mut waiting) = (false, Instant::now());
        while let Some(piece) = pieces.recv().await {
            self.deadline.excuse(waiting.elapsed());
            (any, self.open) = (true, true);
            let bytes = piece.len();
            let sent = self.deadline.within(self.link.send_frame(Frame::Tree(piece))).await;
            sent.map_err(|_| self.link.too_slow("copy the workspace"))??;
            self.deadline.transferred(bytes);
            waiting = Instant::now();
        }
        self.deadline.excuse(waiting.elapsed());
        packing.await.map_err(thread_error)?.map_err(|error| self.tree_read_error(error))?;
        Ok(any)
    }

    /// Says something that is part of the request and not answered by itself.
    pub async fn send_request(&mut self, ask: &RemoteRequest) -> Result<()> {
        self.open = true;
        let said = self.deadline.within(self.link.send_request(ask)).await;
        said.map_err(|_| self.link.too_slow("send"))?
    }

    /// Asks, and unpacks what comes with the reply into this copy. No thread writes there any more when this
    /// returns, with success or an error.
    pub async fn ask(
        mut self,
        operation: &'static str,
        ask: &RemoteRequest,
        tree: Option<&WorkspaceTree>,
    ) -> Result<TurnAnswer> {
        self.send_request(ask).await?;
        let mut taking = None;
        let told = self.read_reply(operation, tree, &mut taking).await;
        let taken = match taking {
            None => Ok(Vec::new()),
            Some((pieces, taken)) => {
                drop(pieces);
                taken.await.map_err(thread_error)?.map_err(|error| self.tree_place_error(error))
            }
        };
        let tell = told?;
        self.open = false;
        match tell {
            PeerEvent::Failed(failure) => Err(self.link.peer.failure_error(operation, failure)),
            tell @ (PeerEvent::Done { .. } | PeerEvent::Judged(_) | PeerEvent::Kill { .. }) => {
                Ok((tell, taken))
            }
        }
    }

    /// Waits for the answer, and hands on what comes before it.
    async fn read_reply(
        &mut self,
        operation: &'static str,
        tree: Option<&WorkspaceTree>,
        taking: &mut Option<Taking>,
    ) -> Result<PeerEvent> {
        loop {
            let slow = |_| self.link.too_slow(operation);
            match self.deadline.within(self.heard.recv()).await.map_err(slow)? {
                None => return Err(self.link.lost_error(operation)),
                Some(HeardFrame::PeerEvent(tell)) => return Ok(tell),
                Some(HeardFrame::Tree(piece)) => {
                    let Some(tree) = tree else { return Err(self.unexpected_error(operation)) };
                    let (pieces, _) = taking.get_or_insert_with(|| spawn_unpacking(tree));
                    let bytes = piece.len();
                    // What is wrong with it is said at the end. Only what is taken earns time.
                    if self.deadline.within(pieces.send(piece)).await.map_err(slow)?.is_ok() {
                        self.deadline.transferred(bytes);
                    }
                }
            }
        }
    }

    fn unexpected_error(&self, operation: &'static str) -> Error {
        let message = format!("{} sends an unexpected frame", self.link.peer);
        self.link.peer.error(ErrorCode::Protocol, operation, message)
    }

    fn tree_read_error(&self, error: TreeError) -> Error {
        self.link
            .peer
            .error(ErrorCode::Denied, "copy the workspace", error.to_string())
            .remedy("make everything in the workspace readable, or move it elsewhere")
    }

    fn tree_place_error(&self, error: TreeError) -> Error {
        let message = format!("changes could not be copied back: {error}");
        self.link.peer.error(ErrorCode::Denied, "copy the workspace", message)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.open {
            self.link.close();
        }
    }
}

fn spawn_unpacking(tree: &WorkspaceTree) -> Taking {
    let (pieces, source) = blocking_io::source();
    let tree = Arc::clone(tree);
    (pieces, tokio::task::spawn_blocking(move || lock(&tree).take(source)))
}

fn thread_error(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorCode::System, "copy the workspace", "a thread ended").source(error)
}

/// Ends an execution, once; whether it worked shows at the peer.
fn end_execution(controls: &mut HashMap<u32, Slot>, execution: u32) {
    let Some(slot) = controls.get_mut(&execution) else { return };
    match slot {
        Slot::Expected | Slot::Doomed => *slot = Slot::Doomed,
        Slot::Ending(_) | Slot::Gone => {}
        Slot::Running(control) => {
            let control = Arc::clone(control);
            *slot = Slot::Ending(Arc::clone(&control));
            tokio::spawn(async move { control.kill().await });
        }
    }
}

async fn write_frames(
    mut waiting: mpsc::Receiver<QueuedFrame>,
    mut input: impl AsyncWrite + Unpin,
) {
    let Some(go_on) = request_frame(&RemoteRequest::GoOn).ok().and_then(|word| word.encode().ok())
    else {
        return;
    };
    while let Some(item) = waiting.recv().await {
        let (bytes, until) = match item {
            QueuedFrame::Frame(bytes) => (bytes, None),
            QueuedFrame::Last(bytes, until) => (bytes, Some(until)),
        };
        if !write_in_time(&mut input, &bytes).await {
            return;
        }
        if let Some(until) = until {
            let _ = until.await;
            if !write_in_time(&mut input, &go_on).await {
                return;
            }
        }
    }
}

async fn write_in_time(input: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> bool {
    matches!(timeout(WRITE_TIMEOUT, input.write_all(bytes)).await, Ok(Ok(())))
}

async fn pump_agent_bytes(mut pipe: ReadHalf<DuplexStream>, out: mpsc::Sender<QueuedFrame>) {
    loop {
        let mut piece = Vec::with_capacity(PIPE_CHUNK_BYTES);
        let read = pipe.read_buf(&mut piece).await.unwrap_or(0);
        let Ok(bytes) = Frame::Agent(piece.into()).encode() else { return };
        if read == 0 || out.send(QueuedFrame::Frame(bytes)).await.is_err() {
            return;
        }
    }
}

async fn send_heartbeats(out: mpsc::Sender<QueuedFrame>) {
    let Ok(bytes) = Frame::Beat.encode() else { return };
    loop {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        if out.send(QueuedFrame::Frame(bytes.clone())).await.is_err() {
            return;
        }
    }
}

/// Sorts what arrives.
struct PeerFrameReader {
    to_client: Option<WriteHalf<DuplexStream>>,
    hear: mpsc::Sender<HeardFrame>,
    controls: Controls,
}

impl PeerFrameReader {
    /// Until the connection is lost or makes no sense: what hangs on it ends with this.
    async fn read_frames(mut self, mut output: impl AsyncBufRead + Unpin) {
        while let Ok(Some(frame)) = Frame::read(&mut output).await {
            let fits = match frame {
                Frame::Beat => true,
                Frame::Agent(data) => self.forward_to_client(&data).await,
                Frame::Tree(piece) => self.hear.send(HeardFrame::Tree(piece)).await.is_ok(),
                Frame::Word(text) => self.handle_word(&text).await,
            };
            if !fits {
                break;
            }
        }
        self.close_client().await;
    }

    /// The client always reads: its channels have credit.
    async fn forward_to_client(&mut self, data: &[u8]) -> bool {
        if data.is_empty() {
            self.close_client().await;
        } else if let Some(client) = &mut self.to_client
            && client.write_all(data).await.is_err()
        {
            self.to_client = None;
        }
        true
    }

    async fn close_client(&mut self) {
        if let Some(mut client) = self.to_client.take() {
            let _ = client.shutdown().await;
        }
    }

    async fn handle_word(&mut self, text: &[u8]) -> bool {
        match serde_json::from_slice(text) {
            Ok(PeerEvent::Kill { execution }) => {
                end_execution(&mut lock(&self.controls), execution);
                true
            }
            Ok(tell) => self.hear.send(HeardFrame::PeerEvent(tell)).await.is_ok(),
            Err(_) => false,
        }
    }
}
