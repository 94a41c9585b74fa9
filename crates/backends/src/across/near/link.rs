//! One connection to the other side, for one sandbox: the agent's pipe, requests one at a time, and a
//! heart that beats. When it is lost, everything that goes over it is, and the other side ends by itself.
//!
//! The other side is hostile and slow: each request has one deadline from its first byte to its answer, a
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

use super::{Connection, Peer, lock};
use crate::across::frame::Frame;
use crate::across::pour;
use crate::across::tree::{Conflict, Tree, TreeError};
use crate::across::words::{Ask, Tell};

/// Interval of the heartbeat that the other side hears.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// How long a request may take until its answer, and how long with all that is transferred for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the other side may take to read one frame, with those that wait before it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Frame queue length in either direction.
const FRAME_QUEUE_LENGTH: usize = 8;
/// Buffer of the agent's pipe.
const PIPE_BUFFER_BYTES: usize = 256 * 1024;
/// Largest chunk of the agent's pipe in one frame.
const PIPE_CHUNK_BYTES: usize = 64 * 1024;

/// One end of a workspace, shared with the threads that read and write it.
pub(crate) type Shared = Arc<Mutex<Tree>>;
type Controls = Arc<Mutex<HashMap<u32, Slot>>>;

/// An execution that the other side may want ended.
#[derive(Clone)]
enum Slot {
    /// The agent has not heard of it yet.
    Expected,
    /// It is to be ended as soon as it has begun.
    Doomed,
    Running(Arc<dyn ProcessControl>),
    /// It is being ended, which happens once however often it is asked for.
    Ending(Arc<dyn ProcessControl>),
    /// The other side was taken back to before it began: what has its number there is another one.
    Gone,
}

/// What was answered, and what had changed here too of that which came with it, or why it could not be
/// taken over.
pub(crate) type Answer = (Tell, Result<Vec<Conflict>>);
type Taking = (mpsc::Sender<Bytes>, JoinHandle<Result<Vec<Conflict>, TreeError>>);

/// What arrives for whoever has asked something.
enum Heard {
    Tree(Bytes),
    Tell(Tell),
}

/// What waits to be sent.
enum Item {
    Frame(Bytes),
    /// The last for now: nothing else is sent until the other end of this is dropped.
    Last(Bytes, oneshot::Receiver<()>),
}

/// One connection.
pub(crate) struct Link {
    peer: Peer,
    out: mpsc::Sender<Item>,
    /// Held from a request to its answer.
    heard: Arc<tokio::sync::Mutex<mpsc::Receiver<Heard>>>,
    controls: Controls,
    carrier: Carrier,
    tasks: Vec<AbortHandle>,
}

/// Whatever carries the connection, until it is closed.
type Carrier = Arc<Mutex<Option<Box<dyn Send>>>>;

/// This side's end of the agent's pipe.
pub(crate) type Pipe = DuplexStream;

impl Link {
    /// Takes a connection into use.
    pub fn new(peer: Peer, connection: Connection) -> (Arc<Self>, Pipe) {
        let Connection { input, output, carrier } = connection;
        let (ours, theirs) = duplex(PIPE_BUFFER_BYTES);
        let (from_client, to_client) = split(theirs);
        let (out, waiting) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let (hear, heard) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let controls = Controls::default();
        let reader = Reader { to_client: Some(to_client), hear, controls: Arc::clone(&controls) };
        let carrier: Carrier = Arc::new(Mutex::new(Some(carrier)));
        let writing = tokio::spawn(write(waiting, input));
        let mut tasks = vec![
            writing.abort_handle(),
            tokio::spawn(pump(from_client, out.clone())).abort_handle(),
            tokio::spawn(send_heartbeats(out.clone())).abort_handle(),
        ];
        let (others, carried) = (tasks.clone(), Arc::clone(&carrier));
        let serving = tokio::spawn(async move {
            tokio::select! {
                _ = writing => {}
                () = reader.read(output) => {}
            }
            // Whichever direction failed: the other one is of no use alone.
            others.iter().for_each(AbortHandle::abort);
            drop(lock(&carried).take());
        });
        tasks.push(serving.abort_handle());
        let heard = Arc::new(tokio::sync::Mutex::new(heard));
        (Arc::new(Self { peer, out, heard, controls, carrier, tasks }), ours)
    }

    /// Who is on the other side.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn lost(&self, operation: &'static str) -> Error {
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

    async fn send(&self, frame: Frame) -> Result<()> {
        let bytes = frame.encode().map_err(|error| {
            Error::new(ErrorCode::TooLarge, "send", "the request is too long").source(error)
        })?;
        // Whoever writes gives up in time, and with that this ends too.
        self.out.send(Item::Frame(bytes)).await.map_err(|_| self.lost("send"))
    }

    /// Says something that is not answered.
    pub async fn say(&self, ask: &Ask) -> Result<()> {
        self.send(request_frame(ask)?).await
    }

    /// The other side may want an execution ended before it is known here whom to tell.
    pub fn expect(&self, execution: u32) {
        lock(&self.controls).insert(execution, Slot::Expected);
    }

    /// Who is to be told when the other side wants an execution ended.
    pub fn control(&self, execution: u32, control: &Arc<dyn ProcessControl>) {
        let mut controls = lock(&self.controls);
        if let Some(Slot::Doomed) = controls.insert(execution, Slot::Running(Arc::clone(control))) {
            end_execution(&mut controls, execution);
        }
    }

    /// Takes over who is to be told from a connection in whose place this one is to be, to a side that knows
    /// of those alone that are `kept`.
    pub fn inherit(&self, from: &Self, kept: impl Fn(u32) -> bool) {
        let slot = |execution, slot: &Slot| match slot {
            _ if !kept(execution) => Slot::Gone,
            // Whoever was told to is on the other connection.
            Slot::Ending(control) => Slot::Running(Arc::clone(control)),
            Slot::Expected | Slot::Doomed | Slot::Running(_) | Slot::Gone => slot.clone(),
        };
        let inherited: Vec<_> = lock(&from.controls)
            .iter()
            .map(|(number, old)| (*number, slot(*number, old)))
            .collect();
        lock(&self.controls).extend(inherited);
    }

    /// Whether an execution was gone when the other side was taken back: it knows nothing of that one.
    pub fn is_gone(&self, execution: u32) -> bool {
        matches!(lock(&self.controls).get(&execution), Some(Slot::Gone))
    }

    /// An execution is over.
    pub fn forget(&self, execution: u32) {
        lock(&self.controls).remove(&execution);
    }

    /// Has both sides say nothing more until the answer is dropped: nothing is under way meanwhile.
    pub async fn stand_still(self: &Arc<Self>, operation: &'static str) -> Result<Standing> {
        let (goes_on, until) = oneshot::channel();
        let mut turn = self.turn().await;
        turn.open = true;
        let ask = request_frame(&Ask::StandStill)?.encode().map_err(|_| self.lost(operation))?;
        self.out.send(Item::Last(ask, until)).await.map_err(|_| self.lost(operation))?;
        let told = turn.hear(operation, None, &mut None).await?;
        turn.open = false;
        match told {
            Tell::Done { .. } => Ok(Standing { _goes_on: goes_on, _turn: turn }),
            Tell::Failed(failure) => Err(self.peer.failed(operation, failure)),
            Tell::Judged(_) | Tell::Kill { .. } => Err(turn.broken(operation)),
        }
    }

    /// Begins to ask. Whoever gives up between request and answer ends the connection: nobody would
    /// know whose the next answer is.
    pub async fn turn(self: &Arc<Self>) -> Turn {
        let heard = Arc::clone(&self.heard).lock_owned().await;
        let deadline = Deadline::after(ANSWER_TIMEOUT, TRANSFER_TIMEOUT);
        Turn { heard, link: Arc::clone(self), open: false, deadline }
    }
}

fn request_frame(ask: &Ask) -> Result<Frame> {
    let text = serde_json::to_vec(ask).map_err(|error| {
        Error::new(ErrorCode::Invalid, "send", "the request has no written form").source(error)
    })?;
    Ok(Frame::Word(text.into()))
}

/// Both sides stand still until this is dropped.
pub(crate) struct Standing {
    // Dropped first: whoever asks next does so when it goes on.
    _goes_on: oneshot::Sender<()>,
    _turn: Turn,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// One request and its answer.
pub(crate) struct Turn {
    heard: tokio::sync::OwnedMutexGuard<mpsc::Receiver<Heard>>,
    link: Arc<Link>,
    open: bool,
    /// When all of it has to be over.
    deadline: Deadline,
}

impl Turn {
    /// The connection that it is one of.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Sends what has changed in this copy. Says whether anything has.
    pub async fn tree(&mut self, tree: &Shared) -> Result<bool> {
        let tree = Arc::clone(tree);
        let (drain, mut pieces) = pour::drain();
        let packing = tokio::task::spawn_blocking(move || lock(&tree).send(drain));
        let (mut any, mut waiting) = (false, Instant::now());
        while let Some(piece) = pieces.recv().await {
            self.deadline.excuse(waiting.elapsed());
            (any, self.open) = (true, true);
            let bytes = piece.len();
            let sent = self.deadline.within(self.link.send(Frame::Tree(piece))).await;
            sent.map_err(|_| self.link.too_slow("copy the workspace"))??;
            self.deadline.transferred(bytes);
            waiting = Instant::now();
        }
        self.deadline.excuse(waiting.elapsed());
        packing.await.map_err(thread_error)?.map_err(|error| self.not_read(error))?;
        Ok(any)
    }

    /// Says something that is part of the request and not answered by itself.
    pub async fn say(&mut self, ask: &Ask) -> Result<()> {
        self.open = true;
        let said = self.deadline.within(self.link.say(ask)).await;
        said.map_err(|_| self.link.too_slow("send"))?
    }

    /// Asks, and takes what comes with the answer into this copy. Nobody writes there any more when this
    /// returns, whatever came of it.
    pub async fn ask(
        mut self,
        operation: &'static str,
        ask: &Ask,
        tree: Option<&Shared>,
    ) -> Result<Answer> {
        self.say(ask).await?;
        let mut taking = None;
        let told = self.hear(operation, tree, &mut taking).await;
        let taken = match taking {
            None => Ok(Vec::new()),
            Some((pieces, taken)) => {
                drop(pieces);
                taken.await.map_err(thread_error)?.map_err(|error| self.not_placed(error))
            }
        };
        let tell = told?;
        self.open = false;
        match tell {
            Tell::Failed(failure) => Err(self.link.peer.failed(operation, failure)),
            tell @ (Tell::Done { .. } | Tell::Judged(_) | Tell::Kill { .. }) => Ok((tell, taken)),
        }
    }

    /// Waits for the answer, and hands on what comes before it.
    async fn hear(
        &mut self,
        operation: &'static str,
        tree: Option<&Shared>,
        taking: &mut Option<Taking>,
    ) -> Result<Tell> {
        loop {
            let slow = |_| self.link.too_slow(operation);
            match self.deadline.within(self.heard.recv()).await.map_err(slow)? {
                None => return Err(self.link.lost(operation)),
                Some(Heard::Tell(tell)) => return Ok(tell),
                Some(Heard::Tree(piece)) => {
                    let Some(tree) = tree else { return Err(self.broken(operation)) };
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

    fn broken(&self, operation: &'static str) -> Error {
        let message = format!("{} sends what nobody asked for", self.link.peer);
        self.link.peer.error(ErrorCode::Protocol, operation, message)
    }

    fn not_read(&self, error: TreeError) -> Error {
        self.link
            .peer
            .error(ErrorCode::Denied, "copy the workspace", error.to_string())
            .remedy("make everything in the workspace readable, or move it elsewhere")
    }

    fn not_placed(&self, error: TreeError) -> Error {
        let message = format!("changes could not be taken over: {error}");
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

fn spawn_unpacking(tree: &Shared) -> Taking {
    let (pieces, source) = pour::source();
    let tree = Arc::clone(tree);
    (pieces, tokio::task::spawn_blocking(move || lock(&tree).take(source)))
}

fn thread_error(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorCode::System, "copy the workspace", "a thread ended").source(error)
}

/// Ends an execution, once; whether it worked is seen on the other side.
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

async fn write(mut waiting: mpsc::Receiver<Item>, mut input: impl AsyncWrite + Unpin) {
    let Some(go_on) = request_frame(&Ask::GoOn).ok().and_then(|word| word.encode().ok()) else {
        return;
    };
    while let Some(item) = waiting.recv().await {
        let (bytes, until) = match item {
            Item::Frame(bytes) => (bytes, None),
            Item::Last(bytes, until) => (bytes, Some(until)),
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

async fn pump(mut pipe: ReadHalf<DuplexStream>, out: mpsc::Sender<Item>) {
    loop {
        let mut piece = Vec::with_capacity(PIPE_CHUNK_BYTES);
        let read = pipe.read_buf(&mut piece).await.unwrap_or(0);
        let Ok(bytes) = Frame::Agent(piece.into()).encode() else { return };
        if read == 0 || out.send(Item::Frame(bytes)).await.is_err() {
            return;
        }
    }
}

async fn send_heartbeats(out: mpsc::Sender<Item>) {
    let Ok(bytes) = Frame::Beat.encode() else { return };
    loop {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        if out.send(Item::Frame(bytes.clone())).await.is_err() {
            return;
        }
    }
}

/// Sorts what arrives.
struct Reader {
    to_client: Option<WriteHalf<DuplexStream>>,
    hear: mpsc::Sender<Heard>,
    controls: Controls,
}

impl Reader {
    /// Until the connection is lost or makes no sense: what hangs on it ends with this.
    async fn read(mut self, mut output: impl AsyncBufRead + Unpin) {
        while let Ok(Some(frame)) = Frame::read(&mut output).await {
            let fits = match frame {
                Frame::Beat => true,
                Frame::Agent(data) => self.agent(&data).await,
                Frame::Tree(piece) => self.hear.send(Heard::Tree(piece)).await.is_ok(),
                Frame::Word(text) => self.word(&text).await,
            };
            if !fits {
                break;
            }
        }
        self.hang_up().await;
    }

    /// The client always reads: its channels have credit.
    async fn agent(&mut self, data: &[u8]) -> bool {
        if data.is_empty() {
            self.hang_up().await;
        } else if let Some(client) = &mut self.to_client
            && client.write_all(data).await.is_err()
        {
            self.to_client = None;
        }
        true
    }

    async fn hang_up(&mut self) {
        if let Some(mut client) = self.to_client.take() {
            let _ = client.shutdown().await;
        }
    }

    async fn word(&mut self, text: &[u8]) -> bool {
        match serde_json::from_slice(text) {
            Ok(Tell::Kill { execution }) => {
                end_execution(&mut lock(&self.controls), execution);
                true
            }
            Ok(tell) => self.hear.send(Heard::Tell(tell)).await.is_ok(),
            Err(_) => false,
        }
    }
}
