//! Why the value of a secret is asked for again while its sandbox lives.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the value of a secret was asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RenewalCause {
    /// It was about to expire, or had.
    Expiry,
    /// A host that it is bound to answered a request that has it with 401.
    Unauthorized,
    /// The sandbox went on after a pause.
    Resumed,
    /// A captured state was brought back into the sandbox.
    Restored,
}

impl fmt::Display for RenewalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expiry => "at its expiry",
            Self::Unauthorized => "after an answer of 401",
            Self::Resumed => "after a pause",
            Self::Restored => "after a state was brought back",
        })
    }
}
