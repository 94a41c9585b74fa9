//! A snapshot of files: an archive of each place that a sandbox may write to, made and unpacked by its
//! agent. The same on every backend that has an agent, so each can bring back what another captured.
//! Not of an instant: what writes while it is taken may be caught half-way.
//!
//! Archives come from the guest and go back to the guest; nothing here ever unpacks one on the host.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use bytes::Bytes as Data;
use stockade_agent::client::AgentClient;
use stockade_core::{
    Admitted, BackendName, Error, ErrorCode, Feature, Result, RootMode, SandboxPath, SandboxSpec,
    SnapshotFiles, SnapshotKind, WORKSPACE_ROOT,
};
use stockade_launcher::PRIVATE_DIRECTORIES;

/// The size of a chunk in which archives travel.
const CHUNK_BYTES: usize = 256 << 10;
/// The directory into which a snapshot is unpacked until it is complete.
const STAGING_DIR: &str = ".stockade-restored";
/// The most a snapshot may hold where no limit bounds the disk.
const MAX_SNAPSHOT_BYTES: u64 = 16 << 30;

/// The places of one sandbox that a snapshot of its files holds.
pub(crate) struct Archives {
    backend: BackendName,
    places: Vec<&'static str>,
    /// Why they are not all that the sandbox writes to.
    incomplete: Option<(String, &'static str)>,
    /// How much one may hold.
    most: u64,
    /// One at a time.
    busy: tokio::sync::Mutex<()>,
}

impl Archives {
    pub(crate) fn new(backend: BackendName, admitted: &Admitted) -> Self {
        let places = list_writable_places(admitted.spec());
        let incomplete = explain_incomplete(admitted.spec(), &places);
        let most = admitted.limits().disk.map_or(MAX_SNAPSHOT_BYTES, |disk| disk.0);
        Self { backend, places, incomplete, most, busy: tokio::sync::Mutex::default() }
    }

    /// Captures every place.
    pub(crate) async fn write_snapshot(
        &self,
        client: &AgentClient,
        kind: SnapshotKind,
        into: &Path,
    ) -> Result<()> {
        if kind == SnapshotKind::Full {
            return Err(Error::unsupported("snapshot", Feature::FullSnapshot));
        }
        self.require_complete("snapshot")?;
        let _alone = self.busy.lock().await;
        let mut left = self.most;
        for place in &self.places {
            self.fetch_archive(client, place, &into.join(archive_name(place)), &mut left).await?;
        }
        Ok(())
    }

    /// Brings every place back. Nothing is removed before all of it has arrived.
    pub(crate) async fn bring_back(
        &self,
        client: &AgentClient,
        from: &SnapshotFiles,
    ) -> Result<()> {
        if from.kind == SnapshotKind::Full {
            return Err(Error::unsupported("restore", Feature::FullSnapshot));
        }
        self.require_complete("restore")?;
        let _alone = self.busy.lock().await;
        let staged = self.stage_archives(client, from).await;
        if staged.is_err() {
            for place in &self.places {
                let _ = client.files().remove(&self.path(place, STAGING_DIR)?).await;
            }
        }
        staged?;
        for place in &self.places {
            client.replace(&self.path(place, "")?, STAGING_DIR).await?;
        }
        Ok(())
    }

    /// Writes the tree at any path.
    pub(crate) async fn write_tree(
        &self,
        client: &AgentClient,
        path: &SandboxPath,
        into: &Path,
        mut most: u64,
    ) -> Result<()> {
        let _alone = self.busy.lock().await;
        self.fetch_archive(client, path.as_str(), into, &mut most).await
    }

    fn require_complete(&self, operation: &'static str) -> Result<()> {
        let Some((reason, remedy)) = &self.incomplete else { return Ok(()) };
        Err(Error::new(ErrorCode::Unsupported, operation, reason)
            .backend(self.backend.clone())
            .remedy(*remedy))
    }

    fn path(&self, place: &str, name: &str) -> Result<SandboxPath> {
        let joined = if name.is_empty() { place.to_owned() } else { format!("{place}/{name}") };
        let no_path =
            |_| self.operation_failed("restore", format!("`{}` is no path", name.escape_debug()));
        joined.parse().map_err(no_path)
    }

    /// Writes the archive of one place to a file.
    async fn fetch_archive(
        &self,
        client: &AgentClient,
        place: &str,
        file: &Path,
        left: &mut u64,
    ) -> Result<()> {
        let kept = |error: std::io::Error| {
            self.operation_failed("snapshot", format!("it cannot be kept: {error}"))
                .remedy("make room in the state directory")
        };
        let mut out = File::create_new(file).map_err(kept)?;
        let mut archive = client.tar_out(&self.path(place, "")?).await?;
        while let Some(piece) = archive.next().await.map_err(name_remedy)? {
            let Some(rest) = left.checked_sub(piece.len() as u64) else {
                let message = "the files have more bytes than the sandbox may write to disk";
                return Err(Error::new(ErrorCode::TooLarge, "snapshot", message)
                    .backend(self.backend.clone())
                    .remedy("give the sandbox a higher disk limit"));
            };
            *left = rest;
            out.write_all(&piece).map_err(kept)?;
        }
        Ok(())
    }

    async fn stage_archives(&self, client: &AgentClient, from: &SnapshotFiles) -> Result<()> {
        for place in &self.places {
            let unread = |error: std::io::Error| {
                self.operation_failed("restore", format!("it cannot be read: {error}"))
            };
            let staging = self.path(place, STAGING_DIR)?;
            client.files().remove(&staging).await?;
            // What had no such place had nothing in it.
            let Ok(part) = from.get(&archive_name(place)) else {
                client.files().make_dir(&staging).await?;
                continue;
            };
            let mut file = File::open(part).map_err(unread)?;
            let mut unpacking = client.tar_in(&staging).await?;
            loop {
                let mut piece = vec![0; CHUNK_BYTES];
                let count = file.read(&mut piece).map_err(unread)?;
                if count == 0 {
                    break;
                }
                piece.truncate(count);
                unpacking.write(Data::from(piece)).await?;
            }
            unpacking.finish().await?;
        }
        Ok(())
    }

    fn operation_failed(&self, operation: &'static str, message: String) -> Error {
        Error::new(ErrorCode::System, operation, message).backend(self.backend.clone())
    }
}

/// A file that the sandbox's user cannot read is not left out silently: the error names it, and what to do.
fn name_remedy(error: Error) -> Error {
    if error.code() == ErrorCode::Denied {
        return error.remedy("make it readable inside (`chmod u+rX`), or remove it");
    }
    error
}

/// The places that a guest may write to, its workspace first.
fn list_writable_places(spec: &SandboxSpec) -> Vec<&'static str> {
    let workspace = (!spec.read_only).then_some(WORKSPACE_ROOT);
    workspace.into_iter().chain(PRIVATE_DIRECTORIES.map(|(place, _)| place)).collect()
}

/// What keeps the places from being all that there is.
fn explain_incomplete(spec: &SandboxSpec, places: &[&str]) -> Option<(String, &'static str)> {
    if spec.root == RootMode::CopyOnWrite {
        let reason = "what is written to a copy-on-write root cannot be captured";
        return Some((reason.into(), "leave the root read-only"));
    }
    // What is behind a mount belongs to the host: it is neither captured nor replaced.
    let mut places = places.to_vec();
    places.extend((!spec.read_only).then(|| spec.workspace_dir()));
    let inside = |target: &Path| places.iter().any(|place| target.starts_with(place));
    let mount = spec.all_mounts().find(|mount| inside(Path::new(mount.target.as_str())))?;
    let reason = format!("the mount at `{}` lies where the sandbox writes", mount.target);
    Some((reason, "mount it outside of the workspace, /tmp and the home directory"))
}

/// What the archive of a place is called.
fn archive_name(place: &str) -> String {
    place.trim_start_matches('/').replace('/', "-")
}
