//! The server itself: whether it works, and what its backends can do as they were last measured.

use axum::extract::State;
use serde_json::json;
use stockade_core::SandboxSpec;

use super::answer::{ApiAnswer, answer_ok};
use super::state::Api;

/// `GET /v1/health`
pub(crate) async fn get_health() -> ApiAnswer {
    answer_ok(&json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /v1/backends`
pub(crate) async fn list_backends(State(api): State<Api>) -> ApiAnswer {
    // Not measured anew: that builds sandboxes, as often as a caller asks.
    let known = api.engine.explain(&SandboxSpec::default()).await;
    let mut backends = Vec::new();
    for choice in known.choices {
        backends.extend(api.engine.detect_one(&choice.backend).await);
    }
    answer_ok(&json!({ "backends": backends }))
}
