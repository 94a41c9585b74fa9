//! The tools over the Model Context Protocol, on standard streams and on HTTP.
//!
//! Every revision that the `rmcp` crate knows is served: those with a handshake and sessions, and the
//! one without either, where each request stands alone. What lasts between requests is a [`Desk`]'s.

mod answer;
mod calling;
mod desk;
mod handler;
pub mod http;
mod pending;
mod person;
mod progress;
mod stdio;

pub use desk::{Desk, DeskOptions};
pub use handler::Handler;
pub use rmcp::transport::io::stdio_pipes;
pub use stdio::{ServeError, serve_client, serve_stdio};
