//! Files of a sandbox whose workspace keeps its own path: the path by which every other backend shows
//! it means the same thing here.

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_agent::client::AgentClient;
use stockade_core::{Entry, Files, Result, SandboxPath, WORKSPACE_ROOT};

pub(super) struct WorkspaceFiles(pub AgentClient);

/// The same path from the workspace on, if it leads there.
pub(super) fn from_workspace(path: &SandboxPath) -> SandboxPath {
    let inside = path.as_str().strip_prefix(WORKSPACE_ROOT);
    let relative = match inside.map(|rest| (rest.starts_with('/'), rest.trim_start_matches('/'))) {
        Some((_, "")) => ".",
        Some((true, rest)) => rest,
        // Another directory whose name begins alike, or another place altogether.
        Some((false, _)) | None => return path.clone(),
    };
    relative.parse().unwrap_or_else(|_| path.clone())
}

#[async_trait]
impl Files for WorkspaceFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.0.files().stat(&from_workspace(path)).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.0.files().list(&from_workspace(path)).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        self.0.files().read(&from_workspace(path), offset, most).await
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        self.0.files().write(&from_workspace(path), data, append).await
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.0.files().set_mode(&from_workspace(path), mode).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.0.files().make_dir(&from_workspace(path)).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.0.files().rename(&from_workspace(from), &from_workspace(to)).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.0.files().remove(&from_workspace(path)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_path_of_the_workspace_leads_there() {
        for (given, meant) in [
            ("/workspace", "."),
            ("/workspace/", "."),
            ("/workspace/a/b", "a/b"),
            ("/workspaces", "/workspaces"),
            ("/etc", "/etc"),
            ("a", "a"),
        ] {
            assert_eq!(from_workspace(&given.parse().unwrap()).as_str(), meant);
        }
    }
}
