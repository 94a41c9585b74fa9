//! Finding the engine's socket, and telling what went wrong behind it. Unix sockets only: an engine on
//! another machine does not see this one's files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker as Api;
use bollard::errors::Error as ApiError;
use stockade_core::{Error, ErrorCode, Result, clean_foreign};

use super::NAME;

/// How long the engine may take for a reply that is not about images, in seconds.
const REQUEST_TIMEOUT_SECONDS: u64 = 60;
/// How long the engine may take for the handshake, in which it says who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

const ENGINE_REMEDY: &str = "install `docker.io` or `podman` and start it, and see that you may use its \
                     socket; DOCKER_HOST=unix://… names another one";

/// Which engine, and how it builds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "factory", derive(serde::Deserialize))]
#[cfg_attr(feature = "factory", serde(rename_all = "camelCase", deny_unknown_fields, default))]
pub struct DockerOptions {
    /// Its socket. Absent: DOCKER_HOST, or the usual places.
    pub socket: Option<PathBuf>,
    /// The runtime that is registered there under this name, such as `runsc`. Absent: its default.
    pub runtime: Option<String>,
}

/// The engine behind a socket.
#[derive(Debug)]
pub(super) struct EngineHandle {
    pub api: Api,
    pub socket: PathBuf,
    /// The user it runs as on the host.
    pub uid: u32,
    /// Whether it runs as an ordinary user, whose containers have that user as their root.
    pub rootless: bool,
    /// Whether it is Podman behind Docker's interface: it knows no owners of a tmpfs but root, and takes masks by another
    /// name.
    pub podman: bool,

    pub runtime: Option<String>,
    /// The limits that it says it can set.
    pub limits: EngineLimits,
}

/// The limits that an engine says it can set.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineLimits {
    pub memory: bool,
    pub processes: bool,
    pub cpu: bool,
}

impl DockerOptions {
    /// The socket that is used: the one that is named, or the first that is there.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        if let Some(named) = &self.socket {
            return Ok(named.clone());
        }
        if let Some(host) = std::env::var_os("DOCKER_HOST").filter(|host| !host.is_empty()) {
            let host = host.to_string_lossy().into_owned();
            return host
                .strip_prefix("unix://")
                .map(PathBuf::from)
                .ok_or_else(|| remote_engine_error(&host));
        }
        let found = default_sockets().into_iter().find(|path| path.exists());
        found.ok_or_else(|| engine_unavailable("no engine's socket is there").remedy(ENGINE_REMEDY))
    }

    /// Changes when the engine was started anew.
    pub(super) fn fingerprint(&self) -> Option<String> {
        let socket = self.socket().ok()?;
        let found = std::fs::metadata(&socket).ok()?;
        let runtime = self.runtime.as_deref().unwrap_or_default();
        let (inode, at) = (found.ino(), found.ctime_nsec());
        Some(format!("{} {inode} {} {at} {runtime}", socket.display(), found.ctime()))
    }
}

fn default_sockets() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.iter().flat_map(|dir| [dir.join("docker.sock"), dir.join("podman/podman.sock")]);
    let system = ["/run/docker.sock", "/run/podman/podman.sock"].map(PathBuf::from);
    // A socket that this user may not use is as good as none.
    own.chain(system).filter(|path| may_use(path)).collect()
}

fn may_use(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path, Access::WRITE_OK).is_ok()
}

impl EngineHandle {
    pub(super) async fn connect(options: &DockerOptions) -> Result<Self> {
        let socket = options.socket()?;
        let path = socket.to_string_lossy();
        let api =
            Api::connect_with_unix(&path, REQUEST_TIMEOUT_SECONDS, bollard::API_DEFAULT_VERSION)
                .map_err(|error| engine_unreachable(&path, &error))?;
        let greeted =
            tokio::time::timeout(HANDSHAKE_TIMEOUT, negotiate_engine(api, socket.clone(), options))
                .await;
        greeted
            .map_err(|_| {
                engine_unavailable("it does not answer").remedy("see why the engine hangs")
            })?
            .map_err(|error| engine_unreachable(&path, &error))
    }
}

async fn negotiate_engine(
    api: Api,
    socket: PathBuf,
    options: &DockerOptions,
) -> Result<EngineHandle, ApiError> {
    let api = api.negotiate_version().await?;
    let (version, info) = (api.version().await?, api.info().await?);
    let parts = version.components.unwrap_or_default();
    let podman = parts.iter().any(|part| part.name.contains("Podman"));
    let security = info.security_options.unwrap_or_default();
    let has = |name: &str| security.iter().any(|option| option.contains(name));
    let uid = runs_as(&socket).await;
    Ok(EngineHandle {
        uid,
        rootless: has("rootless") || uid != 0,
        podman,
        runtime: options.runtime.clone(),
        limits: EngineLimits {
            memory: info.memory_limit.unwrap_or(false),
            processes: info.pids_limit.unwrap_or(false),
            cpu: info.cpu_cfs_quota.unwrap_or(false),
        },
        api,
        socket,
    })
}

/// Who listens at a socket. Not every engine says that it has no root.
async fn runs_as(socket: &Path) -> u32 {
    let peer = tokio::net::UnixStream::connect(socket).await.and_then(|stream| stream.peer_cred());
    peer.map_or(u32::MAX, |peer| peer.uid())
}

fn engine_unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Unavailable, "connect", message.into()).backend(NAME)
}

fn engine_unreachable(path: &str, error: &ApiError) -> Error {
    engine_unavailable(format!(
        "the engine at `{path}` cannot be reached: {}",
        describe_api_error(error)
    ))
    .remedy(ENGINE_REMEDY)
}

fn remote_engine_error(host: &str) -> Error {
    engine_unavailable(format!(
        "DOCKER_HOST is `{host}`: an engine elsewhere does not see this host's files"
    ))
    .remedy("set DOCKER_HOST=unix://…, or use the ssh backend for another machine")
}

/// What the engine said, in one line.
pub(super) fn describe_api_error(error: &ApiError) -> String {
    let text = if let ApiError::DockerResponseServerError { message, .. } = error {
        message.clone()
    } else {
        let source = std::error::Error::source(error);
        source.map_or(error.to_string(), |source| format!("{error}: {source}"))
    };
    clean_foreign(&text)
}

/// Whether it is that there is no such thing.
pub(super) fn is_missing(error: &ApiError) -> bool {
    matches!(error, ApiError::DockerResponseServerError { status_code: 404, .. })
}

/// Whether the engine is already busy with the same thing for another request.
pub(super) fn is_underway(error: &ApiError) -> bool {
    matches!(error, ApiError::DockerResponseServerError { status_code: 409, .. })
}

/// The engine refused, or went away.
pub(super) fn convert_api_error(what: &'static str, error: &ApiError) -> Error {
    let refused = matches!(error, ApiError::DockerResponseServerError { .. });
    let (code, remedy) = match refused {
        true => (ErrorCode::WallMissing, "see the engine's own log"),
        false => (ErrorCode::Unavailable, "see whether the engine still runs, and try again"),
    };
    Error::new(code, what, format!("the engine failed: {}", describe_api_error(error)))
        .backend(NAME)
        .remedy(remedy)
}
