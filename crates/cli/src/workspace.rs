//! Which directory a command works on. One that is `/` or somebody's whole home is refused unless it
//! was named outright: nobody hands those over by standing in the wrong place.

use std::path::{Path, PathBuf};

use rustix::fs::Access;
use stockade_core::{Error, ErrorCode, HostPath, Result, SandboxSpec, Workspace};
use stockade_workspaces::too_broad;

use crate::args::existing;

const WORKSPACE: &str = "--workspace";

/// What the flags say.
#[derive(Debug)]
pub enum Asked<'a> {
    /// No directory of the host.
    Nothing,
    /// This one.
    Directory(&'a Path),
    /// Where the caller stands.
    Here,
}

/// The workspace that is meant, as an absolute path.
pub fn resolve(asked: &Asked<'_>) -> Result<Workspace> {
    match asked {
        Asked::Nothing => Ok(Workspace::Ephemeral),
        Asked::Directory(dir) => named(dir).map(Workspace::Local),
        Asked::Here => here().map(Workspace::Local),
    }
}

fn named(dir: &Path) -> Result<HostPath> {
    let real = directory(existing(WORKSPACE, dir)?)?;
    // `.` and links are not outright: only the path itself is.
    if real.as_path() != dir {
        refuse_broad(&real)?;
    }
    Ok(real)
}

fn here() -> Result<HostPath> {
    let dir = std::env::current_dir().map_err(|error| {
        Error::new(ErrorCode::Invalid, WORKSPACE, "the current directory cannot be used")
            .remedy("name a directory with --workspace DIR, or use --no-workspace")
            .source(error)
    })?;
    let dir = HostPath::try_from(dir)
        .map_err(|error| Error::new(ErrorCode::Invalid, WORKSPACE, error.to_string()))?;
    refuse_broad(&dir)?;
    readable(dir)
}

fn directory(path: HostPath) -> Result<HostPath> {
    if path.as_path().is_dir() {
        return readable(path);
    }
    Err(Error::new(ErrorCode::Invalid, WORKSPACE, format!("`{path}` is not a directory"))
        .remedy("name a directory; a single file can be given with --mount"))
}

/// Asked here, since inside it would look like a failure of the command.
fn readable(path: HostPath) -> Result<HostPath> {
    match rustix::fs::access(path.as_path(), Access::READ_OK | Access::EXEC_OK) {
        Ok(()) => Ok(path),
        Err(errno) => {
            let message = format!("`{path}` cannot be read");
            Err(Error::new(ErrorCode::Invalid, WORKSPACE, message)
                .remedy("name a directory that you may read")
                .source(errno))
        }
    }
}

fn refuse_broad(dir: &HostPath) -> Result<()> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.and_then(|home| home.canonicalize().ok());
    let Some(what) = too_broad(dir.as_path(), home.as_deref()) else { return Ok(()) };
    Err(Error::new(ErrorCode::Invalid, WORKSPACE, format!("`{dir}` {what}")).remedy(format!(
        "go to a project's directory, use --no-workspace, or name it outright with --workspace {dir}"
    )))
}

/// Refuses a spec that lets the guest write to the records about itself.
pub fn keep_state_out(spec: &SandboxSpec, state: &Path) -> Result<()> {
    let state = real(state);
    let workspace = match &spec.workspace {
        Workspace::Local(dir) if !spec.read_only => Some(dir),
        // What is changed in a view of it may be applied later.
        Workspace::Overlay(layers) if !spec.read_only => Some(&layers.lower),
        Workspace::Local(_) | Workspace::Overlay(_) | Workspace::Ephemeral => None,
    };
    let mounts = spec.mounts.iter().filter(|mount| !mount.read_only).map(|mount| &mount.source);
    match workspace.into_iter().chain(mounts).find(|dir| state.starts_with(dir.as_path())) {
        None => Ok(()),
        Some(dir) => {
            let message = format!(
                "the state directory `{}` lies in `{dir}`, where the command could change it",
                state.display()
            );
            let remedy = "set STOCKADE_STATE_DIR to a directory elsewhere, or use --read-only";
            Err(Error::new(ErrorCode::Invalid, "run", message).remedy(remedy))
        }
    }
}

/// The path behind all links, as far as it exists.
pub fn real(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        if let Ok(found) = there.canonicalize() {
            return missing.iter().rev().fold(found, |path, name| path.join(name));
        }
        let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
            return path.to_owned();
        };
        missing.push(name);
        there = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_yet_is_followed_as_far_as_it_is() {
        assert_eq!(real(Path::new("/proc/self/root/nowhere/x")), Path::new("/nowhere/x"));
    }
}
