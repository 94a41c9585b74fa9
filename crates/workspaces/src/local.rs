//! Which directory a path means. `/` and whole home directories are refused unless they were named
//! outright: a wrong current directory must not hand them over.

use std::path::{Path, PathBuf};

use rustix::fs::Access;
use stockade_core::HostPath;

use crate::error::{FaultResult, FaultStep, WorkspaceFault};

/// The directory behind all links.
pub(crate) fn resolve_directory(given: &Path) -> FaultResult<HostPath> {
    let real = given.canonicalize().step("find", given.display())?;
    // `.` and links are not outright: only the path itself is.
    if real != given {
        refuse_broad(&real)?;
    }
    if !real.is_dir() {
        return refuse_path(&real, "is not a directory", "name a directory");
    }
    rustix::fs::access(&real, Access::READ_OK | Access::EXEC_OK).step("read", real.display())?;
    let shown = real.display().to_string();
    HostPath::try_from(real).map_err(|_| {
        let problem = "has a name that is not valid UTF-8, or too long";
        WorkspaceFault::Refused { path: shown, problem, remedy: "rename it" }
    })
}

/// The directory the caller stands in, as an explicit path; refused if it is too broad to be meant.
pub(crate) fn resolve_current_directory() -> FaultResult<PathBuf> {
    let dir = std::env::current_dir().step("find", "the current directory")?;
    refuse_broad(&dir)?;
    Ok(dir)
}

fn refuse_broad(dir: &Path) -> FaultResult<()> {
    match too_broad(dir) {
        Some(what) => refuse_path(dir, what, "go to a project's directory, or name it outright"),
        None => Ok(()),
    }
}

fn refuse_path<T>(path: &Path, problem: &'static str, remedy: &'static str) -> FaultResult<T> {
    Err(WorkspaceFault::Refused { path: path.display().to_string(), problem, remedy })
}

/// What is wrong with handing over a directory that was not named outright.
pub fn too_broad(dir: &Path) -> Option<&'static str> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.and_then(|home| home.canonicalize().ok());
    too_broad_with_home(dir, home.as_deref())
}

fn too_broad_with_home(dir: &Path, home: Option<&Path>) -> Option<&'static str> {
    let inside_home = dir.parent() == Some(Path::new("/home"));
    match dir.to_str() {
        Some("/") => Some("is the whole file system"),
        Some("/home") => Some("is everybody's home"),
        Some("/root") => Some("is a whole home directory"),
        _ if inside_home || home == Some(dir) => Some("is a whole home directory"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_whole_homes_are_too_broad() {
        let home = Some(Path::new("/srv/me"));
        for dir in ["/", "/home", "/root", "/home/x", "/srv/me"] {
            assert!(too_broad_with_home(Path::new(dir), home).is_some(), "{dir}");
        }
        for dir in ["/home/x/project", "/root/project", "/srv", "/srv/me/project", "/tmp"] {
            assert!(too_broad_with_home(Path::new(dir), home).is_none(), "{dir}");
        }
    }

    #[test]
    fn the_root_can_be_named_but_not_come_upon() {
        assert!(resolve_directory(Path::new("/")).is_ok());
        assert!(resolve_directory(Path::new("/proc/self/root")).is_err());
    }
}
