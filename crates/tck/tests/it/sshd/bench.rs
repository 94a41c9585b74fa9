//! An engine with a workspace and nothing but hosts to build on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stockade_backends::ssh::{Host, Ssh};
use stockade_core::{Backend, BackendChoice, Error, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig};

use super::Sshd;

/// Timeout for the remote side to notice that its peer is gone, and to clean up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);

/// An engine with one backend, and a workspace.
pub struct SshBench {
    pub engine: Engine,
    pub base: tempfile::TempDir,
}

impl SshBench {
    pub async fn new(hosts: Vec<Host>) -> Self {
        let base = tempfile::Builder::new().prefix("stockade-ssh-test-").tempdir().unwrap();
        fs::create_dir(base.path().join("workspace")).unwrap();
        let backend: Arc<dyn Backend> = Arc::new(Ssh::new(hosts));
        let config = EngineConfig::at(base.path().join("state"));
        let engine = Engine::open(config, vec![backend]).await.unwrap();
        Self { engine, base }
    }

    pub fn workspace(&self) -> PathBuf {
        self.base.path().join("workspace")
    }

    pub fn spec(&self) -> SandboxSpec {
        let workspace = HostPath::try_from(self.workspace()).unwrap();
        SandboxSpec {
            backend: BackendChoice::Named(stockade_backends::ssh::NAME),
            workspace: Workspace::Local(workspace),
            ..SandboxSpec::default()
        }
    }

    pub async fn expect_create_error(&self) -> Error {
        let created = self.engine.create(self.spec()).await;
        created.err().unwrap()
    }
}

/// Waits until nothing that was carried there runs, and no sandbox has a directory there.
pub async fn nothing_left(sshd: &Sshd, cache: &Path) {
    let until = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let dirs = fs::read_dir(cache.join("stockade/sandboxes")).into_iter().flatten().count();
        let running = sshd.list_carried();
        if dirs == 0 && running.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left: {dirs} directories, processes {running:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
