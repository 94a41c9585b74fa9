//! Files of a sandbox: read and written in pieces, never whole in memory. Paths are the sandbox's own (C-22);
//! what they resolve to is decided by its files (C-21).

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::Deserialize;
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Sandbox, SandboxPath};

use super::answer::{ApiAnswer, answer_done, answer_ok};
use super::body::{check_length, next_chunk, read_json};
use super::failure::ApiFailure;
use super::named::NamedWalls;
use super::page::{MAX_PAGE_ENTRIES, PageBuilder};
use super::query::ApiQuery;

/// Piece in which files are read and written.
const TRANSFER_CHUNK_BYTES: usize = 1 << 20;
/// The longest file that is taken or given.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// Timeout for one operation on files: the agent that carries it out is not trusted.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// Which file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileQuery {
    path: SandboxPath,
}

/// Which directory, and which page of what is in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirectoryQuery {
    path: SandboxPath,
    /// The last name of the page before.
    after: Option<String>,
    limit: Option<usize>,
}

/// Which file, and its permission bits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UploadQuery {
    path: SandboxPath,
    /// In octal.
    mode: Option<String>,
}

/// Where a file is and is to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMove {
    from: SandboxPath,
    to: SandboxPath,
}

/// A directory to make.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDirectory {
    path: SandboxPath,
}

/// `GET /v1/sandboxes/{id}/files`
pub(crate) async fn download_file(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(FileQuery { path }): ApiQuery<FileQuery>,
) -> ApiAnswer {
    let entry = in_time(sandbox.files()?.stat(&path)).await?;
    let length = find_length(&entry)?;
    let mut download = FileDownload { sandbox, path, offset: 0, length };
    // The first piece before the answer, so that what cannot be read is an error and not an empty file.
    let first = download.read_piece().await?;
    let pieces = stream::unfold((Some(first), download), |(piece, mut download)| async move {
        let piece = match piece {
            Some(first) => first,
            None => match download.read_piece().await {
                Ok(piece) => piece,
                // The connection is cut: the client must not take the part for the whole.
                Err(error) => return Some((Err(error), (Some(None), download))),
            },
        }?;
        Some((Ok(piece), (None, download)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Ok(response)
}

/// The length of what is read: of a regular file what it has now, however a guest makes it grow.
fn find_length(entry: &Entry) -> Result<Option<u64>, ApiFailure> {
    match entry.kind {
        EntryKind::File if entry.size > MAX_FILE_BYTES => {
            let message = format!("the file has more than {MAX_FILE_BYTES} bytes");
            Err(ApiFailure::new(ErrorCode::TooLarge, message))
        }
        EntryKind::File => Ok(Some(entry.size)),
        // What a link leads to is known when it is read; what else is no file is refused then.
        EntryKind::Directory | EntryKind::Symlink | EntryKind::Other => Ok(None),
    }
}

/// A file that is being read.
struct FileDownload {
    sandbox: Arc<dyn Sandbox>,
    path: SandboxPath,
    offset: u64,
    /// Absent: up to its end.
    length: Option<u64>,
}

impl FileDownload {
    /// The next piece; nothing at the end.
    async fn read_piece(&mut self) -> stockade_core::Result<Option<Bytes>> {
        let left = self.length.unwrap_or(MAX_FILE_BYTES).saturating_sub(self.offset);
        if left == 0 && self.offset > 0 {
            return Ok(None);
        }
        // At least one byte is asked for, so that an empty file is read too.
        let most = u32::try_from(left.clamp(1, TRANSFER_CHUNK_BYTES as u64)).unwrap_or(1);
        let mut piece = in_time(self.sandbox.files()?.read(&self.path, self.offset, most)).await?;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        if self.length.is_some() && piece.is_empty() && left > 0 {
            let message = format!("`{}` has become shorter while it was read", self.path);
            return Err(Error::new(ErrorCode::Invalid, "read", message));
        }
        self.offset += piece.len() as u64;
        Ok((!piece.is_empty()).then_some(piece))
    }
}

/// `PUT /v1/sandboxes/{id}/files`
pub(crate) async fn upload_file(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(UploadQuery { path, mode }): ApiQuery<UploadQuery>,
    body: Body,
) -> ApiAnswer {
    let mode = mode.map(|mode| parse_mode(&mode)).transpose()?;
    let files = sandbox.files()?;
    write_body(sandbox.as_ref(), &path, body).await?;
    if let Some(mode) = mode {
        in_time(files.set_mode(&path, mode)).await?;
    }
    answer_ok(&in_time(files.stat(&path)).await?)
}

/// Writes a body to a file, in pieces of one size however small those of the body are.
async fn write_body(
    sandbox: &dyn Sandbox,
    path: &SandboxPath,
    mut body: Body,
) -> Result<(), ApiFailure> {
    check_length(body.size_hint().lower(), MAX_FILE_BYTES)?;
    let files = sandbox.files()?;
    let (mut piece, mut length, mut append) = (BytesMut::new(), 0, false);
    while let Some(chunk) = next_chunk(&mut body).await? {
        length += chunk.len() as u64;
        check_length(length, MAX_FILE_BYTES)?;
        piece.extend_from_slice(&chunk);
        while piece.len() >= TRANSFER_CHUNK_BYTES {
            let full = piece.split_to(TRANSFER_CHUNK_BYTES).freeze();
            in_time(files.write(path, full, append)).await?;
            append = true;
        }
    }
    if !piece.is_empty() || !append {
        in_time(files.write(path, piece.freeze(), append)).await?;
    }
    Ok(())
}

pub(super) fn parse_mode(given: &str) -> Result<u32, ApiFailure> {
    let mode = u32::from_str_radix(given, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        ApiFailure::new(ErrorCode::Invalid, "`mode` is not permission bits in octal, such as 755")
    })
}

/// `DELETE /v1/sandboxes/{id}/files`
pub(crate) async fn remove_file(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(FileQuery { path }): ApiQuery<FileQuery>,
) -> ApiAnswer {
    in_time(sandbox.files()?.remove(&path)).await?;
    answer_done()
}

/// `GET /v1/sandboxes/{id}/files/stat`
pub(crate) async fn stat_file(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(FileQuery { path }): ApiQuery<FileQuery>,
) -> ApiAnswer {
    answer_ok(&in_time(sandbox.files()?.stat(&path)).await?)
}

/// `GET /v1/sandboxes/{id}/files/list`
pub(crate) async fn list_files(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(query): ApiQuery<DirectoryQuery>,
) -> ApiAnswer {
    let mut entries = in_time(sandbox.files()?.list(&query.path)).await?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut page = PageBuilder::new(query.limit.or(Some(MAX_PAGE_ENTRIES)));
    let later = |one: &&Entry| query.after.as_ref().is_none_or(|after| one.name > *after);
    for entry in entries.iter().filter(later) {
        if !page.push(&entry.name, entry)? {
            break;
        }
    }
    answer_ok(&page.finish("entries"))
}

/// `POST /v1/sandboxes/{id}/files/move`
pub(crate) async fn move_file(NamedWalls(sandbox): NamedWalls, body: Body) -> ApiAnswer {
    let FileMove { from, to } = read_json(body).await?;
    in_time(sandbox.files()?.rename(&from, &to)).await?;
    answer_done()
}

/// `POST /v1/sandboxes/{id}/files/directory`
pub(crate) async fn make_directory(NamedWalls(sandbox): NamedWalls, body: Body) -> ApiAnswer {
    let NewDirectory { path } = read_json(body).await?;
    in_time(sandbox.files()?.make_dir(&path)).await?;
    answer_done()
}

pub(super) async fn in_time<T>(
    work: impl Future<Output = stockade_core::Result<T>>,
) -> stockade_core::Result<T> {
    let late = |_| Err(Error::new(ErrorCode::TooSlow, "files", "the sandbox does not answer"));
    tokio::time::timeout(FILE_TIMEOUT, work).await.unwrap_or_else(late)
}
