//! Front ends for other programs. What they offer is the toolbox's and the engine's; here it is only carried:
//! no tool is written here, and nothing is decided about what may run.

pub mod api;
mod http;
pub mod life;
pub mod mcp;
pub mod peer;
mod secret;
