//! The description of the API. A test holds the routes to it.

use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;

use super::answer::ApiAnswer;

/// The OpenAPI document.
pub(crate) const OPENAPI_JSON: &str = include_str!("../../openapi.json");

/// `GET /v1/openapi.json`
pub(crate) async fn get_openapi() -> ApiAnswer {
    Ok(([(CONTENT_TYPE, "application/json")], OPENAPI_JSON).into_response())
}
