//! Directories of the host that an agent may name as workspaces: those beneath what the user allowed. A guest can
//! replace what lies in its own workspace by symbolic links at any time, so that no directory within the workspace of
//! another sandbox is taken, and none around it. Never more than the user allowed, however a path is written.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stockade_core::{ErrorCode, HostPath, SandboxSpec, Workspace};

use crate::ToolError;

/// The directories that the user allowed, and which of those in them are workspaces now. Clones share that.
#[derive(Debug, Clone, Default)]
pub struct AllowedDirectories {
    roots: Vec<HostPath>,
    used: Arc<Mutex<Vec<PathBuf>>>,
}

/// A directory that is the workspace of a sandbox, or about to be, until this is dropped.
#[derive(Debug)]
pub(crate) struct UsedDirectory {
    path: HostPath,
    used: Arc<Mutex<Vec<PathBuf>>>,
}

impl AllowedDirectories {
    /// These and everything beneath. Without any symbolic link in the way.
    pub fn new(roots: Vec<HostPath>) -> Self {
        Self { roots, used: Arc::default() }
    }

    /// The directory that an agent names, if it may have it. Relative ones begin in the template's workspace.
    pub(crate) fn take(
        &self,
        field: &str,
        given: &str,
        template: &SandboxSpec,
    ) -> Result<UsedDirectory, ToolError> {
        let own = match &template.workspace {
            Workspace::Local(own) => Some(own),
            Workspace::Ephemeral => None,
            Workspace::Overlay(_) => return Err(changes_kept_apart(field)),
        };
        let real = resolve_directory(field, given, own)?;
        if own == Some(&real) {
            return Ok(self.mark_used(&mut self.lock_used(), real));
        }
        if !self.roots.iter().any(|root| real.as_path().starts_with(root.as_path())) {
            return Err(self.not_allowed(field, given));
        }
        // Held until it is marked, so that of two who come at once one sees the other.
        let mut used = self.lock_used();
        let own = own.map(|own| own.as_path().to_owned());
        if used.iter().chain(&own).any(|other| are_nested(other, real.as_path())) {
            let problem =
                format!("`{real}` lies in the workspace of another sandbox, or around it");
            return Err(ToolError::field(field, problem)
                .remedy("destroy that sandbox first, or name its own directory"));
        }
        Ok(self.mark_used(&mut used, real))
    }

    fn mark_used(&self, used: &mut Vec<PathBuf>, path: HostPath) -> UsedDirectory {
        used.push(path.as_path().to_owned());
        UsedDirectory { path, used: Arc::clone(&self.used) }
    }

    fn lock_used(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names what was given, not what it leads to: an agent learns nothing about the host by it.
    fn not_allowed(&self, field: &str, given: &str) -> ToolError {
        let message = format!("`{field}`: `{}` is not allowed", given.escape_debug());
        let allowed: Vec<_> = self.roots.iter().map(ToString::to_string).collect();
        let remedy = match allowed.is_empty() {
            true => {
                "leave it out, or have the server started with --allow-workspace DIR".to_owned()
            }
            false => format!("name a directory beneath {}", allowed.join(" or ")),
        };
        ToolError::new(ErrorCode::Denied, message).remedy(remedy)
    }
}

impl UsedDirectory {
    pub(crate) fn path(&self) -> &HostPath {
        &self.path
    }
}

impl Drop for UsedDirectory {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // One of them, where several sandboxes share a directory.
        if let Some(at) = used.iter().position(|path| path == self.path.as_path()) {
            used.swap_remove(at);
        }
    }
}

/// Whether one is within the other. The same directory is not: its guest cannot replace it.
fn are_nested(one: &Path, other: &Path) -> bool {
    one != other && (one.starts_with(other) || other.starts_with(one))
}

/// The directory behind all symbolic links. Why it cannot be had is not told: it may not be the agent's to know.
fn resolve_directory(
    field: &str,
    given: &str,
    own: Option<&HostPath>,
) -> Result<HostPath, ToolError> {
    let path = match own {
        Some(own) => own.as_path().join(given),
        None => PathBuf::from(given),
    };
    let real =
        Some(path).filter(|path| path.is_absolute()).and_then(|path| path.canonicalize().ok());
    let real = real.filter(|real| real.is_dir()).and_then(|real| HostPath::try_from(real).ok());
    real.ok_or_else(|| {
        let problem = format!("`{}` is no directory that can be used", given.escape_debug());
        ToolError::field(field, problem).remedy("name one that is there, by its whole path")
    })
}

fn changes_kept_apart(field: &str) -> ToolError {
    let problem = "this server keeps changes apart from one directory, and has views of no other";
    ToolError::field(field, problem)
        .remedy("leave it out, or have the server started without --overlay")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        allowed: AllowedDirectories,
        template: SandboxSpec,
    }

    fn host_path(path: &Path) -> HostPath {
        HostPath::try_from(path.canonicalize().unwrap()).unwrap()
    }

    /// `work` is the server's own workspace, everything in `allowed` may be named, and `secret` may not.
    fn bench() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        for name in ["work/inner", "allowed/a/inner", "allowed/b", "secret"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let allowed = AllowedDirectories::new(vec![host_path(&dir.path().join("allowed"))]);
        let workspace = Workspace::Local(host_path(&dir.path().join("work")));
        Bench { dir, allowed, template: SandboxSpec { workspace, ..SandboxSpec::default() } }
    }

    impl Bench {
        fn take(&self, name: &str) -> Result<UsedDirectory, ToolError> {
            self.allowed.take(
                "workspace",
                self.dir.path().join(name).to_str().unwrap(),
                &self.template,
            )
        }
    }

    #[test]
    fn only_what_lies_beneath_an_allowed_directory_is_given() {
        let bench = bench();
        symlink(bench.dir.path().join("secret"), bench.dir.path().join("allowed/link")).unwrap();
        for name in ["secret", "allowed/../secret", "allowed/link", ""] {
            assert_eq!(bench.take(name).unwrap_err().code, ErrorCode::Denied, "{name}");
        }
        for name in ["allowed/nothing", "work/nothing"] {
            assert_eq!(bench.take(name).unwrap_err().code, ErrorCode::Invalid, "{name}");
        }
        let given = bench.take("allowed/b").unwrap();
        assert_eq!(*given.path(), host_path(&bench.dir.path().join("allowed/b")));
        assert!(bench.allowed.take("workspace", "../allowed/b", &bench.template).is_ok());
        assert!(bench.allowed.take("workspace", ".", &bench.template).is_ok(), "the server's own");
    }

    #[test]
    fn nothing_within_or_around_the_workspace_of_another_sandbox_is_given() {
        let bench = bench();
        let outer = bench.take("allowed/a").unwrap();
        assert!(bench.take("allowed/a/inner").is_err() && bench.take("allowed").is_err());
        assert!(bench.take("allowed/a").is_ok() && bench.take("allowed/b").is_ok());
        drop(outer);
        assert!(bench.take("allowed/a/inner").is_ok());
        let wide = AllowedDirectories::new(vec![host_path(bench.dir.path())]);
        let inner = bench.dir.path().join("work/inner");
        assert!(wide.take("workspace", inner.to_str().unwrap(), &bench.template).is_err());
    }

    #[test]
    fn two_sandboxes_of_one_directory_both_keep_it() {
        let bench = bench();
        let (one, two) = (bench.take("allowed/a").unwrap(), bench.take("allowed/a").unwrap());
        drop(one);
        assert!(bench.take("allowed/a/inner").is_err());
        drop(two);
        assert!(bench.take("allowed/a/inner").is_ok());
    }
}
