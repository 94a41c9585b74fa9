//! Snapshots of the files of one sandbox: an archive of each place it may write to, kept beside its
//! bundle and gone with it. Not of an instant: what writes while it is taken may be caught half-way.
//!
//! Archives come from the guest and go back to the guest; nothing here ever unpacks one on the host.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes as Data;
use sha2::{Digest, Sha256};
use stockade_agent::client::AgentClient;
use stockade_core::{Error, ErrorCode, Result, SandboxId, SandboxPath, SnapshotId};

use super::NAME;
use crate::linux::lock;

/// The piece in which archives travel.
const PIECE: usize = 256 << 10;
/// Where what is brought back waits until all of it is there.
const STAGE: &str = ".stockade-restored";

pub(super) struct Snapshots {
    id: SandboxId,
    directory: PathBuf,
    places: Vec<&'static str>,
    /// How much one may hold.
    most: u64,
    /// What lies in them without being the sandbox's own.
    foreign: Vec<String>,
    taken: Mutex<HashMap<SnapshotId, Vec<Archive>>>,
    /// One at a time.
    busy: tokio::sync::Mutex<u64>,
}

#[derive(Clone)]
struct Archive {
    place: &'static str,
    file: PathBuf,
    digest: [u8; 32],
}

impl Snapshots {
    pub(super) fn new(
        id: SandboxId,
        directory: PathBuf,
        places: Vec<&'static str>,
        most: u64,
        foreign: Vec<String>,
    ) -> Self {
        let (taken, busy) = (Mutex::default(), tokio::sync::Mutex::new(0));
        Self { id, directory, places, most, foreign, taken, busy }
    }

    /// Captures every place.
    pub(super) async fn take(&self, client: &AgentClient) -> Result<SnapshotId> {
        if let Some(target) = self.foreign.first() {
            return Err(not_its_own(target));
        }
        let mut number = self.busy.lock().await;
        *number += 1;
        let name = format!("{:.48}s{}", self.id.as_str(), *number);
        let snapshot: SnapshotId =
            name.parse().map_err(|_| failed("snapshot", "it cannot be named".into()))?;
        let directory = self.directory.join(snapshot.as_str());
        let archives = self.archive(client, &directory).await;
        if archives.is_err() {
            let _ = fs::remove_dir_all(&directory);
        }
        let mut taken = lock(&self.taken);
        taken.insert(snapshot.clone(), archives?);
        Ok(snapshot)
    }

    async fn archive(&self, client: &AgentClient, directory: &Path) -> Result<Vec<Archive>> {
        let made = DirBuilder::new().mode(0o700).create(directory);
        made.map_err(|error| failed("snapshot", format!("it cannot be kept: {error}")))?;
        let mut left = self.most;
        let mut archives = Vec::new();
        for (number, place) in self.places.iter().copied().enumerate() {
            let file = directory.join(number.to_string());
            let digest = fetch(client, place, &file, &mut left).await?;
            archives.push(Archive { place, file, digest });
        }
        Ok(archives)
    }

    /// Brings every place back. Nothing is removed before all of it has arrived.
    pub(super) async fn bring_back(
        &self,
        client: &AgentClient,
        snapshot: &SnapshotId,
    ) -> Result<()> {
        let _alone = self.busy.lock().await;
        let taken = lock(&self.taken).get(snapshot).cloned();
        let archives = taken.ok_or_else(|| unknown(snapshot))?;
        for archive in &archives {
            verify(archive)?;
        }
        let staged = stage(client, &archives).await;
        if staged.is_err() {
            for archive in &archives {
                let _ = client.files().remove(&path(archive.place, STAGE)?).await;
            }
        }
        staged?;
        for archive in &archives {
            swap(client, archive.place).await?;
        }
        Ok(())
    }
}

fn path(place: &str, name: &str) -> Result<SandboxPath> {
    let joined = if name.is_empty() { place.to_owned() } else { format!("{place}/{name}") };
    joined.parse().map_err(|_| failed("restore", format!("`{}` is no path", name.escape_debug())))
}

/// Writes the archive of one place to a file, and says what it holds.
async fn fetch(client: &AgentClient, place: &str, file: &Path, left: &mut u64) -> Result<[u8; 32]> {
    let kept = |error: std::io::Error| failed("snapshot", format!("it cannot be kept: {error}"));
    let mut out = File::create_new(file).map_err(kept)?;
    let mut digest = Sha256::new();
    let mut archive = client.tar_out(&path(place, "")?).await?;
    while let Some(piece) = archive.next().await? {
        let Some(rest) = left.checked_sub(piece.len() as u64) else {
            let message = "the files have more bytes than the sandbox may write to disk";
            return Err(Error::new(ErrorCode::TooLarge, "snapshot", message).backend(NAME));
        };
        *left = rest;
        digest.update(&piece);
        out.write_all(&piece).map_err(kept)?;
    }
    Ok(digest.finalize().into())
}

/// Nobody else should be able to change what is kept; if somebody did, it is not brought back.
fn verify(archive: &Archive) -> Result<()> {
    let mut digest = Sha256::new();
    let read = File::open(&archive.file).and_then(|mut file| {
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(()),
                count => digest.update(&piece[..count]),
            }
        }
    });
    read.map_err(|error| failed("restore", format!("it cannot be read: {error}")))?;
    match <[u8; 32]>::from(digest.finalize()) == archive.digest {
        true => Ok(()),
        false => Err(failed("restore", "it was changed since it was taken".into())),
    }
}

async fn stage(client: &AgentClient, archives: &[Archive]) -> Result<()> {
    for archive in archives {
        let staging = path(archive.place, STAGE)?;
        client.files().remove(&staging).await?;
        let mut file = File::open(&archive.file)
            .map_err(|error| failed("restore", format!("it cannot be read: {error}")))?;
        let mut unpacking = client.tar_in(&staging).await?;
        loop {
            let mut piece = vec![0; PIECE];
            let count = file
                .read(&mut piece)
                .map_err(|error| failed("restore", format!("it cannot be read: {error}")))?;
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

/// Puts what was staged in the place of what is there.
async fn swap(client: &AgentClient, place: &str) -> Result<()> {
    let files = client.files();
    for entry in files.list(&path(place, "")?).await? {
        if entry.name != STAGE {
            files.remove(&path(place, &entry.name)?).await?;
        }
    }
    let staging = path(place, STAGE)?;
    for entry in files.list(&staging).await? {
        files.rename(&path(staging.as_str(), &entry.name)?, &path(place, &entry.name)?).await?;
    }
    files.remove(&staging).await
}

/// Bringing it back would empty what is mounted there, which is the host's.
fn not_its_own(target: &str) -> Error {
    let message = format!("mounts: `{target}` lies where the sandbox writes, and is the host's");
    Error::new(ErrorCode::Invalid, "snapshot", message)
        .backend(NAME)
        .remedy("mount it outside of the workspace and of private places, such as below /mnt")
}

fn unknown(snapshot: &SnapshotId) -> Error {
    let message = format!("this sandbox has no snapshot `{snapshot}`");
    Error::new(ErrorCode::NotFound, "restore", message).backend(NAME)
}

fn failed(operation: &'static str, message: String) -> Error {
    Error::new(ErrorCode::System, operation, message).backend(NAME)
}
