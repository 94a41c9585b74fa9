//! Files of a sandbox: read and written in pieces, never whole in memory. Paths are the sandbox's own (C-22);
//! what they resolve to is decided by its files (C-21).

use std::ops::Range;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Sandbox, SandboxPath};

use super::answer::{ApiAnswer, answer_done, answer_ok};
use super::body::{check_length, next_chunk, read_json};
use super::failure::ApiFailure;
use super::named::{NamedWalls, UsedSandbox};
use super::page::{MAX_PAGE_ENTRIES, PageBuilder};
use super::query::ApiQuery;

/// Piece in which files are read and written.
pub(super) const TRANSFER_CHUNK_BYTES: usize = 1 << 20;
/// The longest file that is taken or given.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 30;
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
    headers: HeaderMap,
) -> ApiAnswer {
    let entry = in_time(sandbox.files()?.stat(&path)).await?;
    let length = find_length(&entry)?;
    let part = match length {
        Some(length) => find_range(&headers, length)?,
        None => None,
    };
    let (offset, end) = match &part {
        Some(part) => (part.start, Some(part.end)),
        None => (0, length),
    };
    let mut download = FileDownload { sandbox, path, offset, end };
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
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = length {
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CONTENT_LENGTH, end.unwrap_or(length).saturating_sub(offset).into());
        if let Some(Range { start, end }) = part
            && let Ok(range) = format!("bytes {start}-{}/{length}", end - 1).parse()
        {
            headers.insert(CONTENT_RANGE, range);
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        }
    }
    Ok(response)
}

/// The part of a file of this length that a request asks for; nothing where the whole is sent, as it is where several
/// parts are asked for, or one of the file as it was before.
fn find_range(headers: &HeaderMap, length: u64) -> Result<Option<Range<u64>>, ApiFailure> {
    let given = headers.get(RANGE).filter(|_| !headers.contains_key(IF_RANGE));
    let given = given.and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let Some((first, last)) = given.and_then(|range| range.trim().split_once('-')) else {
        return Ok(None);
    };
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        // What is too large for a number is larger than any file.
        true if !text.is_empty() => Some(text.parse().unwrap_or(u64::MAX)),
        true | false => None,
    };
    let part = match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => return Ok(None),
        (Some(first), Some(last)) => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        (None, Some(count)) if first.is_empty() => length.saturating_sub(count)..length,
        (Some(_) | None, Some(_) | None) => return Ok(None),
    };
    if part.is_empty() { Err(ApiFailure::bad_range(length)) } else { Ok(Some(part)) }
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
    sandbox: UsedSandbox,
    path: SandboxPath,
    offset: u64,
    /// Where to stop. Absent: at its end.
    end: Option<u64>,
}

impl FileDownload {
    /// The next piece; nothing at the end.
    async fn read_piece(&mut self) -> stockade_core::Result<Option<Bytes>> {
        let left = self.end.unwrap_or(MAX_FILE_BYTES).saturating_sub(self.offset);
        if left == 0 && self.offset > 0 {
            return Ok(None);
        }
        // At least one byte is asked for, so that an empty file is read too.
        let most = u32::try_from(left.clamp(1, TRANSFER_CHUNK_BYTES as u64)).unwrap_or(1);
        let mut piece = in_time(self.sandbox.files()?.read(&self.path, self.offset, most)).await?;
        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        if self.end.is_some() && piece.is_empty() && left > 0 {
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
    write_body(&*sandbox, &path, body).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_understood_and_what_lies_behind_the_end_is_refused() {
        let find =
            |range: &str| find_range(&HeaderMap::from_iter([(RANGE, range.parse().unwrap())]), 10);
        for (range, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-5", 2..6),
            ("bytes=5-", 5..10),
            ("bytes=8-99999999999999999999", 8..10),
            ("bytes=-3", 7..10),
            ("bytes=-99", 0..10),
        ] {
            assert_eq!(find(range).unwrap(), Some(part), "{range}");
        }
        for whole in
            ["bytes=5-2", "bytes=-", "bytes=a-b", "bytes=0-1,4-5", "lines=0-1", "bytes=+1-2"]
        {
            assert_eq!(find(whole).unwrap(), None, "{whole}");
        }
        for behind in ["bytes=10-", "bytes=99-100", "bytes=-0", "bytes=99999999999999999999-"] {
            let status = find(behind).unwrap_err().into_response().status();
            assert_eq!(status, StatusCode::RANGE_NOT_SATISFIABLE, "{behind}");
        }
    }
}
