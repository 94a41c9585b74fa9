//! What is asked of this side, one request after the other: a place, walls, counts, changes, the end.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use stockade_backends::native::Native;
use stockade_backends::peer::blocking_io;
use stockade_backends::peer::frame::{Frame, FrameError};
use stockade_backends::peer::guest::Identity;
use stockade_backends::peer::protocol::{CounterReport, PeerEvent, RemoteRequest};
use stockade_backends::peer::tree::{Conflict, Side, Tree, TreeError};
use stockade_core::{
    Admitted, BackendChoice, Enforcement, Error, ErrorCode, Exit, HostPath, Image, LimitKind,
    Result, SandboxId, SandboxSpec, Workspace, admit,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent::{self, Carried};
use crate::base::{FarBase, SandboxDir};
use crate::identity::Papers;
use crate::measure;
use crate::serve::{AgentInbox, Outbox, ResumeMode, SessionRequest};
use crate::watch::{Watches, send_tell};

type SharedTree = Arc<Mutex<Tree>>;

/// What arrives of the other copy, until all of it is here; and what became of it.
struct Arriving {
    pieces: Option<mpsc::Sender<Bytes>>,
    unpacked: JoinHandle<Result<Vec<Conflict>, TreeError>>,
}

/// One sandbox and the peer that it is built for.
pub struct FarSession {
    native: Native,
    base: Result<FarBase>,
    out: Outbox,
    ways: mpsc::Sender<ResumeMode>,
    to_agent: AgentInbox,
    carried: Option<Carried>,
    id: Option<SandboxId>,
    place: Option<SandboxDir>,
    /// Why there is no place; said when the walls are asked for.
    no_place: Option<Error>,
    tree: Option<SharedTree>,
    /// Whether the guest may change the workspace.
    writable: bool,
    /// Threads that work in the workspace. They are waited for, also when the request that needs them is given up.
    arriving: Option<Arriving>,
    packing: Option<JoinHandle<Result<(), TreeError>>>,
    watches: Arc<Watches>,
    /// In a machine, which can be a copy of another one.
    papers: Option<Papers>,
}

fn protocol_error(message: &str) -> Error {
    Error::new(ErrorCode::Protocol, "serve", message)
}

/// The public form of what went wrong with the workspace here.
fn workspace_error(error: TreeError) -> Error {
    let full = matches!(&error, TreeError::At { source, .. }
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded));
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::System };
    let error = Error::new(code, "copy the workspace", error.to_string());
    if full { error.remedy("make room on that host") } else { error }
}

impl FarSession {
    pub fn new(
        native: Native,
        base: Result<FarBase>,
        (out, ways): (Outbox, mpsc::Sender<ResumeMode>),
        to_agent: AgentInbox,
        watches: Arc<Watches>,
        papers: Option<Papers>,
    ) -> Self {
        Self {
            native,
            base,
            out,
            ways,
            to_agent,
            carried: None,
            id: None,
            place: None,
            no_place: None,
            tree: None,
            writable: false,
            arriving: None,
            packing: None,
            watches,
            papers,
        }
    }

    /// Does what is asked until nothing more is, or it can no longer be answered.
    pub async fn run_requests(&mut self, mut asked: mpsc::Receiver<SessionRequest>) {
        while let Some(asked) = asked.recv().await {
            let done = match asked {
                SessionRequest::Piece(piece) => self.receive_piece(piece).await,
                SessionRequest::Ask(ask) => self.answer_request(ask).await,
                SessionRequest::Nonsense(error) => self.reject_unreadable(error).await,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Takes everything down; nothing is left when it returns.
    pub async fn shut_down(mut self) -> io::Result<()> {
        self.tear_down().await.map_err(io::Error::other)
    }

    async fn tear_down(&mut self) -> Result<()> {
        self.destroy_walls().await?;
        // A thread that still works there would put something back, or stand in the way.
        if let Some(Arriving { pieces, unpacked }) = self.arriving.take() {
            drop(pieces);
            let _ = unpacked.await;
        }
        if let Some(packing) = self.packing.take() {
            let _ = packing.await;
        }
        self.place.take().map_or(Ok(()), SandboxDir::remove_dir)
    }

    /// Also where walls were only about to be built.
    async fn destroy_walls(&mut self) -> Result<()> {
        self.watches.clear_all();
        if let (Some(_), Some(id)) = (&self.place, &self.id) {
            crate::destroy_sandbox(&self.native, id).await?;
        }
        self.id = None;
        Ok(())
    }

    async fn reject_unreadable(&mut self, error: serde_json::Error) -> Result<(), FrameError> {
        let error = protocol_error("the request cannot be read").source(error);
        send_tell(&self.out, &PeerEvent::Failed((&error).into())).await?;
        Err(io::Error::from(io::ErrorKind::InvalidData).into())
    }

    async fn answer_request(&mut self, ask: RemoteRequest) -> Result<(), FrameError> {
        let answer = match ask {
            RemoteRequest::Open { id, capacity } => {
                self.open_place(id, capacity).await;
                return Ok(());
            }
            // Begun where it was heard.
            RemoteRequest::Watch { .. }
            | RemoteRequest::Started { .. }
            | RemoteRequest::StandStill
            | RemoteRequest::GoOn => return Ok(()),
            RemoteRequest::Create { spec, enforcement } => {
                self.create_walls(*spec, &enforcement).await
            }
            RemoteRequest::Ended { execution, how, cpu_time } => {
                self.end_execution(execution, Exit { cpu_time, ..how.exit() }).await
            }
            RemoteRequest::Push => self.finish_receiving().await.map(done_reply),
            RemoteRequest::Pull => self.send_changes().await.map(|()| done_reply(Vec::new())),
            RemoteRequest::Become { identity, shared } => self.become_copy(&identity, shared).await,
            RemoteRequest::Destroy => self.destroy_sandbox().await,
        };
        let answer = answer.unwrap_or_else(|error| PeerEvent::Failed((&error).into()));
        send_tell(&self.out, &answer).await
    }

    async fn open_place(&mut self, id: SandboxId, capacity: Option<u32>) {
        let made = match (&self.base, &self.place) {
            (Err(error), _) => Err(error.clone()),
            (Ok(_), Some(_)) => Err(protocol_error("there is a sandbox already")),
            (Ok(base), None) => match base.reap_dead_sandboxes(&self.native).await {
                Ok(()) => base.create_sandbox_dir(&id, capacity),
                Err(error) => Err(error),
            },
        };
        let opened = made.and_then(|place| {
            let tree = Tree::open(&place.workspace(), Side::Far, u64::MAX);
            self.place = Some(place);
            tree.map_err(|error| protocol_error("its directory cannot be used").source(error))
        });
        match opened {
            Ok(tree) => self.tree = Some(Arc::new(Mutex::new(tree))),
            Err(error) => self.no_place = Some(error),
        }
        self.id = Some(id);
    }

    /// A piece of the other copy. What is wrong with it is said with the request that follows.
    async fn receive_piece(&mut self, piece: Bytes) -> Result<(), FrameError> {
        let Some(tree) = &self.tree else { return Ok(()) };
        let arriving = self.arriving.get_or_insert_with(|| {
            let (pieces, source) = blocking_io::source();
            let tree = Arc::clone(tree);
            let unpacked = tokio::task::spawn_blocking(move || lock_tree(&tree).take(source));
            Arriving { pieces: Some(pieces), unpacked }
        });
        if let Some(pieces) = &arriving.pieces {
            let _ = pieces.send(piece).await;
        }
        Ok(())
    }

    /// Waits until what arrived is in its place. If the caller gives up half-way, the thread's handle stays
    /// where the next call finds it.
    async fn finish_receiving(&mut self) -> Result<Vec<Conflict>> {
        let Some(arriving) = &mut self.arriving else { return Ok(Vec::new()) };
        arriving.pieces = None;
        let unpacked = (&mut arriving.unpacked).await;
        self.arriving = None;
        unpacked
            .map_err(|error| protocol_error("a thread ended").source(error))?
            .map_err(workspace_error)
    }

    async fn create_walls(
        &mut self,
        spec: SandboxSpec,
        expected: &[Enforcement],
    ) -> Result<PeerEvent> {
        if let Some(error) = self.no_place.take() {
            return Err(error);
        }
        self.finish_receiving().await?;
        let (Ok(base), Some(place), Some(id)) = (&self.base, &self.place, &self.id) else {
            return Err(protocol_error("Create came before Open"));
        };
        self.writable = !spec.read_only && matches!(spec.workspace, Workspace::Local(_));
        let known = measure::load_or_measure(&self.native, base).await;
        let spec = localize_spec(spec, place, base)?;
        let admitted = admit(&spec, &known)
            .map_err(|refusals| Error::refused("create", Some(known.backend.clone()), refusals))?;
        check_enforcement(&admitted, expected)?;
        let (walls, pipe) = self.native.walls(id, &admitted).await?;
        if let Some(papers) = &mut self.papers {
            let unknown =
                |error| protocol_error("what it is called cannot be changed").source(error);
            papers.open_sandbox_uts(walls.first_process()).map_err(unknown)?;
        }
        self.watches.set_walls(walls);
        self.start_agent(agent::spawn_carrier(pipe, self.out.clone()))
    }

    fn start_agent(
        &mut self,
        carried: io::Result<(Carried, mpsc::Sender<Bytes>)>,
    ) -> Result<PeerEvent> {
        let broken = |error: io::Error| protocol_error("the agent's pipe failed").source(error);
        let (carried, inbox) = carried.map_err(broken)?;
        self.carried = Some(carried);
        *self.to_agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbox);
        Ok(done_reply(Vec::new()))
    }

    /// This machine is a copy of another: another identity from now on, for another peer. What the guest runs
    /// goes on.
    async fn become_copy(&mut self, identity: &Identity, shared: bool) -> Result<PeerEvent> {
        if self.papers.is_none() {
            return Err(protocol_error("this is no machine of its own"));
        }
        let Some(carried) = self.carried.take() else {
            return Err(protocol_error("there is no sandbox"));
        };
        match self.tree.take().filter(|_| shared) {
            Some(tree) => self.reset_tree(tree)?,
            None => self.writable = false,
        }
        // Nothing that was under way reaches the peer, and nothing waits for it.
        let _ = self.ways.send(ResumeMode::Anew).await;
        let renamed = self.papers.as_ref().map_or(Ok(()), |papers| papers.apply_identity(identity));
        let renewed = carried.reconnect_agent(self.out.clone()).await;
        let gone = |error: FrameError| protocol_error("the connection is closed").source(error);
        self.out.mark_new_peer().await.map_err(gone)?;
        renamed.map_err(|error| protocol_error("its identity cannot be changed").source(error))?;
        self.start_agent(renewed)
    }

    /// The other copy of the workspace is one that nothing is known of.
    fn reset_tree(&mut self, tree: SharedTree) -> Result<()> {
        match self.writable {
            true => lock_tree(&tree).forget(),
            false => lock_tree(&tree).give_way().map_err(workspace_error)?,
        }
        self.tree = Some(tree);
        Ok(())
    }

    async fn end_execution(&mut self, execution: u32, exit: Exit) -> Result<PeerEvent> {
        // An execution that was not watched began after what this machine was taken back to.
        let judged = self
            .watches
            .remove_execution(execution)
            .map_or(exit.clone(), |watched| watched.judge(exit));
        let verdict = CounterReport::of(&judged);
        self.send_changes().await?;
        Ok(PeerEvent::Judged(verdict))
    }

    /// Sends what the guest has changed.
    async fn send_changes(&mut self) -> Result<()> {
        let Some(tree) = self.tree.clone().filter(|_| self.writable) else { return Ok(()) };
        let (drain, mut pieces) = blocking_io::drain();
        let pack = move || {
            let mut tree = lock_tree(&tree);
            tree.send(drain)?;
            // What cannot be taken over there comes back from there.
            tree.agreed(&[]);
            Ok(())
        };
        let packing = self.packing.insert(tokio::task::spawn_blocking(pack));
        while let Some(piece) = pieces.recv().await {
            let gone = |error: FrameError| {
                protocol_error("the connection closed while changes were sent").source(error)
            };
            self.out.send_frame(Frame::Tree(piece)).await.map_err(gone)?;
        }
        let packed = packing.await;
        self.packing = None;
        packed
            .map_err(|error| protocol_error("a thread ended").source(error))?
            .map_err(workspace_error)
    }

    /// The walls first: the guest writes no more when the last changes are looked for.
    async fn destroy_sandbox(&mut self) -> Result<PeerEvent> {
        self.destroy_walls().await?;
        let changed = self.send_changes().await;
        self.tear_down().await?;
        changed.map(|()| done_reply(Vec::new()))
    }
}

fn lock_tree(tree: &SharedTree) -> std::sync::MutexGuard<'_, Tree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done_reply(conflicts: Vec<Conflict>) -> PeerEvent {
    PeerEvent::Done { conflicts: conflicts.into_iter().map(|conflict| conflict.entry).collect() }
}

/// The spec as it is on this host. What names paths of the other one is refused, never looked for here.
fn localize_spec(spec: SandboxSpec, place: &SandboxDir, base: &FarBase) -> Result<SandboxSpec> {
    if !spec.mounts.is_empty() || spec.image != Image::Host {
        return Err(protocol_error("its image or mounts lie on another host"));
    }
    let workspace = match spec.workspace {
        Workspace::Ephemeral => Workspace::Ephemeral,
        Workspace::Local(_) => {
            let here = HostPath::try_from(place.workspace());
            Workspace::Local(
                here.map_err(|error| protocol_error("its directory has no name").source(error))?,
            )
        }
        Workspace::Overlay(_) => return Err(protocol_error("layers lie on another host")),
    };
    let image = match base.image() {
        None => Image::Host,
        Some(image) => Image::Directory(
            HostPath::try_from(std::path::PathBuf::from(image))
                .map_err(|error| protocol_error("its image has no name").source(error))?,
        ),
    };
    Ok(SandboxSpec { workspace, image, backend: BackendChoice::Auto, ..spec })
}

/// Whether every limit that was promised to hold does so here: the host may have changed since.
fn check_enforcement(admitted: &Admitted, expected: &[Enforcement]) -> Result<()> {
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
