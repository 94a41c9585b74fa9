//! Saboteurs of how sandboxes come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stockade_backends::mock::Mock;
use stockade_core::{
    Admitted, Backend, Error, ErrorCode, Feature, Result, Sandbox, SandboxId, SnapshotFiles,
};

use super::frame::Sabotage;

#[derive(Default)]
pub(super) struct LeavesSandbox;

#[async_trait]
impl Sabotage for LeavesSandbox {
    async fn destroy(&self, _mock: &Mock, _id: &SandboxId) -> Result<()> {
        Ok(())
    }
}

/// Strikes the sandbox off its list and leaves everything in it running.
#[derive(Default)]
pub(super) struct LeavesProcesses(Mutex<BTreeSet<SandboxId>>);

#[async_trait]
impl Sabotage for LeavesProcesses {
    async fn list(&self, mock: &Mock) -> Result<Vec<SandboxId>> {
        let listed = mock.list().await?;
        let hidden = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(listed.into_iter().filter(|id| !hidden.contains(id)).collect())
    }

    async fn destroy(&self, _mock: &Mock, id: &SandboxId) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct DestroysOnce;

#[async_trait]
impl Sabotage for DestroysOnce {
    async fn destroy(&self, mock: &Mock, id: &SandboxId) -> Result<()> {
        if !mock.list().await?.contains(id) {
            return Err(Error::new(ErrorCode::NotFound, "destroy", "there is no such sandbox"));
        }
        mock.destroy(id).await
    }
}

#[derive(Default)]
pub(super) struct HangsOnUnknown;

#[async_trait]
impl Sabotage for HangsOnUnknown {
    async fn destroy(&self, mock: &Mock, id: &SandboxId) -> Result<()> {
        if !mock.list().await?.contains(id) {
            std::future::pending().await
        }
        mock.destroy(id).await
    }
}

#[derive(Default)]
pub(super) struct ForgetsToList;

#[async_trait]
impl Sabotage for ForgetsToList {
    async fn list(&self, _mock: &Mock) -> Result<Vec<SandboxId>> {
        Ok(Vec::new())
    }
}

/// How long building takes: time to give it up in, on a busy host too.
const BUILD_DURATION: Duration = Duration::from_secs(2);

/// Builds a sandbox whose creation was cancelled all the same, after it was told to destroy it.
#[derive(Default)]
pub(super) struct BuildsOn(Mutex<BTreeMap<SandboxId, Admitted>>);

impl BuildsOn {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Admitted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sabotage for BuildsOn {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        self.pending().insert(id.clone(), admitted.clone());
        tokio::time::sleep(BUILD_DURATION).await;
        let built = mock.create(id, admitted).await;
        self.pending().remove(id);
        built
    }

    async fn destroy(&self, mock: &Mock, id: &SandboxId) -> Result<()> {
        mock.destroy(id).await?;
        let cancelled = self.pending().get(id).cloned();
        match cancelled {
            Some(admitted) => mock.create(id, &admitted).await.map(drop),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
pub(super) struct DeclaresAndRefuses;

#[async_trait]
impl Sabotage for DeclaresAndRefuses {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        if admitted.spec().read_only {
            return Err(Error::unsupported("create", Feature::ReadOnlyWorkspace));
        }
        mock.create(id, admitted).await
    }
}

#[derive(Default)]
pub(super) struct PausesNothing;

#[async_trait]
impl Sabotage for PausesNothing {
    async fn pause(&self, _sandbox: &dyn Sandbox) -> Result<()> {
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct RestoresNothing;

#[async_trait]
impl Sabotage for RestoresNothing {
    async fn restore(&self, _sandbox: &dyn Sandbox, _from: &SnapshotFiles) -> Result<()> {
        Ok(())
    }
}

/// Notes each sandbox in a file that every user of the host may read.
#[derive(Default)]
pub(super) struct MakesOpenFiles;

impl MakesOpenFiles {
    fn path(id: &SandboxId) -> PathBuf {
        std::env::temp_dir().join(format!("stockade-open-{id}"))
    }

    fn write_note(id: &SandboxId) -> std::io::Result<()> {
        std::fs::write(Self::path(id), "")?;
        std::fs::set_permissions(Self::path(id), Permissions::from_mode(0o644))
    }
}

#[async_trait]
impl Sabotage for MakesOpenFiles {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        Self::write_note(id).map_err(|error| {
            Error::new(ErrorCode::System, "create", "the note cannot be written").source(error)
        })?;
        mock.create(id, admitted).await
    }

    async fn destroy(&self, mock: &Mock, id: &SandboxId) -> Result<()> {
        // It may have gone already, or never have been.
        let _ = std::fs::remove_file(Self::path(id));
        mock.destroy(id).await
    }
}
