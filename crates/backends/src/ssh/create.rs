//! Builds a sandbox on the host of the pool that has most room, or on the next one if that cannot be
//! reached or is full.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, Error, ErrorCode, HostPath, Result, SandboxId, SandboxSpec, Workspace,
};

use super::bridge::Bridge;
use super::host::Host;
use super::link::{Link, Pipe, Shared};
use super::sandbox::SshSandbox;
use super::start::{Started, start};
use super::{Live, NAME, Ssh, lock};
use crate::across::tree::{Side, Tree};
use crate::across::words::Ask;
use crate::native::Native;

/// How long the agent there may take to say its first word.
const DEADLINE: Duration = Duration::from_secs(15);
/// What may come back at once where nothing bounds what the guest may write.
const MOST: u64 = 1 << 40;

pub(super) async fn create(ssh: &Ssh, id: &SandboxId, admitted: &Admitted) -> Result<SshSandbox> {
    workspace(admitted)?;
    let live = Arc::new(Live { host: Mutex::default(), bridge: tokio::sync::Mutex::new(None) });
    lock(&ssh.live).insert(id.clone(), Arc::clone(&live));
    let mut reasons = Vec::new();
    for at in order(ssh, id) {
        let host = &ssh.hosts[at];
        let started = match start(host).await {
            Ok(started) => started,
            Err(error) => {
                reasons.push(error);
                continue;
            }
        };
        *lock(&live.host) = Some(at);
        match build(host, started, id, admitted).await {
            Ok((sandbox, bridge)) => {
                *live.bridge.lock().await = Some(bridge);
                return Ok(sandbox);
            }
            // It is full: nothing was built there.
            Err(error) if error.code() == ErrorCode::QuotaExceeded => reasons.push(error),
            Err(error) => return Err(error),
        }
    }
    Err(nowhere(reasons))
}

/// All hosts, the one with the most room for its capacity first; those that are alike in an order that
/// differs from sandbox to sandbox.
fn order(ssh: &Ssh, id: &SandboxId) -> Vec<usize> {
    let live = lock(&ssh.live);
    let on = |at: usize| live.values().filter(|one| *lock(&one.host) == Some(at)).count() as u64;
    let key = |at: &usize| {
        let capacity = u64::from(ssh.hosts[*at].capacity.unwrap_or(u32::MAX));
        let free = capacity.saturating_sub(on(*at)).saturating_mul(1_000_000) / capacity.max(1);
        let mut hasher = DefaultHasher::new();
        (id.as_str(), at).hash(&mut hasher);
        (Reverse(free), on(*at), hasher.finish())
    };
    let mut all: Vec<usize> = (0..ssh.hosts.len()).collect();
    all.sort_by_key(key);
    all
}

fn nowhere(mut reasons: Vec<Error>) -> Error {
    if reasons.len() == 1
        && let Some(only) = reasons.pop()
    {
        return only;
    }
    let told: Vec<_> = reasons.iter().map(|error| error.message().to_owned()).collect();
    let remedies: Vec<_> = reasons.iter().filter_map(|error| error.hint()).collect();
    let message = match told.is_empty() {
        true => "no host is configured".to_owned(),
        false => told.join("; "),
    };
    let error = Error::new(ErrorCode::Unavailable, "create", message).backend(NAME);
    if remedies.is_empty() { error } else { error.remedy(remedies.join("; ")) }
}

/// The caller's own copy, if the workspace is a directory.
fn workspace(admitted: &Admitted) -> Result<Option<Shared>> {
    let spec = admitted.spec();
    let growth = admitted.limits().disk.map_or(MOST, |disk| disk.0);
    match &spec.workspace {
        Workspace::Ephemeral => Ok(None),
        Workspace::Local(path) => {
            let tree = Tree::open(path.as_path(), Side::Near, growth);
            tree.map(|tree| Some(Arc::new(Mutex::new(tree)))).map_err(|error| unusable(path, error))
        }
        // Not admitted on this backend.
        Workspace::Overlay(layers) => {
            Err(unusable(&layers.upper, std::io::ErrorKind::Unsupported.into()))
        }
    }
}

fn unusable(path: &HostPath, error: std::io::Error) -> Error {
    Error::new(ErrorCode::Invalid, "create", format!("workspace: `{path}` cannot be used"))
        .backend(NAME)
        .remedy("name a directory that exists and that you may read")
        .source(error)
}

async fn build(
    host: &Host,
    started: Started,
    id: &SandboxId,
    admitted: &Admitted,
) -> Result<(SshSandbox, Arc<Bridge>)> {
    let tree = workspace(admitted)?;
    let (link, pipe) = Link::new(host, started);
    request(&link, id, admitted, tree.as_ref()).await?;
    let writable = !admitted.spec().read_only;
    let bridge = Arc::new(Bridge::new(link, tree, writable));
    let client = connect(pipe).await?;
    let user = Native::user(admitted.spec());
    Ok((SshSandbox::new(id.clone(), user, Arc::clone(&bridge), client), bridge))
}

/// A place, the workspace, and walls, in one go.
async fn request(
    link: &Arc<Link>,
    id: &SandboxId,
    admitted: &Admitted,
    tree: Option<&Shared>,
) -> Result<()> {
    let mut turn = link.turn().await;
    let capacity = link.host().capacity;
    turn.say(&Ask::Open { id: id.clone(), capacity }).await?;
    if let Some(tree) = tree {
        turn.tree(tree).await?;
    }
    let spec = Box::new(SandboxSpec { boundaries: Default::default(), ..admitted.spec().clone() });
    let create = Ask::Create { spec, enforcement: admitted.enforcement().to_vec() };
    turn.ask("create", &create, None).await.map(drop)?;
    if let Some(tree) = tree {
        lock(tree).agreed(&[]);
    }
    Ok(())
}

async fn connect(pipe: Pipe) -> Result<AgentClient> {
    let (reader, writer) = tokio::io::split(pipe);
    AgentClient::connect_halves(reader, writer, DEADLINE).await
}
