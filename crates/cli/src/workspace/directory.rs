//! The directory that `--workspace` or the current directory means, with errors in the words of flags. What is
//! too broad to be handed over unless it was named outright is for the library of workspaces to say.

use std::path::Path;

use rustix::fs::Access;
use stockade_core::{Error, ErrorCode, HostPath, Result, SandboxSpec, Workspace};
use stockade_engine::real_path;
use stockade_workspaces::too_broad;

use crate::args::resolve_existing_path;
use crate::config::Settings;

const WORKSPACE_FLAG: &str = "--workspace";

/// What the flags say.
#[derive(Debug)]
pub enum AskedWorkspace<'a> {
    /// No directory of the host.
    Nothing,
    /// This one.
    Directory(&'a Path),
    /// Where the caller stands.
    Here,
}

/// The workspace that is meant, as an absolute path.
pub fn resolve_workspace(asked: &AskedWorkspace<'_>) -> Result<Workspace> {
    match asked {
        AskedWorkspace::Nothing => Ok(Workspace::Ephemeral),
        AskedWorkspace::Directory(dir) => resolve_named_dir(dir).map(Workspace::Local),
        AskedWorkspace::Here => resolve_current_dir().map(Workspace::Local),
    }
}

fn resolve_named_dir(dir: &Path) -> Result<HostPath> {
    let real = require_directory(resolve_existing_path(WORKSPACE_FLAG, dir)?)?;
    // `.` and links are not outright: only the path itself is.
    if real.as_path() != dir {
        refuse_broad(&real)?;
    }
    Ok(real)
}

fn resolve_current_dir() -> Result<HostPath> {
    let dir = std::env::current_dir().map_err(|error| {
        Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, "the current directory cannot be used")
            .remedy("name a directory with --workspace DIR, or use --no-workspace")
            .source(error)
    })?;
    let dir = HostPath::try_from(dir)
        .map_err(|error| Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, error.to_string()))?;
    refuse_broad(&dir)?;
    require_readable(dir)
}

fn require_directory(path: HostPath) -> Result<HostPath> {
    if path.as_path().is_dir() {
        return require_readable(path);
    }
    Err(Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, format!("`{path}` is not a directory"))
        .remedy("name a directory; a single file can be given with --mount"))
}

/// Asked here, since inside it would look like a failure of the command.
fn require_readable(path: HostPath) -> Result<HostPath> {
    match rustix::fs::access(path.as_path(), Access::READ_OK | Access::EXEC_OK) {
        Ok(()) => Ok(path),
        Err(errno) => {
            let message = format!("`{path}` cannot be read");
            Err(Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, message)
                .remedy("name a directory that you may read")
                .source(errno))
        }
    }
}

fn refuse_broad(dir: &HostPath) -> Result<()> {
    let Some(what) = too_broad(dir.as_path()) else { return Ok(()) };
    Err(Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, format!("`{dir}` {what}")).remedy(format!(
        "go to a project's directory, or use --no-workspace; --workspace {dir} is accepted if \
         Stockade's state, configuration and caches lie elsewhere"
    )))
}

/// Refuses a spec that shows its guest what is Stockade's own or shared by programs of the host (C-06).
/// The engine checks the same again: this is before anything is made for the spec.
pub fn check_views(spec: &SandboxSpec, settings: &Settings) -> Result<()> {
    let refusals = settings.engine()?.refused_views(spec);
    match refusals.0.is_empty() {
        true => Ok(()),
        false => Err(Error::refused("check what the sandbox sees", None, refusals)),
    }
}

/// Refuses a directory that is named among the trees of other workspaces: `--resume` goes on in
/// one of those.
pub fn refuse_state(dir: &HostPath, settings: &Settings) -> Result<()> {
    let state = real_path(&settings.state_dir()?);
    if !dir.as_path().starts_with(&state) {
        return Ok(());
    }
    let message = format!("`{dir}` lies in the state directory `{}`", state.display());
    Err(Error::new(ErrorCode::Invalid, WORKSPACE_FLAG, message)
        .remedy("name a directory elsewhere, or continue in a workspace with --resume ID"))
}
