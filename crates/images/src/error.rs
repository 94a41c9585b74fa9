//! What can go wrong with an image. Texts of registries and layers are cleaned where they enter.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use stockade_core::{Error, ErrorCode, ImageForm};

use crate::digest::Digest;
use crate::reference::{ImageReference, ReferenceError};

/// Why an operation on images failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] ReferenceError),
    /// The settings do not fit.
    #[error("the registries' settings do not fit: {0}")]
    Settings(String),
    /// Credentials were found and cannot be used.
    #[error("the credentials for `{registry}` cannot be used: {reason}")]
    Credentials {
        /// Whose credentials.
        registry: String,
        /// What is wrong with them.
        reason: String,
    },
    /// The registry has no such image.
    #[error("`{0}` is not in its registry")]
    NotFound(ImageReference),
    /// The store has no such image.
    #[error("no image `{0}` is stored")]
    NotStored(String),
    /// An image is to be pushed by its digits, which name no registry.
    #[error("`{0}` names no registry to push to")]
    NoTarget(String),
    /// Several stored images fit.
    #[error("several stored images begin with `{0}`")]
    Ambiguous(String),
    /// The registry wants other credentials, or any.
    #[error("`{registry}` does not let this user read `{repository}`")]
    Unauthorized {
        /// The registry.
        registry: String,
        /// What was to be read.
        repository: String,
    },
    /// The registry wants other credentials for writing, or any.
    #[error("`{registry}` does not let this user write `{repository}`")]
    PushDenied {
        /// The registry.
        registry: String,
        /// What was to be written.
        repository: String,
    },
    /// The registry answered with a status that is no answer.
    #[error("`{host}` answered with status {status}")]
    Status {
        /// The host that answered.
        host: String,
        /// Its status.
        status: u16,
    },
    /// The registry limits how often it is asked.
    #[error("`{host}` limits how often it is asked{}", display_wait(*.after))]
    RateLimited {
        /// The host that answered.
        host: String,
        /// When it may be asked again, if it says that.
        after: Option<Duration>,
    },
    /// The host cannot be reached.
    #[error("`{host}` cannot be reached")]
    Unreachable {
        /// The host.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// The host sent nothing for too long.
    #[error("`{host}` sent nothing for {}", display_duration(*.after))]
    Stalled {
        /// The host.
        host: String,
        /// The deadline.
        after: Duration,
    },
    /// The host broke the protocol.
    #[error("`{host}` broke the protocol: {what}")]
    Protocol {
        /// The host.
        host: String,
        /// How.
        what: String,
    },
    /// The host sent elsewhere, where it must not.
    #[error("`{host}` points to `{target}`, {reason}")]
    Redirect {
        /// The host that pointed there.
        host: String,
        /// Where to.
        target: String,
        /// Why that is refused.
        reason: String,
    },
    /// Something is larger than its limit.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// What.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// Contents have another digest than was promised.
    #[error("{what} has the digest {actual}, not {expected}")]
    DigestMismatch {
        /// Of what.
        what: String,
        /// As promised.
        expected: Digest,
        /// As computed.
        actual: Digest,
    },
    /// The image offers nothing for this platform.
    #[error("the image has nothing for {wanted}; it has {offered}")]
    NoPlatform {
        /// The platform.
        wanted: String,
        /// What the image has.
        offered: String,
    },
    /// The image is of another form than the backend takes.
    #[error("the image is {}", describe_form(*.found))]
    Form {
        /// What it is.
        found: ImageForm,
    },
    /// The image is not one that is taken.
    #[error("the image is refused: {0}")]
    Refused(String),
    /// A file of a build cannot be copied.
    #[error("{0}")]
    Copy(String),
    /// A sandbox, of whichever process, uses the image.
    #[error("`{0}` is in use by a sandbox")]
    InUse(String),
    /// The layers could not be unpacked, for no fault of theirs.
    #[error("a layer could not be unpacked: {0}")]
    Unpack(String),
    /// The sandbox that layers are unpacked in failed, or cannot be had here.
    #[error("a layer could not be unpacked: {}", message_with_causes(.0))]
    Sandbox(Error),
    /// Something of the store or an archive cannot be read or written.
    #[error("`{path}` cannot be {step}")]
    Io {
        /// What was to be done to it.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store's directory cannot be used.
    #[error("the image store cannot be opened")]
    Store(#[source] Error),
}

fn display_duration(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

fn display_wait(after: Option<Duration>) -> String {
    after
        .map(|after| format!(", and may be asked again in {} s", after.as_secs()))
        .unwrap_or_default()
}

fn describe_form(form: ImageForm) -> &'static str {
    match form {
        ImageForm::Root => "the root of a sandbox, and no WebAssembly module",
        ImageForm::Module => "a WebAssembly module, and no root of a sandbox",
    }
}

/// Without operation, backend and remedy, which are those of the sandbox and not of the image.
fn message_with_causes(error: &Error) -> String {
    let mut text = error.message().to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

impl ImageError {
    pub(crate) fn io(
        step: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { step, path, source }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    /// Its stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Name(_) | Self::Settings(_) | Self::Ambiguous(_) | Self::NoTarget(_) => {
                ErrorCode::Invalid
            }
            Self::Credentials { .. }
            | Self::Unauthorized { .. }
            | Self::PushDenied { .. }
            | Self::InUse(_) => ErrorCode::Denied,
            Self::NotFound(_) | Self::NotStored(_) => ErrorCode::NotFound,
            Self::Status { .. } | Self::Unreachable { .. } | Self::RateLimited { .. } => {
                ErrorCode::Unavailable
            }
            Self::Stalled { .. } => ErrorCode::TooSlow,
            Self::Protocol { .. } | Self::Redirect { .. } | Self::DigestMismatch { .. } => {
                ErrorCode::Protocol
            }
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::NoPlatform { .. } | Self::Form { .. } => ErrorCode::Unsupported,
            Self::Refused(_) | Self::Copy(_) => ErrorCode::Invalid,
            Self::Unpack(_) | Self::Io { .. } => ErrorCode::System,
            Self::Sandbox(error) | Self::Store(error) => error.code(),
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &str {
        match self {
            Self::Name(_) => "write it as `python:3.12` or `registry.example.org/team/tool:1`",
            Self::Settings(_) => "correct the registries in the configuration",
            Self::Credentials { .. } => "correct the credentials file, or log in again",
            Self::NotFound(_) => "check its name and tag; a private image needs credentials",
            Self::NotStored(_) => "see `stockade image ls`, or pull it",
            Self::NoTarget(_) => "name the repository with --to",
            Self::Ambiguous(_) => "give more digits of its digest, or its name",
            Self::PushDenied { .. } => {
                "name a repository of yours with --to, and log in, so that `~/.docker/config.json` \
                 or `auth.json` has credentials for it"
            }
            Self::Unauthorized { .. } => {
                "log in, so that `~/.docker/config.json` or `auth.json` has credentials for it"
            }
            Self::RateLimited { .. } => {
                "try again later, log in, or name a mirror in the configuration"
            }
            Self::Status { .. } | Self::Unreachable { .. } | Self::Stalled { .. } => {
                "try again later, or name a mirror in the configuration"
            }
            Self::Protocol { .. } | Self::Redirect { .. } | Self::DigestMismatch { .. } => {
                "use another registry, or ask its operator"
            }
            Self::TooLarge { .. } => "raise the limit in the configuration if the image is trusted",
            Self::NoPlatform { .. } => "name a platform that it has",
            Self::Form { found: ImageForm::Root } => "choose another backend than wasm",
            Self::Form { found: ImageForm::Module } => "run it with --backend wasm",
            Self::Refused(_) => "use another image, or build this one anew",
            Self::Copy(_) => "correct the Dockerfile or the files",
            Self::InUse(_) => "end its sandboxes first",
            Self::Unpack(_) => "try again",
            Self::Sandbox(error) => error.hint().unwrap_or("see `stockade detect native`"),
            Self::Io { .. } | Self::Store(_) => "see that it may be read and written and has space",
        }
    }
}

/// Where the fault of an error lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImageFault {
    /// In the image itself, so that nothing of it is worth keeping.
    Image,
    /// In what another error says, of the system or of the network.
    Below,
    /// In what was asked for, in the registry, or in the store.
    Request,
}

impl ImageError {
    /// Where the fault lies.
    pub(crate) fn fault(&self) -> ImageFault {
        match self {
            Self::Refused(_)
            | Self::DigestMismatch { .. }
            | Self::TooLarge { .. }
            | Self::NoPlatform { .. } => ImageFault::Image,
            Self::Unreachable { .. } | Self::Io { .. } | Self::Store(_) => ImageFault::Below,
            Self::Name(_)
            | Self::Settings(_)
            | Self::Credentials { .. }
            | Self::NotFound(_)
            | Self::NotStored(_)
            | Self::Ambiguous(_)
            | Self::NoTarget(_)
            | Self::Unauthorized { .. }
            | Self::PushDenied { .. }
            | Self::Status { .. }
            | Self::RateLimited { .. }
            | Self::Stalled { .. }
            | Self::Protocol { .. }
            | Self::Redirect { .. }
            | Self::Form { .. }
            | Self::Copy(_)
            | Self::InUse(_)
            | Self::Unpack(_)
            | Self::Sandbox(_) => ImageFault::Request,
        }
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        let told =
            Error::new(error.code(), "use an image", error.to_string()).remedy(error.remedy());
        match error.fault() {
            ImageFault::Image | ImageFault::Request => told,
            ImageFault::Below => attach_source(told, error),
        }
    }
}

/// An error with the one below it as its source.
fn attach_source(told: Error, error: ImageError) -> Error {
    if let ImageError::Unreachable { source, .. } | ImageError::Io { source, .. } = error {
        return told.source(source);
    }
    if let ImageError::Store(source) = error { told.source(source) } else { told }
}
