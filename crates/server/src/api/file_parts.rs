//! Files of a sandbox in parts: what another engine needs that passes on one operation at a time.

use axum::body::Body;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use stockade_core::SandboxPath;

use super::answer::{ApiAnswer, answer_done};
use super::body::{MAX_BODY_BYTES, read_body, read_json};
use super::files::{in_time, parse_mode};
use super::named::NamedWalls;
use super::query::ApiQuery;

/// Which part of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadPartQuery {
    path: SandboxPath,
    #[serde(default)]
    offset: u64,
    /// At most this many bytes, and never more than a body has.
    length: Option<u32>,
}

/// Which file, and whether what is written follows what is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WritePartQuery {
    path: SandboxPath,
    #[serde(default)]
    append: bool,
}

/// Permission bits of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewMode {
    path: SandboxPath,
    /// In octal.
    mode: String,
}

/// `GET /v1/sandboxes/{id}/files/part`
pub(crate) async fn read_file_part(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(ReadPartQuery { path, offset, length }): ApiQuery<ReadPartQuery>,
) -> ApiAnswer {
    let most = u32::try_from(MAX_BODY_BYTES).unwrap_or(u32::MAX);
    let length = length.map_or(most, |length| length.min(most));
    let part = in_time(sandbox.files()?.read(&path, offset, length)).await?;
    Ok(([(CONTENT_TYPE, "application/octet-stream")], part).into_response())
}

/// `POST /v1/sandboxes/{id}/files/part`
pub(crate) async fn write_file_part(
    NamedWalls(sandbox): NamedWalls,
    ApiQuery(WritePartQuery { path, append }): ApiQuery<WritePartQuery>,
    body: Body,
) -> ApiAnswer {
    let part = read_body(body).await?;
    in_time(sandbox.files()?.write(&path, part, append)).await?;
    answer_done()
}

/// `POST /v1/sandboxes/{id}/files/mode`
pub(crate) async fn set_file_mode(NamedWalls(sandbox): NamedWalls, body: Body) -> ApiAnswer {
    let NewMode { path, mode } = read_json(body).await?;
    in_time(sandbox.files()?.set_mode(&path, parse_mode(&mode)?)).await?;
    answer_done()
}
