//! Saboteurs of limits and walls.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_backends::mock::Mock;
use stockade_core::{
    Admitted, Backend, Bytes, EffectiveLimits, Error, ErrorCode, Files, LimitKind, Result, Sandbox,
    SandboxId, SandboxPath, SandboxSpec, admit,
};
use tokio::sync::OnceCell;

use super::frame::Sabotage;

macro_rules! ignoring {
    ($($type:ident $limit:ident)*) => {$(
        #[derive(Default)]
        pub(super) struct $type;

        #[async_trait]
        impl Sabotage for $type {
            fn limits(&self, limits: &EffectiveLimits) -> EffectiveLimits {
                let mut limits = *limits;
                limits.lift(LimitKind::$limit);
                limits
            }
        }
    )*};
}

ignoring! {
    IgnoresMemory Memory
    IgnoresCpuTime CpuTime
    IgnoresCpuRate CpuRate
    IgnoresProcesses Processes
    IgnoresOpenFiles OpenFiles
}

/// Builds for another spec than the one that was admitted.
async fn create_with_changed_spec(
    mock: &Mock,
    id: &SandboxId,
    admitted: &Admitted,
    change: fn(&mut SandboxSpec),
) -> Result<Arc<dyn Sandbox>> {
    let mut spec = admitted.spec().clone();
    change(&mut spec);
    let changed = admit(&spec, &mock.probe().await);
    let changed = changed.map_err(|refusals| Error::refused("create", None, refusals))?;
    mock.create(id, &changed).await
}

#[derive(Default)]
pub(super) struct IgnoresDisk;

#[async_trait]
impl Sabotage for IgnoresDisk {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        create_with_changed_spec(mock, id, admitted, |spec| {
            spec.limits.disk = Some(Bytes(u64::MAX))
        })
        .await
    }
}

#[derive(Default)]
pub(super) struct IgnoresReadOnly;

#[async_trait]
impl Sabotage for IgnoresReadOnly {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        create_with_changed_spec(mock, id, admitted, |spec| spec.read_only = false).await
    }
}

#[derive(Default)]
pub(super) struct FollowsLinks;

#[async_trait]
impl Sabotage for FollowsLinks {
    async fn read(
        &self,
        files: &dyn Files,
        path: &SandboxPath,
        offset: u64,
        most: u32,
    ) -> Result<Data> {
        match files.read(path, offset, most).await {
            Err(error) if error.code() == ErrorCode::PathEscapes => {
                Ok(Data::from_static(b"secret"))
            }
            answer => answer,
        }
    }
}

/// Gives everybody the same sandbox.
#[derive(Default)]
pub(super) struct SharesFiles(OnceCell<Arc<dyn Sandbox>>);

#[async_trait]
impl Sabotage for SharesFiles {
    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        self.0.get_or_try_init(|| mock.create(id, admitted)).await.cloned()
    }
}
