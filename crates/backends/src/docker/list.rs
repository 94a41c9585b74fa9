//! Which containers are sandboxes of this user. Asked without the client library, which fails on a
//! whole list for one container in a state that it does not know.

use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use stockade_core::{Error, ErrorCode, Result, SandboxId};
use tokio::net::UnixStream;
use tokio::task::AbortHandle;

use super::{NAME, plan};

/// How long the engine may take to list containers.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The engine's longest accepted reply.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Anything that can go wrong on the way.
pub(super) type ApiFailure = Box<dyn std::error::Error + Send + Sync>;

/// The sandboxes of this user, no matter which process made them.
pub(super) async fn list_sandboxes(socket: &Path) -> Result<Vec<SandboxId>> {
    let asked = tokio::time::timeout(LIST_TIMEOUT, request_containers(socket)).await;
    let listed = asked.unwrap_or_else(|_| Err("it does not answer".into()));
    let listed = listed.map_err(|error| {
        Error::new(ErrorCode::Unavailable, "list", format!("the engine failed: {error}"))
            .backend(NAME)
            .remedy("see whether the engine still runs, and try again")
    })?;
    let containers = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |container: &Value| container["Labels"][plan::SANDBOX_LABEL].as_str()?.parse().ok();
    Ok(containers.iter().filter_map(id).collect())
}

/// A connection of its own, until the handle is dropped.
pub(super) struct EngineConnection {
    pub sender: http1::SendRequest<Empty<Bytes>>,
    driving: AbortHandle,
}

impl EngineConnection {
    pub(super) async fn open(socket: &Path) -> Result<Self, ApiFailure> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driving: tokio::spawn(connection).abort_handle() })
    }
}

impl Drop for EngineConnection {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

async fn request_containers(socket: &Path) -> Result<Value, ApiFailure> {
    let mut connection = EngineConnection::open(socket).await?;
    let owned = format!("{}={}", plan::OWNER_LABEL, plan::owner_label());
    let filters = percent_encode(&json!({ "label": [owned] }).to_string());
    let request = Request::get(format!("/v1.40/containers/json?all=true&filters={filters}"))
        .header("Host", "engine")
        .body(Empty::<Bytes>::new())?;
    let response = connection.sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_REPLY_BYTES).collect().await?.to_bytes();
    match status.is_success() {
        true => Ok(serde_json::from_slice(&body)?),
        false => Err(format!("it answered {status}").into()),
    }
}

/// Everything but letters and digits as a query wants it.
pub(super) fn percent_encode(text: &str) -> String {
    let one = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_holds_nothing_that_would_end_it() {
        assert_eq!(percent_encode("{\"a\":[\"b=1&\"]}"), "%7B%22a%22%3A%5B%22b%3D1%26%22%5D%7D");
    }
}
