//! Directories of a sandbox as tar archives: out, and in. What an archive says is its client's or the guest's; names are
//! the sandbox's own and what they resolve to is decided by its files (C-21).

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::json;
use stockade_core::{Error, ErrorCode, Files, SandboxPath};
use stockade_fs::fresh_id;

use super::answer::{ApiAnswer, answer_ok};
use super::failure::ApiFailure;
use super::files::{MAX_FILE_BYTES, TRANSFER_CHUNK_BYTES, in_time};
use super::named::{NamedSandbox, NamedWalls};
use super::query::ApiQuery;
use super::state::Api;
use super::tar_reader::{TarEntry, TarKind, TarReader};

/// The longest archive of a directory that is given: it is on the host's disk while it is sent.
const MAX_ARCHIVE_BYTES: u64 = 1 << 30;
/// Files and directories of an archive that is taken.
const MAX_ENTRIES: usize = 100_000;
/// Names of entries that were left out, in the answer.
const MAX_NAMES_LEFT_OUT: usize = 100;

/// Which directory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirectoryChoice {
    path: SandboxPath,
}

/// An archive on the host's disk. Dropped, it is removed.
struct StoredArchive(PathBuf);

impl Drop for StoredArchive {
    fn drop(&mut self) {
        // What stays is removed when the next daemon begins.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `GET /v1/sandboxes/{id}/files/tar`
pub(crate) async fn download_directory(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
    ApiQuery(DirectoryChoice { path }): ApiQuery<DirectoryChoice>,
) -> ApiAnswer {
    let busy = held.begin_use(&api.engine)?;
    held.refuse_paused(&api.engine)?;
    let room = api.reserve_archive(&held.spec.tenant)?;
    let id: stockade_core::JobId = fresh_id()?;
    let stored = StoredArchive(api.archives.join(id.as_str()));
    api.engine.archive_tree(&held.id, &path, &stored.0, MAX_ARCHIVE_BYTES).await?;
    let file = File::open(&stored.0).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    // It has no name from here on: nothing of it stays, whatever becomes of this process.
    drop(stored);
    let pieces = stream::unfold((Some(file), busy, room), |(file, busy, room)| async move {
        let file = file?;
        // After an error nothing follows: the connection is cut.
        let (piece, rest) = match tokio::task::spawn_blocking(move || read_piece(file)).await {
            Ok(Ok((piece, file))) => (Ok(piece), Some(file)),
            Ok(Err(error)) => (Err(error), None),
            Err(error) => (Err(io::Error::other(error)), None),
        };
        let is_end = piece.as_ref().is_ok_and(Bytes::is_empty);
        (!is_end).then_some((piece, (rest, busy, room)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(CONTENT_LENGTH, length.into());
    Ok(response)
}

/// The next piece of a file; an empty one at its end.
fn read_piece(mut file: File) -> io::Result<(Bytes, File)> {
    let mut piece = Vec::with_capacity(TRANSFER_CHUNK_BYTES);
    file.by_ref().take(TRANSFER_CHUNK_BYTES as u64).read_to_end(&mut piece)?;
    Ok((piece.into(), file))
}

fn unreadable(error: io::Error) -> Error {
    let message = "the archive cannot be read back";
    Error::new(ErrorCode::StateUnavailable, "archive", message).source(error)
}

/// Makes the directory of archives, and removes what a daemon that was killed has left there.
pub(crate) fn clear_archives(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => DirBuilder::new().mode(0o700).create(dir),
    }
}

/// What was taken of an archive.
#[derive(Debug, Default)]
struct TakenEntries {
    files: usize,
    directories: usize,
    bytes: u64,
    left_out: usize,
    names_left_out: Vec<String>,
    /// The directory that was made last.
    made: Option<String>,
}

/// `PUT /v1/sandboxes/{id}/files/tar`
pub(crate) async fn upload_directory(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(DirectoryChoice { path }): ApiQuery<DirectoryChoice>,
    body: Body,
) -> ApiAnswer {
    let files = sandbox.files()?;
    in_time(files.make_dir(&path)).await?;
    let mut archive = TarReader::new(body, MAX_FILE_BYTES);
    let mut taken = TakenEntries::default();
    while let Some(entry) = archive.next_entry().await? {
        if taken.files + taken.directories + taken.left_out == MAX_ENTRIES {
            let message = format!("the archive has more than {MAX_ENTRIES} entries");
            return Err(ApiFailure::new(ErrorCode::TooLarge, message).last());
        }
        take_entry(files, &path, &entry, &mut archive, &mut taken).await?;
    }
    let TakenEntries { files, directories, bytes, left_out, names_left_out, .. } = taken;
    answer_ok(&json!({
        "files": files,
        "directories": directories,
        "bytes": bytes,
        "leftOut": left_out,
        "namesLeftOut": names_left_out,
    }))
}

async fn take_entry(
    files: &dyn Files,
    dir: &SandboxPath,
    entry: &TarEntry,
    archive: &mut TarReader,
    taken: &mut TakenEntries,
) -> Result<(), ApiFailure> {
    let Some(path) = join_entry(dir, &entry.name)? else { return Ok(()) };
    match entry.kind {
        TarKind::Directory => {
            in_time(files.make_dir(&path)).await?;
            taken.made = Some(path.as_str().to_owned());
            taken.directories += 1;
        }
        TarKind::File => {
            make_parent(files, &path, taken).await?;
            write_entry(files, &path, archive).await?;
            in_time(files.set_mode(&path, entry.mode)).await?;
            taken.files += 1;
            taken.bytes += entry.size;
        }
        TarKind::Other => {
            taken.left_out += 1;
            if taken.names_left_out.len() < MAX_NAMES_LEFT_OUT {
                taken.names_left_out.push(entry.name.clone());
            }
        }
    }
    Ok(())
}

/// Makes the directory of a file, unless it was made last.
async fn make_parent(
    files: &dyn Files,
    path: &SandboxPath,
    taken: &mut TakenEntries,
) -> Result<(), ApiFailure> {
    let Some((parent, _)) = path.as_str().rsplit_once('/') else { return Ok(()) };
    if !parent.is_empty() && taken.made.as_deref() != Some(parent) {
        in_time(files.make_dir(&parent.parse().map_err(not_a_path)?)).await?;
        taken.made = Some(parent.to_owned());
    }
    Ok(())
}

async fn write_entry(
    files: &dyn Files,
    path: &SandboxPath,
    archive: &mut TarReader,
) -> Result<(), ApiFailure> {
    let mut append = false;
    while let Some(piece) = archive.next_piece(TRANSFER_CHUNK_BYTES).await? {
        in_time(files.write(path, piece, append)).await?;
        append = true;
    }
    if !append {
        in_time(files.write(path, Bytes::new(), false)).await?;
    }
    Ok(())
}

/// Where an entry belongs; nothing for the directory itself. No name leads out of it.
fn join_entry(dir: &SandboxPath, name: &str) -> Result<Option<SandboxPath>, ApiFailure> {
    let parts: Vec<_> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        let message = "an entry of the archive leads out of its directory by `..`";
        return Err(ApiFailure::new(ErrorCode::PathEscapes, message).last());
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let joined = format!("{}/{}", dir.as_str().trim_end_matches('/'), parts.join("/"));
    joined.parse().map(Some).map_err(not_a_path)
}

fn not_a_path(error: impl std::fmt::Display) -> ApiFailure {
    ApiFailure::new(
        ErrorCode::Invalid,
        format!("an entry of the archive has no usable name: {error}"),
    )
    .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_below_their_directory() {
        let join = |dir: &str, name: &str| {
            let joined = join_entry(&dir.parse().unwrap(), name);
            joined.map(|path| path.map(|path| path.as_str().to_owned()))
        };
        assert_eq!(join("dir", "./a//b/").unwrap().unwrap(), "dir/a/b");
        assert_eq!(join("/", "/etc/x").unwrap().unwrap(), "/etc/x");
        assert_eq!(join("dir", "./").unwrap(), None);
        for wrong in ["../x", "a/../../x", "..", "a/..", "a\0b"] {
            assert!(join("dir", wrong).is_err(), "{wrong:?}");
        }
    }
}
