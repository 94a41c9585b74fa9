//! The launcher: a single-threaded program on the host side that builds Linux walls in one readable
//! order (`sandbox`), reads every one of them back, and starts the agent behind them.
//!
//! It never parses anything a guest wrote, never runs a helper program and never leaves a file on
//! the host: what it makes lives in namespaces and ends with them. Where no namespace can be had, it
//! builds the shorter list of walls in `bare`.

mod bare;
mod client;
mod enter;
mod error;
mod fork;
mod fs;
mod ground;
mod open;
mod plan;
mod sandbox;
mod seal;
mod seccomp;
mod server;
mod sockets;
mod spawn;
mod sys;
mod template;
mod umask;
mod walls;
mod wire;

pub use bare::{BARE_AGENT, BarePlan};
pub use client::{Launcher, Pending, Program};
pub use enter::{ReadOnlyView, start_in};
pub use error::{Failure, LaunchError, Wall};
pub use plan::{Cgroup, LaunchPlan, PlanMount, PlanNetwork, PlanWorkspace, Rlimits, Root};
pub use seal::{add_seals, seal};
pub use seccomp::{DENIED_SYSCALLS, Denied};
pub use server::{Mode, serve};
pub use template::{Made, Piece, SANDBOX_HOME, host_root};
pub use umask::{make_private, take_own_umask};
pub use walls::scratch::PRIVATE_DIRECTORIES;
pub use wire::{AGENT_FD, CONTROL_FD, Launched, Proof};
