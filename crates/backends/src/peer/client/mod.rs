//! The near end of a sandbox that another host or a virtual machine builds: one connection to the program
//! there, over which the agent's pipe, a few requests and the workspace's changes go.

mod connection;
mod executions;
mod files;
#[cfg(test)]
mod tests;
mod workspace_sync;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, BackendName, Error, ErrorCode, HostPath, Image, Result, SandboxId, SandboxSpec,
    Workspace,
};
use tokio::io::{AsyncBufRead, AsyncWrite};

use super::guest::Identity;
use super::protocol::{RemoteFailure, RemoteRequest};
use super::tree::{Side, Tree};
use crate::agent_sandbox::AgentSandbox;
use crate::linux::archives::Archives;
use crate::native::Native;
use connection::{AgentPipe, PeerLink, WorkspaceTree};
pub(crate) use executions::{FarExecutions, UsedNumbers};
use files::Synced;
pub(crate) use workspace_sync::WorkspaceSync;

/// Timeout of the handshake with the agent there.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Growth limit of a workspace that comes back from a guest without a disk limit.
const MAX_GROWTH_BYTES: u64 = 1 << 40;

/// The peer, as messages call it.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Whose sandbox it is.
    pub backend: BackendName,
    /// Such as "host `build-7`".
    pub called: String,
    /// How many sandboxes may live there at once.
    pub capacity: Option<u32>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.called)
    }
}

impl Peer {
    fn error(&self, code: ErrorCode, operation: &'static str, message: impl Into<String>) -> Error {
        Error::new(code, operation, message).backend(self.backend.clone())
    }

    /// What the peer says went wrong.
    fn failure_error(&self, operation: &'static str, failure: RemoteFailure) -> Error {
        failure.error(operation, &self.called).backend(self.backend.clone())
    }
}

/// A connection on which the peer has sent its hello.
pub(crate) struct PeerConnection {
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    pub output: Box<dyn AsyncBufRead + Send + Unpin>,
    /// The carrier of the connection. It ends when this is dropped.
    pub carrier: Box<dyn Send>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sandbox that another host or machine builds: the agent's client over the connection, and the counters of
/// the peer.
pub(crate) struct FarSandbox {
    pub sandbox: AgentSandbox,
    pub executions: Arc<FarExecutions>,
    pub sync: Arc<WorkspaceSync>,
}

impl FarSandbox {
    fn new(
        (id, admitted): (&SandboxId, &Admitted),
        sync: Arc<WorkspaceSync>,
        client: AgentClient,
        used: u32,
    ) -> Self {
        let client = Arc::new(client);
        let executions = FarExecutions::new(id, &sync, &client, used);
        let backend = sync.link().peer().backend.clone();
        // Archives come by the agent's pipe, as on every other backend: the peer is asked for nothing, names
        // no part, and sends no more than the disk limit allows.
        let user = Native::sandbox_user(admitted.spec());
        let sandbox = AgentSandbox::new(id, Arc::clone(&client), user)
            .with_files(Synced::new(client, Arc::clone(&sync)))
            .with_archives(Archives::new(backend, admitted))
            .with_monitor(Arc::clone(&executions) as _);
        Self { sandbox, executions, sync }
    }
}

/// Whether the workspace can be carried there, before anything is asked of the peer.
pub(crate) fn check_workspace(backend: &BackendName, admitted: &Admitted) -> Result<()> {
    open_workspace(backend, admitted).map(drop)
}

/// The caller's own copy, if the workspace is a directory.
fn open_workspace(backend: &BackendName, admitted: &Admitted) -> Result<Option<WorkspaceTree>> {
    let growth = admitted.limits().disk.map_or(MAX_GROWTH_BYTES, |disk| disk.0);
    let unusable = |path: &HostPath, error| {
        let message = format!("workspace: `{path}` cannot be used");
        Error::new(ErrorCode::Invalid, "create", message)
            .backend(backend.clone())
            .remedy("name a directory that exists and that you may read")
            .source(error)
    };
    match &admitted.spec().workspace {
        Workspace::Ephemeral => Ok(None),
        Workspace::Local(path) => {
            let tree = Tree::open(path.as_path(), Side::Near, growth);
            tree.map(|tree| Some(Arc::new(Mutex::new(tree)))).map_err(|error| unusable(path, error))
        }
        // Not admitted on such a backend.
        Workspace::Overlay(layers) => {
            Err(unusable(&layers.upper, std::io::Error::from(std::io::ErrorKind::Unsupported)))
        }
    }
}

/// Has the peer build a sandbox, with a copy of the workspace.
pub(crate) async fn build_sandbox(
    peer: Peer,
    connection: PeerConnection,
    id: &SandboxId,
    admitted: &Admitted,
) -> Result<FarSandbox> {
    let tree = open_workspace(&peer.backend, admitted)?;
    let (link, pipe) = PeerLink::new(peer, connection);
    request_creation(&link, id, admitted, tree.as_ref()).await?;
    let writable = !admitted.spec().read_only;
    let sync = Arc::new(WorkspaceSync::new(link, tree, writable));
    let client = connect_agent(pipe).await?;
    Ok(FarSandbox::new((id, admitted), sync, client, 0))
}

/// Takes a copy of a machine into use, with the sandbox that is in it.
pub(crate) async fn take_over(
    peer: Peer,
    connection: PeerConnection,
    (id, admitted): (&SandboxId, &Admitted),
    identity: Identity,
    used: UsedNumbers,
) -> Result<FarSandbox> {
    let tree = open_workspace(&peer.backend, admitted)?;
    let (link, pipe) = PeerLink::new(peer, connection);
    let asked = RemoteRequest::Become { identity: Box::new(identity), shared: tree.is_some() };
    link.take_turn().await.ask("create", &asked, None).await.map(drop)?;
    let sync = Arc::new(WorkspaceSync::new(link, tree, !admitted.spec().read_only));
    let (reader, writer) = tokio::io::split(pipe);
    let carried = used.carried_programs();
    let channels: Vec<u32> = carried.iter().map(|program| program.channel).collect();
    let (client, processes) =
        AgentClient::take_over(reader, writer, HANDSHAKE_TIMEOUT, used.channels, &channels).await?;
    let sandbox = FarSandbox::new((id, admitted), sync, client, used.executions);
    sandbox.executions.carry_programs(carried.into_iter().zip(processes).collect());
    sandbox.sync.meet_again(sandbox.sync.take_turn().await).await?;
    Ok(sandbox)
}

/// A place, the workspace, and walls, in one go.
async fn request_creation(
    link: &Arc<PeerLink>,
    id: &SandboxId,
    admitted: &Admitted,
    tree: Option<&WorkspaceTree>,
) -> Result<()> {
    let mut turn = link.take_turn().await;
    let capacity = link.peer().capacity;
    turn.send_request(&RemoteRequest::Open { id: id.clone(), capacity }).await?;
    if let Some(tree) = tree {
        turn.send_tree(tree).await?;
    }
    // Its image is what the peer has, and what stands between is not its to judge.
    let (boundaries, image) = (Default::default(), Image::Host);
    let spec = Box::new(SandboxSpec {
        host: None,
        boundaries,
        image,
        workspace_at: None,
        trees: Vec::new(),
        ..admitted.spec().clone()
    });
    let create = RemoteRequest::Create { spec, enforcement: admitted.enforcement().to_vec() };
    turn.ask("create", &create, None).await.map(drop)?;
    if let Some(tree) = tree {
        lock(tree).agreed(&[]);
    }
    Ok(())
}

async fn connect_agent(pipe: AgentPipe) -> Result<AgentClient> {
    let (reader, writer) = tokio::io::split(pipe);
    AgentClient::connect_halves(reader, writer, HANDSHAKE_TIMEOUT).await
}
