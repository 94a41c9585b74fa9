//! Bodies of requests: read within a bound and a deadline. What a handler has not read is not kept.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use stockade_core::ErrorCode;

use super::failure::ApiFailure;

/// The longest body that is read whole: a spec, a command, a piece of input.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;
/// Timeout for a body that is read whole.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for the next piece of a body that is streamed.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// A whole body.
pub(crate) async fn read_body(mut body: Body) -> Result<Bytes, ApiFailure> {
    let reading = async {
        let mut whole = BytesMut::new();
        while let Some(chunk) = next_chunk(&mut body).await? {
            check_length(whole.len() as u64 + chunk.len() as u64, MAX_BODY_BYTES as u64)?;
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| Err(too_slow()))
}

/// The next piece of a body; nothing at its end.
pub(crate) async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, ApiFailure> {
    loop {
        let frame = tokio::time::timeout(CHUNK_TIMEOUT, body.frame()).await;
        match frame.map_err(|_| too_slow())? {
            None => return Ok(None),
            Some(Err(_)) => {
                let message = "the body of the request was cut off";
                return Err(ApiFailure::new(ErrorCode::Invalid, message).last());
            }
            // Trailers say nothing here.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data)),
                Ok(_) | Err(_) => {}
            },
        }
    }
}

/// Fails if a body is longer than it may be.
pub(crate) fn check_length(length: u64, most: u64) -> Result<(), ApiFailure> {
    if length <= most {
        return Ok(());
    }
    let message = format!("the body has more than {most} bytes");
    Err(ApiFailure::new(ErrorCode::TooLarge, message).last())
}

/// A JSON body; an empty one is `{}`.
pub(crate) fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiFailure> {
    let body = if body.is_empty() { b"{}" } else { body };
    // An array would be taken for the fields in their order.
    let object = serde_json::from_slice::<Map<String, Value>>(body);
    let parsed = object.and_then(|object| serde_json::from_value(Value::Object(object)));
    parsed.map_err(|error| {
        ApiFailure::new(ErrorCode::Invalid, format!("the body is not what it must be: {error}"))
            .remedy("/v1/openapi.json describes the bodies of requests")
    })
}

/// Reads a JSON body.
pub(crate) async fn read_json<T: DeserializeOwned>(body: Body) -> Result<T, ApiFailure> {
    parse_json(&read_body(body).await?)
}

fn too_slow() -> ApiFailure {
    ApiFailure::new(ErrorCode::TooSlow, "the body of the request did not come in time").last()
}
