//! Saboteurs of limits and walls.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_backends::mock::Mock;
use stockade_core::{
    Admitted, Backend, Bytes, Command, EffectiveLimits, Error, ErrorCode, Feature, Files, Image,
    LimitKind, Result, Run, Sandbox, SandboxId, SandboxPath, SandboxSpec, admit,
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

/// Waits at a file that is none until something is written to it.
#[derive(Default)]
pub(super) struct WaitsForFifo;

#[async_trait]
impl Sabotage for WaitsForFifo {
    async fn read(
        &self,
        files: &dyn Files,
        path: &SandboxPath,
        offset: u64,
        most: u32,
    ) -> Result<Data> {
        match files.read(path, offset, most).await {
            Err(error) if error.code() == ErrorCode::Invalid => std::future::pending().await,
            answer => answer,
        }
    }
}

/// Takes images, and makes what a sandbox is to have where the links in them lead.
#[derive(Default)]
pub(super) struct FollowsImageLinks;

impl FollowsImageLinks {
    fn make_mount_points(image: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(image)? {
            let entry = entry?;
            if entry.file_type()?.is_symlink() {
                std::fs::create_dir_all(std::fs::read_link(entry.path())?.join("mounted"))?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Sabotage for FollowsImageLinks {
    fn declared(&self) -> Option<Feature> {
        Some(Feature::DirectoryImage)
    }

    async fn create(
        &self,
        mock: &Mock,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        if let Image::Directory(image) = &admitted.spec().image {
            Self::make_mount_points(image.as_path()).map_err(|error| {
                Error::new(ErrorCode::System, "create", "the image cannot be used").source(error)
            })?;
        }
        mock.create(id, admitted).await
    }

    /// The program in the image's root, which the mock knows by its name in the workspace.
    fn command(&self, command: &Command) -> Command {
        let mut argv = command.argv();
        argv.iter_mut().take(1).for_each(|program| *program = "./probe".into());
        Command { run: Run::Program(argv), ..command.clone() }
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
