//! One container: made, attached to, started, found again and removed.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker as Api;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, InspectContainerOptions,
    RemoveContainerOptions, StartContainerOptions,
};
use futures_util::StreamExt;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stockade_agent::client::AgentClient;
use stockade_core::{Admitted, Error, ErrorCode, Result, SandboxId};
use tokio::io::AsyncWrite;
use tokio::time::Instant;
use tokio_util::io::StreamReader;

use super::socket::{is_missing, is_underway};
use super::{NAME, engine_failed, helpers, plan};
use crate::linux::cgroup::Group;
use crate::linux::dir_lock::DirectoryLock;
use crate::linux::find;
use crate::linux::freezer::Stopper;
use crate::linux::host::{START_TIMEOUT, TEARDOWN_TIMEOUT};
use crate::linux::running::{self, BuiltWalls, KillMethod, LiveWalls, left_behind};

/// Interval at which the engine is asked whether a container and its helpers are gone.
const ENGINE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long an engine may still be making a container whose requester is dead.
const CREATION_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// How long the engine's helpers may take to end by themselves before they are killed.
const HELPER_GRACE_PERIOD: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Container {
    api: Api,
    name: String,
    /// By which the engine and its runtime know it.
    pub hash: String,
}

/// Both directions of the agent's pipe.
pub(super) struct ContainerPipe(AttachContainerResults);

/// A container that runs: its first process, as the host sees it.
pub(super) struct StartedContainer {
    pid: i32,
    pidfd: OwnedFd,
    name: String,
}

impl Container {
    pub(super) async fn create(
        api: &Api,
        id: &SandboxId,
        body: ContainerCreateBody,
    ) -> Result<Self> {
        let name = plan::container_name(id);
        let options = CreateContainerOptions { name: Some(name.clone()), ..Default::default() };
        let made = api.create_container(Some(options), body).await;
        let hash = made.map_err(|error| engine_failed("create", &error))?.id;
        Ok(Self { api: api.clone(), name, hash })
    }

    /// Removes one that never ran.
    pub(super) async fn remove_unstarted(&self) {
        let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
        let _ = self.api.remove_container(&self.hash, Some(options)).await;
    }

    /// Where the engine has given it a volume.
    pub(super) async fn find_volume(&self) -> Result<Option<String>> {
        let found = self.api.inspect_container(&self.hash, None::<InspectContainerOptions>).await;
        let mounts =
            found.map_err(|error| engine_failed("create", &error))?.mounts.unwrap_or_default();
        let volume = mounts.into_iter().find(|mount| mount.typ.as_deref() == Some("volume"));
        Ok(volume.map(|volume| volume.destination.unwrap_or_default()))
    }

    /// Attaches before it starts, so that the agent never runs without a reader of its pipe.
    pub(super) async fn start(&self) -> Result<(ContainerPipe, StartedContainer)> {
        let told = |error| engine_failed("create", &error);
        let options = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            ..AttachContainerOptions::default()
        };
        let pipe = self.api.attach_container(&self.name, Some(options)).await.map_err(told)?;
        let started = self.api.start_container(&self.name, None::<StartContainerOptions>).await;
        started.map_err(told)?;
        Ok((ContainerPipe(pipe), self.inspect_started().await?))
    }

    async fn inspect_started(&self) -> Result<StartedContainer> {
        let found = self.api.inspect_container(&self.name, None::<InspectContainerOptions>).await;
        let state = found.map_err(|error| engine_failed("create", &error))?.state;
        let pid = state.and_then(|state| state.pid).and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.filter(|pid| *pid > 0).ok_or_else(ended_at_once)?;
        let pidfd = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        let pidfd = pidfd.ok_or_else(ended_at_once)?;
        let pidfd = pidfd.map_err(|errno| ended_at_once().source(std::io::Error::from(errno)))?;
        Ok(StartedContainer { pid, pidfd, name: self.name.clone() })
    }

    /// An engine refuses to do what is done already: then that is all that was wanted.
    async fn accept_if_done(
        &self,
        what: &'static str,
        asked: Result<(), bollard::errors::Error>,
        paused: bool,
    ) -> Result<()> {
        let Err(error) = asked else { return Ok(()) };
        let found = self.api.inspect_container(&self.name, None::<InspectContainerOptions>).await;
        let state = found.ok().and_then(|found| found.state).and_then(|state| state.paused);
        if state == Some(paused) { Ok(()) } else { Err(engine_failed(what, &error)) }
    }
}

#[async_trait]
impl Stopper for Container {
    async fn set(&self, stop: bool) -> Result<()> {
        match stop {
            true => {
                let asked = self.api.pause_container(&self.name).await;
                self.accept_if_done("pause", asked, true).await
            }
            false => {
                let asked = self.api.unpause_container(&self.name).await;
                self.accept_if_done("resume", asked, false).await
            }
        }
    }
}

fn ended_at_once() -> Error {
    Error::new(ErrorCode::WallMissing, "create", "the container ended before its agent connected")
        .backend(NAME)
        .remedy("see the engine's own log; the agent needs a 64-bit x86 Linux kernel")
}

impl ContainerPipe {
    /// Waits for the agent's first word.
    pub(super) async fn connect(self) -> Result<AgentClient> {
        let AttachContainerResults { output, input } = self.0;
        // The agent writes nothing to its standard error; what the engine says there is not its pipe.
        let pieces = output.filter_map(|piece| async {
            match piece {
                Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => {
                    Some(Ok(message))
                }
                Ok(LogOutput::StdErr { .. } | LogOutput::StdIn { .. }) => None,
                Err(error) => Some(Err(std::io::Error::other(error))),
            }
        });
        let input: Pin<Box<dyn AsyncWrite + Send>> = input;
        AgentClient::connect_halves(StreamReader::new(Box::pin(pieces)), input, START_TIMEOUT).await
    }
}

impl StartedContainer {
    /// The sandbox as the host sees it, to be held to its limits.
    pub(super) fn into_running(
        self,
        id: &SandboxId,
        admitted: &Admitted,
        held: Option<DirectoryLock>,
        api: &Api,
    ) -> Arc<LiveWalls> {
        let Self { pid, pidfd, name } = self;
        let (api, runtime) = (api.clone(), tokio::runtime::Handle::current());
        let kill = move || {
            let (api, name) = (api.clone(), name.clone());
            runtime.spawn(async move { kill_container(&api, &name).await });
        };
        let built = BuiltWalls {
            backend: NAME,
            last: (pid, pidfd),
            ending: KillMethod::Asked(Box::new(kill)),
            group: Group::of(pid),
            written: Vec::new(),
            held,
        };
        Arc::new(LiveWalls::new(id.clone(), built, admitted))
    }
}

async fn kill_container(api: &Api, name: &str) {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    // An error is ignored: the next destroy reports the container if it is still there.
    let _ = tokio::time::timeout(TEARDOWN_TIMEOUT, api.remove_container(name, Some(options))).await;
}

/// Who asked for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalCaller {
    /// A caller that has the engine's reply, or sees the container.
    Here,
    /// A process that was dead by then, perhaps without a reply: the engine may still be creating it.
    DeadSince(Instant),
}

/// Removes a container, running or not, and waits until the engine has forgotten it.
pub(super) async fn destroy_container(
    api: &Api,
    id: &SandboxId,
    asker: RemovalCaller,
) -> Result<()> {
    let name = plan::container_name(id);
    let begun = Instant::now();
    let mut expected = match asker {
        RemovalCaller::Here => None,
        RemovalCaller::DeadSince(then) => Some(then),
    };
    loop {
        let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
        // Only that it knows of none any more is proof. Ending by itself and being removed may meet:
        // the engine then says that it is at it.
        let asked =
            tokio::time::timeout(TEARDOWN_TIMEOUT, api.remove_container(&name, Some(options)))
                .await;
        let Ok(asked) = asked else {
            return Err(left_behind(&NAME, id, "the engine does not answer"));
        };
        match asked {
            Ok(()) => expected = None,
            Err(error) if is_missing(&error) => {
                if expected.is_none_or(|since| since.elapsed() > CREATION_GRACE_PERIOD) {
                    return Ok(());
                }
            }
            Err(error) if is_underway(&error) => {}
            // A runtime may be unable to end what is paused.
            Err(error) if is_busy(&error) => drop(api.unpause_container(&name).await),
            Err(error) => return Err(engine_failed("destroy", &error)),
        }
        if begun.elapsed() > TEARDOWN_TIMEOUT {
            return Err(left_behind(&NAME, id, "the engine does not remove its container"));
        }
        tokio::time::sleep(ENGINE_POLL_INTERVAL).await;
    }
}

/// Whether the engine was in the middle of something with this container.
fn is_busy(error: &bollard::errors::Error) -> bool {
    matches!(error, bollard::errors::Error::DockerResponseServerError { status_code: 500, .. })
}

/// Waits until its first process has ended: with it, everything in it.
pub(super) async fn wait_for_container_exit(running: &LiveWalls) -> Result<()> {
    let waited =
        tokio::time::timeout(TEARDOWN_TIMEOUT, running::wait_for_exit(&running.pidfd)).await;
    let left = |what| left_behind(&NAME, &running.id, what);
    waited
        .map_err(|_| left("its last process does not end"))?
        .map_err(|error| left("its end cannot be watched").source(error))
}

/// Waits until the engine's own helpers for this container are gone, which some leave running a little
/// longer. They are programs of engines, run by the engine's user, that have its name among their arguments,
/// or in one of them what the engine calls it; a runtime that failed half-way may even be forgotten by its
/// engine, and is ended. Processes of other programs or users are left alone, with any arguments.
pub(super) async fn attended_no_more(
    engine: u32,
    id: &SandboxId,
    hash: Option<&str>,
) -> Result<()> {
    let name = plan::container_name(id);
    let meant = |part: &[u8]| {
        let holds = |hash: &str| part.windows(hash.len()).any(|window| window == hash.as_bytes());
        part == name.as_bytes() || hash.is_some_and(holds)
    };
    let begun = tokio::time::Instant::now();
    loop {
        let left = helpers::find_engine_helpers(engine, meant);
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > TEARDOWN_TIMEOUT {
            return Err(left_behind(&NAME, id, "the engine's helper for it does not end"));
        }
        if begun.elapsed() > HELPER_GRACE_PERIOD {
            let still = |pid: i32| helpers::is_helper(pid, engine, meant);
            left.iter().for_each(|pid| drop(find::kill_if(*pid, still)));
        }
        tokio::time::sleep(ENGINE_POLL_INTERVAL).await;
    }
}
