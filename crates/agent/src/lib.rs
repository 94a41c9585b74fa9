//! The small program inside the walls, the protocol of its pipe, and the client half.
//!
//! - [`protocol`]: what travels over the pipe. Both halves decode it strictly.
//! - [`agent`]: the program inside. It gives uniform behaviour, never security: all that it says is guest
//!   input to the other half.
//! - `client`: the host's half, behind the feature of that name so that the program inside carries
//!   no async runtime.

pub mod agent;
#[cfg(feature = "client")]
pub mod client;
pub mod protocol;
