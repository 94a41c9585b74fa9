//! The one public error: a stable code, the operation, the backend, what is wrong and what to do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::{BackendName, Feature, Refusals};

/// A result of this project.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type BoxedSource = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong. `Display` names the operation, the backend and the remedy; the cause is in
/// `source`, not repeated.
///
/// Boxed, so that the results of hot paths stay small.
#[derive(Debug, Clone)]
pub struct Error(Box<ErrorInner>);

#[derive(Debug, Clone)]
struct ErrorInner {
    code: ErrorCode,
    operation: &'static str,
    backend: Option<BackendName>,
    message: String,
    remedy: Option<String>,
    refusals: Option<Refusals>,
    retry_delay: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Stable codes: what programs decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The request itself is wrong.
    Invalid,
    /// The spec cannot be honoured; the refusals say why.
    Refused,
    /// The tenant's quota is used up.
    QuotaExceeded,
    /// There is no such sandbox, job, file or backend.
    NotFound,
    /// The path leaves its root.
    PathEscapes,
    /// The file tree or the host does not allow it.
    Denied,
    /// The operation is not one this backend offers.
    Unsupported,
    /// The backend, or what it relies on, cannot be reached.
    Unavailable,
    /// The sandbox has ended or is being ended.
    Gone,
    /// The audit journal cannot be written, so nothing is run.
    JournalUnavailable,
    /// The state directory cannot be used.
    StateUnavailable,
    /// The peer broke the protocol.
    Protocol,
    /// An operation took longer than it may.
    TooSlow,
    /// A bound on size or count was reached.
    TooLarge,
    /// A wall could not be built, or was not there when it was read back.
    WallMissing,
    /// After destroy something was still there.
    LeftBehind,
    /// An unexpected failure of the operating system.
    System,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 17] = [
        Self::Invalid,
        Self::Refused,
        Self::QuotaExceeded,
        Self::NotFound,
        Self::PathEscapes,
        Self::Denied,
        Self::Unsupported,
        Self::Unavailable,
        Self::Gone,
        Self::JournalUnavailable,
        Self::StateUnavailable,
        Self::Protocol,
        Self::TooSlow,
        Self::TooLarge,
        Self::WallMissing,
        Self::LeftBehind,
        Self::System,
    ];

    /// The name used in JSON and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::QuotaExceeded => "quota-exceeded",
            Self::NotFound => "not-found",
            Self::PathEscapes => "path-escapes",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Gone => "gone",
            Self::JournalUnavailable => "journal-unavailable",
            Self::StateUnavailable => "state-unavailable",
            Self::Protocol => "protocol",
            Self::TooSlow => "too-slow",
            Self::TooLarge => "too-large",
            Self::WallMissing => "wall-missing",
            Self::LeftBehind => "left-behind",
            Self::System => "system",
        }
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub const fn retryable(self) -> bool {
        match self {
            Self::QuotaExceeded | Self::Unavailable | Self::TooSlow => true,
            Self::Invalid
            | Self::Refused
            | Self::NotFound
            | Self::PathEscapes
            | Self::Denied
            | Self::Unsupported
            | Self::Gone
            | Self::JournalUnavailable
            | Self::StateUnavailable
            | Self::Protocol
            | Self::TooLarge
            | Self::WallMissing
            | Self::LeftBehind
            | Self::System => false,
        }
    }

    /// The status an HTTP front end answers with.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Invalid | Self::PathEscapes => 400,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::Gone => 410,
            Self::TooLarge => 413,
            Self::Refused | Self::Unsupported => 422,
            Self::QuotaExceeded => 429,
            Self::Protocol | Self::WallMissing | Self::LeftBehind | Self::System => 500,
            Self::Unavailable | Self::JournalUnavailable | Self::StateUnavailable => 503,
            Self::TooSlow => 504,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Error {
    /// An error in an operation, as in "create": what went wrong, in words.
    pub fn new(code: ErrorCode, operation: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorInner {
            code,
            operation,
            backend: None,
            message: message.into(),
            remedy: None,
            refusals: None,
            retry_delay: None,
            source: None,
        }))
    }

    /// A spec or command that was not admitted.
    pub fn refused(
        operation: &'static str,
        backend: Option<BackendName>,
        refusals: Refusals,
    ) -> Self {
        let mut remedies: Vec<&str> = Vec::new();
        for refusal in &refusals.0 {
            if !remedies.contains(&refusal.remedy.as_str()) {
                remedies.push(&refusal.remedy);
            }
        }
        let remedy = remedies.join("; ");
        let mut error = Self::new(ErrorCode::Refused, operation, refusals.to_string());
        error.0.backend = backend;
        error.0.remedy = Some(remedy).filter(|text| !text.is_empty());
        error.0.refusals = Some(refusals);
        error
    }

    /// An operation that the backend does not offer.
    pub fn unsupported(operation: &'static str, feature: Feature) -> Self {
        Self::new(ErrorCode::Unsupported, operation, format!("this backend has no {feature}"))
            .remedy("choose a backend that has it: `stockade detect` lists them")
    }

    /// Names the backend it happened in.
    #[must_use]
    pub fn backend(mut self, backend: BackendName) -> Self {
        self.0.backend = Some(backend);
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Says when the same call may succeed.
    #[must_use]
    pub fn retry_in(mut self, delay: Duration) -> Self {
        self.0.retry_delay = Some(delay);
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn source(mut self, source: impl Into<BoxedSource>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// The operation that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// What went wrong, without operation, backend and remedy.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// When the same call may succeed, where that is known.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_delay
    }

    /// Every refusal, where the error is one of admission.
    pub fn refusals(&self) -> Option<&Refusals> {
        self.0.refusals.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.operation)?;
        if let Some(backend) = &self.0.backend {
            write!(f, " on {backend}")?;
        }
        write!(f, ": {}", self.0.message)?;
        match &self.0.remedy {
            Some(remedy) => write!(f, " (remedy: {remedy})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_operation_backend_and_remedy() {
        let error = Error::new(ErrorCode::Unavailable, "create", "no daemon answers")
            .backend(BackendName::literal("docker"))
            .remedy("start it");
        assert_eq!(error.to_string(), "create on docker: no daemon answers (remedy: start it)");
    }

    #[test]
    fn code_names_are_the_json_ones() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }
}
