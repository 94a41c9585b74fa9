//! Faults on demand: an error, a hang, or a connection that goes away, at every step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stockade_core::{Error, ErrorCode, Result};

use super::NAME;

/// What goes wrong at one step.
#[derive(Debug, Clone, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It fails.
    Error,
    /// It fails this many times, then works.
    ErrorTimes(Arc<AtomicU32>),
    /// It never answers.
    Hang,
    /// The peer is gone: for streams, the events end without an exit.
    Drop,
}

/// What goes wrong at each step.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// While building walls.
    pub create: Fault,
    /// While starting a command.
    pub spawn: Fault,
    /// In the stream of events, at the first output or the exit.
    pub stream: Fault,
    /// While killing.
    pub kill: Fault,
    /// While destroying.
    pub destroy: Fault,
}

impl Fault {
    /// Fails, hangs or passes.
    pub(crate) async fn inject_fault(&self, operation: &'static str) -> Result<()> {
        let failure = || {
            Error::new(ErrorCode::Unavailable, operation, "an injected fault")
                .backend(NAME)
                .remedy("remove the fault")
        };
        match self {
            Self::None => Ok(()),
            Self::Error | Self::Drop => Err(failure()),
            Self::ErrorTimes(left) => {
                let spend = |left: u32| left.checked_sub(1);
                let spent = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
                spent.map_or(Ok(()), |_| Err(failure()))
            }
            Self::Hang => std::future::pending().await,
        }
    }
}
