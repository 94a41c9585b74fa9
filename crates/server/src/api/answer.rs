//! Answers that carry JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use serde::Serialize;

use super::failure::ApiFailure;

/// What a handler answers.
pub(crate) type ApiAnswer = Result<Response, ApiFailure>;

/// 200 with a body.
pub(crate) fn answer_ok(body: &impl Serialize) -> ApiAnswer {
    Ok(Json(body).into_response())
}

/// 201 with where the new thing is.
pub(crate) fn answer_created(location: String, body: &impl Serialize) -> ApiAnswer {
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(body)).into_response())
}

/// 204.
pub(crate) fn answer_done() -> ApiAnswer {
    Ok(StatusCode::NO_CONTENT.into_response())
}
