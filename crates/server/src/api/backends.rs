//! The server itself: whether it works, and what its backends can do as they were last measured.

use std::path::Path;

use axum::extract::State;
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde_json::json;
use stockade_core::{ErrorCode, SandboxSpec};

use super::answer::{ApiAnswer, answer_ok};
use super::failure::ApiFailure;
use super::state::Api;

/// Free bytes of the state directory below which no work is taken.
const MIN_FREE_BYTES: u64 = 1 << 20;

/// `GET /v1/health`
pub(crate) async fn get_health() -> ApiAnswer {
    answer_ok(&json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// `GET /v1/ready`
pub(crate) async fn get_ready(State(api): State<Api>) -> ApiAnswer {
    if api.is_closing() {
        let message = "the daemon is being ended";
        return Err(ApiFailure::new(ErrorCode::Unavailable, message));
    }
    // Nothing runs without a record, and none fits on a full disk.
    let (engine, full) = (api.engine.clone(), "the state directory has no room, or cannot be used");
    let room = tokio::task::spawn_blocking(move || has_room(engine.state_dir())).await;
    if !room.unwrap_or(false) {
        return Err(ApiFailure::new(ErrorCode::StateUnavailable, full)
            .remedy("`stockade clean` on the daemon's host gives space back"));
    }
    answer_ok(&json!({ "status": "ready" }))
}

fn has_room(state_dir: &Path) -> bool {
    statvfs(state_dir).is_ok_and(|disk| {
        disk.f_bavail.saturating_mul(disk.f_frsize) >= MIN_FREE_BYTES
            && !disk.f_flag.contains(StatVfsMountFlags::RDONLY)
            // Some file systems count no inodes.
            && (disk.f_files == 0 || disk.f_favail > 0)
    })
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
