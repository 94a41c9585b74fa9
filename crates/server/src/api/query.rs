//! What stands in the path and query of a request. An id that does not parse names nothing, so it is not found.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use http::request::Parts;
use serde::de::DeserializeOwned;
use stockade_core::ErrorCode;

use super::failure::ApiFailure;

/// The one id in a path.
pub(crate) struct PathId<T>(pub T);

/// The query, strictly.
pub(crate) struct ApiQuery<T>(pub T);

impl<T: FromStr, S: Send + Sync> FromRequestParts<S> for PathId<T> {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiFailure> {
        let given = Path::<String>::from_request_parts(parts, state).await;
        let given = given.map(|Path(given)| given).unwrap_or_default();
        given.parse().map(Self).map_err(|_| ApiFailure::not_found("such thing as", &given))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiFailure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiFailure> {
        let parsed = Query::<T>::try_from_uri(&parts.uri);
        parsed.map(|Query(query)| Self(query)).map_err(|error| {
            ApiFailure::new(ErrorCode::Invalid, error.body_text())
                .remedy("/v1/openapi.json describes the query of each path")
        })
    }
}
