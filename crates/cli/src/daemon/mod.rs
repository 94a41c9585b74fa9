//! The supervisor of a persistent sandbox and its wire: one process for each sandbox that lives on after the
//! command that made it, which is this program once more. Commands reach it over a Unix socket that only
//! their user can open.
//!
//! Nothing here builds walls or decides what is admitted: the supervisor has an engine for that, the
//! same as every other command.

pub mod client;
mod close_fds;
pub mod end;
mod frame;
pub mod launch;
pub mod message;
pub mod port_stream;
pub mod remote;
pub mod sandbox_directory;
mod socket;
pub mod supervisor;
pub mod wire_error;

pub use remote::Remote;
pub use sandbox_directory::sweep_sockets;

/// Hidden command that a supervisor is started with.
pub const SUPERVISE_COMMAND: &str = "supervise";
