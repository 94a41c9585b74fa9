//! Bodies of requests: read within a bound and a deadline. What a handler has not read is not kept.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
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

/// A whole body. One that says itself that it is too long is not waited for.
pub(crate) async fn read_body(mut body: Body) -> Result<Bytes, ApiFailure> {
    check_length(body.size_hint().lower(), MAX_BODY_BYTES as u64)?;
    let reading = async {
        let mut whole = BytesMut::new();
        while let Some(chunk) = next_chunk(&mut body).await? {
            check_length(whole.len() as u64 + chunk.len() as u64, MAX_BODY_BYTES as u64)?;
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(ApiFailure::slow_body()))
}

/// The next piece of a body; nothing at its end.
pub(crate) async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, ApiFailure> {
    loop {
        let frame = tokio::time::timeout(CHUNK_TIMEOUT, body.frame()).await;
        match frame.map_err(|_| ApiFailure::slow_body())? {
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;
    use futures_util::{StreamExt, stream};
    use http::StatusCode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_the_clients_fault() {
        let first = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"{")) });
        let slow = read_body(Body::from_stream(first.chain(stream::pending()))).await;
        assert_eq!(slow.unwrap_err().into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_in_does_not_come_in_time() {
        let drops = stream::repeat(()).then(|()| async {
            tokio::time::sleep(CHUNK_TIMEOUT / 2).await;
            Ok::<_, Infallible>(Bytes::from_static(b" "))
        });
        let slow = read_body(Body::from_stream(drops)).await;
        assert_eq!(slow.unwrap_err().into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
