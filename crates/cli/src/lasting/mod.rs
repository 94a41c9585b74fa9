//! Lasting sandboxes: they live on after the command that made them, each owned by a supervisor that
//! is this program once more. Commands reach it over a socket only their user can open.
//!
//! Nothing here builds walls or decides what is admitted: the supervisor has an engine for that, the
//! same as everybody's.

pub mod cp;
pub mod create;
pub mod exec;
pub mod fork;
pub mod kill;
pub mod logs;
pub mod pause;
pub mod ps;
pub mod rm;
pub mod shell;
pub mod snapshot;
pub mod supervisor;
pub mod teleport;

mod client;
mod copy;
mod end;
mod fault;
mod frame;
mod inherit;
mod launch;
mod message;
mod peer;
mod place;
mod remote;
mod socket;
mod stored;

pub use place::sweep_sockets;
pub use remote::Remote;

/// Hidden command that a supervisor is started with.
pub const SUPERVISE_COMMAND: &str = "supervise";
