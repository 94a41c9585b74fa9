//! Files of local execution: the workspace and nothing else. Without walls the agent could open any
//! file of the user's, so an absolute path is taken only where it leads into the workspace.

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Entry, Error, ErrorCode, Files, HostPath, Result, SandboxPath, WORKSPACE_ROOT,
};

pub(super) struct LocalFiles {
    pub client: AgentClient,
    root: HostPath,
}

impl LocalFiles {
    pub(super) fn new(client: AgentClient, root: &HostPath) -> Self {
        Self { client, root: root.clone() }
    }

    /// The same path from the workspace on; one that leads elsewhere is refused by name (C-21).
    pub(super) fn resolve_inside(&self, path: &SandboxPath) -> Result<SandboxPath> {
        inside(&self.root, path)
    }
}

/// The path of local execution from its workspace on; one that leads elsewhere is refused by name.
pub fn inside(workspace: &HostPath, path: &SandboxPath) -> Result<SandboxPath> {
    path_beneath(&workspace.to_string(), path).ok_or_else(|| {
        let message = format!("`{path}` leaves the workspace");
        Error::new(ErrorCode::PathEscapes, "find a path", message)
            .remedy("local files are those of the workspace; give a path in it")
    })
}

fn path_beneath(root: &str, path: &SandboxPath) -> Option<SandboxPath> {
    if !path.is_absolute() {
        return Some(path.clone());
    }
    let below = |root: &str| {
        let rest = path.as_str().strip_prefix(root.trim_end_matches('/'))?;
        match rest.trim_start_matches('/') {
            "" => Some("."),
            inner if rest.starts_with('/') => Some(inner),
            // Another directory whose name begins alike.
            _ => None,
        }
    };
    // Parsed again from its new start: what led back above it is refused.
    below(root).or_else(|| below(WORKSPACE_ROOT))?.parse().ok()
}

#[async_trait]
impl Files for LocalFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        self.client.files().stat(&self.resolve_inside(path)?).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        self.client.files().list(&self.resolve_inside(path)?).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        self.client.files().read(&self.resolve_inside(path)?, offset, most).await
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        self.client.files().write(&self.resolve_inside(path)?, data, append).await
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.client.files().set_mode(&self.resolve_inside(path)?, mode).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.client.files().make_dir(&self.resolve_inside(path)?).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.client.files().rename(&self.resolve_inside(from)?, &self.resolve_inside(to)?).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.client.files().remove(&self.resolve_inside(path)?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_workspace_has_absolute_paths() {
        for (given, meant) in [
            ("a/b", Some("a/b")),
            ("/srv/work", Some(".")),
            ("/srv/work/a", Some("a")),
            ("/workspace/a", Some("a")),
            ("/srv/works/a", None),
            ("/etc/passwd", None),
            ("/srv/work/../x", None),
            ("/", None),
        ] {
            let found = path_beneath("/srv/work", &given.parse().unwrap());
            assert_eq!(found.as_ref().map(SandboxPath::as_str), meant, "{given}");
        }
    }
}
