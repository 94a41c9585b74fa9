//! What is asked of this side, one request after the other: a place, walls, counts, changes, the end.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use stockade_backends::across::frame::{Frame, FrameError};
use stockade_backends::across::pour;
use stockade_backends::across::tree::{Side, Tree, TreeError};
use stockade_backends::across::words::{Ask, How, Tell, Verdict};
use stockade_backends::native::{Execution, Native, Walls};
use stockade_core::{
    Admitted, BackendChoice, Enforcement, Error, ErrorCode, HostPath, Image, LimitKind,
    ProcessControl, Result, SandboxId, SandboxSpec, Span, Workspace, admit,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent;
use crate::base::{Base, Place};
use crate::measure;
use crate::serve::{Outbox, ToAgent};

/// The most executions that are watched at once.
const EXECUTIONS: usize = 4096;

type Shared = Arc<Mutex<Tree>>;
/// What arrives of the other copy, and what became of it.
type Arriving = (mpsc::Sender<Bytes>, JoinHandle<Result<BTreeSet<String>, TreeError>>);

/// One sandbox and who asks for it.
pub struct Session {
    native: Native,
    base: Result<Base>,
    out: Outbox,
    to_agent: ToAgent,
    id: Option<SandboxId>,
    place: Option<Place>,
    /// Why there is no place; said when the walls are asked for.
    no_place: Option<Error>,
    walls: Option<Walls>,
    tree: Option<Shared>,
    /// Whether the guest may change the workspace.
    writable: bool,
    arriving: Option<Arriving>,
    executions: HashMap<u32, Execution>,
}

/// Ends an execution by way of the other side, which alone speaks to the agent.
struct Killer {
    out: Outbox,
    execution: u32,
}

#[async_trait]
impl ProcessControl for Killer {
    async fn kill(&self) -> Result<()> {
        let gone =
            |error: FrameError| Error::new(ErrorCode::Gone, "kill", "nobody hears").source(error);
        say(&self.out, &Tell::Kill { execution: self.execution }).await.map_err(gone)
    }
}

async fn say(out: &Outbox, tell: &Tell) -> Result<(), FrameError> {
    let text = serde_json::to_vec(tell).map_err(io::Error::from)?;
    out.send(Frame::Word(text.into())).await
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorCode::Protocol, "serve", message)
}

/// The public form of what went wrong with the workspace here.
fn not_carried(error: TreeError) -> Error {
    let full = matches!(&error, TreeError::At { source, .. }
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded));
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::System };
    let error = Error::new(code, "copy the workspace", error.to_string());
    if full { error.remedy("make room on that host") } else { error }
}

impl Session {
    pub fn new(native: Native, base: Result<Base>, out: Outbox, to_agent: ToAgent) -> Self {
        Self {
            native,
            base,
            out,
            to_agent,
            id: None,
            place: None,
            no_place: None,
            walls: None,
            tree: None,
            writable: false,
            arriving: None,
            executions: HashMap::new(),
        }
    }

    /// Does what is asked until nothing more is, or it can no longer be answered.
    pub async fn run(&mut self, mut asked: mpsc::Receiver<Frame>) {
        while let Some(frame) = asked.recv().await {
            let done = match frame {
                Frame::Tree(piece) => self.arrives(piece).await,
                Frame::Word(text) => self.word(&text).await,
                Frame::Agent(_) | Frame::Beat => Ok(()),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Takes everything down; nothing is left when it returns.
    pub async fn end(mut self) -> io::Result<()> {
        self.take_down().await.map_err(io::Error::other)
    }

    async fn take_down(&mut self) -> Result<()> {
        self.executions.clear();
        self.stop().await?;
        // A thread that still unpacks would put something back.
        if let Some((pieces, unpacked)) = self.arriving.take() {
            drop(pieces);
            let _ = unpacked.await;
        }
        self.place.take().map_or(Ok(()), Place::remove)
    }

    /// Also where walls were only about to be built.
    async fn stop(&mut self) -> Result<()> {
        if let (Some(_), Some(id)) = (&self.place, &self.id) {
            crate::end(&self.native, id).await?;
        }
        self.walls = None;
        self.id = None;
        Ok(())
    }

    async fn word(&mut self, text: &[u8]) -> Result<(), FrameError> {
        let ask: Ask = match serde_json::from_slice(text) {
            Ok(ask) => ask,
            Err(error) => {
                let error = wrong("the request cannot be read").source(error);
                say(&self.out, &Tell::Failed((&error).into())).await?;
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
        };
        let answer = match ask {
            Ask::Open { id, capacity } => {
                self.open(id, capacity).await;
                return Ok(());
            }
            Ask::Watch { execution, cpu_time } => {
                self.watch(execution, cpu_time);
                return Ok(());
            }
            Ask::Create { spec, enforcement } => self.create(*spec, &enforcement).await,
            Ask::Ended { execution, how } => self.ended(execution, how).await,
            Ask::Push => self.arrived().await.map(done),
            Ask::Pull => self.changes().await.map(|()| done(BTreeSet::new())),
            Ask::Destroy => self.destroy().await,
        };
        let answer = answer.unwrap_or_else(|error| Tell::Failed((&error).into()));
        say(&self.out, &answer).await
    }

    async fn open(&mut self, id: SandboxId, capacity: Option<u32>) {
        let made = match (&self.base, &self.place) {
            (Err(error), _) => Err(error.clone()),
            (Ok(_), Some(_)) => Err(wrong("there is a sandbox already")),
            (Ok(base), None) => match base.reap(&self.native).await {
                Ok(()) => base.open(&id, capacity),
                Err(error) => Err(error),
            },
        };
        let opened = made.and_then(|place| {
            let tree = Tree::open(&place.workspace(), Side::Far, u64::MAX);
            self.place = Some(place);
            tree.map_err(|error| wrong("its directory cannot be used").source(error))
        });
        match opened {
            Ok(tree) => self.tree = Some(Arc::new(Mutex::new(tree))),
            Err(error) => self.no_place = Some(error),
        }
        self.id = Some(id);
    }

    /// A piece of the other copy. What is wrong with it is said with the request that follows.
    async fn arrives(&mut self, piece: Bytes) -> Result<(), FrameError> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let (pieces, _) = self.arriving.get_or_insert_with(|| {
            let (pieces, source) = pour::source();
            let tree = Arc::clone(tree);
            (pieces, tokio::task::spawn_blocking(move || lock(&tree).take(source)))
        });
        let _ = pieces.send(piece).await;
        Ok(())
    }

    /// Waits until what arrived is in its place.
    async fn arrived(&mut self) -> Result<BTreeSet<String>> {
        let Some((pieces, unpacked)) = self.arriving.take() else { return Ok(BTreeSet::new()) };
        drop(pieces);
        let unpacked = unpacked.await.map_err(|error| wrong("a thread ended").source(error))?;
        unpacked.map_err(not_carried)
    }

    async fn create(&mut self, spec: SandboxSpec, expected: &[Enforcement]) -> Result<Tell> {
        if let Some(error) = self.no_place.take() {
            return Err(error);
        }
        self.arrived().await?;
        let (Ok(base), Some(place), Some(id)) = (&self.base, &self.place, &self.id) else {
            return Err(wrong("there is no place for it yet"));
        };
        self.writable = !spec.read_only && matches!(spec.workspace, Workspace::Local(_));
        let known = measure::known(&self.native, base).await;
        let spec = settle(spec, place)?;
        let admitted = admit(&spec, &known)
            .map_err(|refusals| Error::refused("create", Some(known.backend.clone()), refusals))?;
        holds(&admitted, expected)?;
        let (walls, pipe) = self.native.walls(id, &admitted).await?;
        self.walls = Some(walls);
        let inbox = agent::carry(pipe, self.out.clone());
        let inbox = inbox.map_err(|error| wrong("the agent's pipe failed").source(error))?;
        let _ = self.to_agent.set(inbox);
        Ok(done(BTreeSet::new()))
    }

    fn watch(&mut self, execution: u32, cpu_time: Option<Span>) {
        let Some(walls) = self.walls.as_ref().filter(|_| self.executions.len() < EXECUTIONS) else {
            return;
        };
        let control: Arc<dyn ProcessControl> =
            Arc::new(Killer { out: self.out.clone(), execution });
        self.executions.insert(execution, walls.watch(&control, cpu_time));
    }

    async fn ended(&mut self, execution: u32, how: How) -> Result<Tell> {
        let watched = self.executions.remove(&execution);
        let watched = watched.ok_or_else(|| wrong("there is no such execution"))?;
        let verdict = Verdict::of(&watched.judge(how.exit()));
        self.changes().await?;
        Ok(Tell::Judged(verdict))
    }

    /// Sends what the guest has changed.
    async fn changes(&mut self) -> Result<()> {
        let Some(tree) = self.tree.clone().filter(|_| self.writable) else { return Ok(()) };
        let (drain, mut pieces) = pour::drain();
        let packing = tokio::task::spawn_blocking(move || lock(&tree).send(drain));
        while let Some(piece) = pieces.recv().await {
            let gone = |error: FrameError| wrong("nobody takes the changes").source(error);
            self.out.send(Frame::Tree(piece)).await.map_err(gone)?;
        }
        let packed = packing.await.map_err(|error| wrong("a thread ended").source(error))?;
        packed.map_err(not_carried)
    }

    /// The walls first: nobody writes any more when the last changes are looked for.
    async fn destroy(&mut self) -> Result<Tell> {
        self.executions.clear();
        self.stop().await?;
        let changed = self.changes().await;
        self.take_down().await?;
        changed.map(|()| done(BTreeSet::new()))
    }
}

fn lock(tree: &Shared) -> std::sync::MutexGuard<'_, Tree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done(conflicts: BTreeSet<String>) -> Tell {
    Tell::Done { conflicts: conflicts.into_iter().take(100).collect() }
}

/// The spec as it is on this host. What names paths of the other one is refused, never looked for here.
fn settle(spec: SandboxSpec, place: &Place) -> Result<SandboxSpec> {
    if !spec.mounts.is_empty() || spec.image != Image::Host {
        return Err(wrong("its image or mounts lie on another host"));
    }
    let workspace = match spec.workspace {
        Workspace::Ephemeral => Workspace::Ephemeral,
        Workspace::Local(_) => {
            let here = HostPath::try_from(place.workspace());
            Workspace::Local(
                here.map_err(|error| wrong("its directory has no name").source(error))?,
            )
        }
        Workspace::Overlay(_) => return Err(wrong("layers lie on another host")),
    };
    Ok(SandboxSpec { workspace, backend: BackendChoice::Auto, ..spec })
}

/// Whether every limit that was promised to hold does so here: the host may have changed since.
fn holds(admitted: &Admitted, expected: &[Enforcement]) -> Result<()> {
    let fully = |all: &[Enforcement]| -> BTreeSet<LimitKind> {
        let full = all.iter().filter(|one| matches!(one, Enforcement::Fully { .. }));
        full.map(Enforcement::limit).collect()
    };
    let there = fully(admitted.enforcement());
    match fully(expected).into_iter().find(|limit| !there.contains(limit)) {
        None => Ok(()),
        Some(limit) => {
            let message = format!("the limit {limit} holds there no longer as it was measured");
            Err(Error::new(ErrorCode::WallMissing, "create", message).remedy("try again"))
        }
    }
}
