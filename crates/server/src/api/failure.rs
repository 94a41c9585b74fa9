//! The one shape of an answer that says what is wrong: `{"error": {"code", "message", "remedy"}}`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;
use stockade_core::{Error, ErrorCode, Refusals, clean_foreign};

/// Told where it is not known when there is room again: when a sandbox, an execution or a request ends.
const DEFAULT_RETRY_SECONDS: u64 = 1;

/// What is wrong with a request, or went wrong with it.
#[derive(Debug)]
pub(crate) struct ApiFailure {
    status: StatusCode,
    body: FailureBody,
    /// Whether the connection ends with the answer.
    last: bool,
    /// When a request beyond a quota may be sent again.
    retry_seconds: u64,
}

#[derive(Debug, Serialize)]
struct FailureBody {
    /// A name of [`ErrorCode`], or one of the few that only HTTP has.
    code: &'static str,
    message: String,
    remedy: Option<String>,
    /// Every refusal, where a spec was not admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusals: Option<Refusals>,
}

/// The status of an answer with this code.
pub(crate) fn status_of(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl ApiFailure {
    fn of(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let body = FailureBody { code, message: message.into(), remedy: None, refusals: None };
        Self { status, body, last: false, retry_seconds: DEFAULT_RETRY_SECONDS }
    }

    /// A failure with one of the codes of every front end.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::of(status_of(code), code.name(), message)
    }

    /// Something that is not there, or not the caller's: which of the two is not said.
    pub(crate) fn not_found(what: &str, name: &str) -> Self {
        let name = clean_foreign(name);
        let name: String = name.chars().take(80).collect();
        Self::new(ErrorCode::NotFound, format!("there is no {what} `{name}`"))
    }

    /// A request without a token that is known.
    pub(crate) fn unauthorized() -> Self {
        let message = "the request carries no token that is known";
        let failure = Self::of(StatusCode::UNAUTHORIZED, "unauthorized", message);
        failure.remedy("send `Authorization: Bearer TOKEN`; `stockade token new` makes one").last()
    }

    /// A body that does not come in time.
    pub(crate) fn slow_body() -> Self {
        let message = "the body of the request did not come in time";
        Self::of(StatusCode::REQUEST_TIMEOUT, ErrorCode::TooSlow.name(), message)
            .remedy("send it without pauses")
            .last()
    }

    /// A path that exists, asked for by another method.
    pub(crate) fn wrong_method() -> Self {
        let message = "this path has no such method";
        Self::of(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
            .remedy("/v1/openapi.json lists the methods of each path")
    }

    /// A part of a file that has only this many bytes.
    pub(crate) fn bad_range(length: u64) -> Self {
        let message =
            format!("the range begins behind the end of the file, which has {length} bytes");
        Self::of(StatusCode::RANGE_NOT_SATISFIABLE, ErrorCode::Invalid.name(), message)
    }

    /// A key that was used for another request.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::of(StatusCode::CONFLICT, "conflict", message)
    }

    /// Says what to do about it.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.body.remedy = Some(remedy.into());
        self
    }

    /// The error without its status: code, message and remedy.
    pub(crate) fn to_json(&self) -> Value {
        serde_json::json!(self.body)
    }

    /// Ends the connection: a peer that was not let in does not stay.
    pub(crate) fn last(self) -> Self {
        Self { last: true, ..self }
    }
}

impl From<Error> for ApiFailure {
    fn from(error: Error) -> Self {
        let mut failure = Self::new(error.code(), error.message());
        failure.body.remedy = error.hint().map(str::to_owned);
        failure.body.refusals = error.refusals().cloned();
        if let Some(delay) = error.retry_delay() {
            // Rounded up: what comes too early is refused again.
            failure.retry_seconds = delay.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX);
        }
        failure
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": self.to_json() });
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if self.last {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(RETRY_AFTER, self.retry_seconds.max(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_beyond_a_quota_is_told_when_to_come_again() {
        let beyond = Error::new(ErrorCode::QuotaExceeded, "test", "too many");
        let retry_after = |error: Error| {
            let response = ApiFailure::from(error).into_response();
            response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(retry_after(beyond.clone()).unwrap(), "1");
        let delay = std::time::Duration::from_millis(1001);
        assert_eq!(retry_after(beyond.retry_in(delay)).unwrap(), "2");
        assert_eq!(retry_after(Error::new(ErrorCode::Invalid, "test", "wrong")), None);
    }

    #[test]
    fn every_code_has_a_status_of_an_error_and_its_own_name() {
        let mut names = std::collections::BTreeSet::new();
        for code in ErrorCode::ALL {
            let failure = ApiFailure::from(Error::new(code, "test", "wrong").remedy("do right"));
            assert_eq!(failure.status.as_u16(), code.http_status());
            assert!(failure.status.is_client_error() || failure.status.is_server_error(), "{code}");
            let json = serde_json::to_value(&failure.body).unwrap();
            let shape =
                serde_json::json!({"code": code.name(), "message": "wrong", "remedy": "do right"});
            assert_eq!(json, shape);
            names.insert(code.name());
        }
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }
}
