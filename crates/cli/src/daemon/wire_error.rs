//! Errors that cross the socket, and those of the socket itself, as the project's one error.

use serde::{Deserialize, Serialize};
use stockade_core::{
    BackendName, Error, ErrorCode, Feature, Refusal, Refusals, SandboxId, clean_foreign,
};

use super::frame::SupervisorFrameError;

/// The most refusals of one error that are shown.
const MAX_REFUSALS: usize = 256;

/// An error on the wire. Its operation is left out: the caller knows what it asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WireError {
    code: String,
    message: String,
    remedy: Option<String>,
    refusals: Vec<WireRefusal>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireRefusal {
    field: String,
    feature: Option<Feature>,
    reason: String,
    remedy: String,
    #[serde(default)]
    backend: Option<BackendName>,
}

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        let refusals = error.refusals().map(|refusals| refusals.0.as_slice()).unwrap_or_default();
        Self {
            code: error.code().name().to_owned(),
            message: with_causes(error),
            remedy: error.hint().map(str::to_owned),
            refusals: refusals.iter().cloned().map(WireRefusal::from).collect(),
        }
    }
}

/// The causes are values of this process: on the peer only their words are left.
fn with_causes(error: &Error) -> String {
    let mut message = error.message().to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        message.push_str(": ");
        message.push_str(&next.to_string());
        cause = next.source();
    }
    message
}

impl From<Refusal> for WireRefusal {
    fn from(refusal: Refusal) -> Self {
        let Refusal { field, feature, reason, remedy, backend } = refusal;
        Self { field, feature, reason, remedy, backend }
    }
}

impl From<WireRefusal> for Refusal {
    fn from(refusal: WireRefusal) -> Self {
        let WireRefusal { field, feature, reason, remedy, backend } = refusal;
        let [field, reason, remedy] = [field, reason, remedy].map(|text| clean_foreign(&text));
        Self { field, feature, reason, remedy, backend }
    }
}

impl WireError {
    /// The error again, with the caller's operation. Its text may come from another host, and is cleaned.
    pub fn into_error(self, operation: &'static str) -> Error {
        let code = ErrorCode::ALL.into_iter().find(|code| code.name() == self.code);
        let code = code.unwrap_or(ErrorCode::Protocol);
        if code == ErrorCode::Refused && !self.refusals.is_empty() {
            let refusals =
                self.refusals.into_iter().take(MAX_REFUSALS).map(Refusal::from).collect();
            return Error::refused(operation, None, Refusals(refusals));
        }
        let error = Error::new(code, operation, clean_foreign(&self.message));
        match self.remedy {
            Some(remedy) => error.remedy(clean_foreign(&remedy)),
            None => error,
        }
    }
}

/// A connection that broke.
pub fn broken_connection_error(operation: &'static str, error: SupervisorFrameError) -> Error {
    let told = |code, message| Error::new(code, operation, message);
    let gone = |message| {
        told(ErrorCode::Gone, message).remedy("see whether the sandbox still lives: `stockade ps`")
    };
    match error {
        SupervisorFrameError::Closed => gone("the sandbox's supervisor went away"),
        SupervisorFrameError::Io(source) => {
            gone("the connection to the sandbox failed").source(source)
        }
        SupervisorFrameError::TooLong(_) => {
            told(ErrorCode::TooLarge, "a message is longer than one may be")
        }
        SupervisorFrameError::Malformed(source) => {
            told(ErrorCode::Protocol, "a message cannot be understood").source(source)
        }
    }
}

/// The peer said something that does not fit.
pub fn out_of_turn(operation: &'static str) -> Error {
    Error::new(ErrorCode::Protocol, operation, "the peer sent an unexpected answer")
        .remedy("use the same version of stockade for the sandbox and the command")
}

/// There is no such sandbox, or it belongs to another user, which looks the same.
pub fn unknown_sandbox_error(operation: &'static str, id: &SandboxId) -> Error {
    let message = format!("this user has no sandbox `{id}`");
    Error::new(ErrorCode::NotFound, operation, message)
        .remedy("`stockade ps` lists the ones there are, `stockade audit list` what has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for code in ErrorCode::ALL {
            let error = Error::new(code, "there", "what").remedy("do");
            let json = serde_json::to_string(&WireError::from(&error)).unwrap();
            let back: WireError = serde_json::from_str(&json).unwrap();
            let back = back.into_error("here");
            assert_eq!((back.code(), back.operation()), (code, "here"));
            assert_eq!((back.message(), back.hint()), ("what", Some("do")));
        }
    }

    #[test]
    fn refusals_survive_the_wire() {
        let refusal = Refusal {
            field: "limits.disk".into(),
            feature: Some(Feature::DiskLimit),
            reason: "no".into(),
            remedy: "so".into(),
            backend: Some(BackendName::literal("native")),
        };
        let error = Error::refused("admit", None, Refusals(vec![refusal.clone()]));
        let back = WireError::from(&error).into_error("create");
        assert_eq!(back.refusals().unwrap().0, [refusal]);
    }
}
