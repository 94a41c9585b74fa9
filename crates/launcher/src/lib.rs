//! The launcher: a single-threaded program on the host side that builds Linux walls in one readable
//! order (`sandbox`), reads every one of them back, and starts the agent behind them.
//!
//! It never parses anything a guest wrote, never runs a helper program and never leaves a file on
//! the host: what it makes lives in namespaces and ends with them. Where no namespace can be had, it
//! builds the shorter list of walls in `bare`.

mod base_namespaces;
mod client;
mod error;
mod fork;
mod fs;
mod idle_memory;
mod open;
mod plan;
mod runtime_start;
mod sandbox;
mod sealed_memfd;
mod seccomp;
mod server;
mod sockets;
mod spawn;
mod sys;
mod template;
mod umask;
mod walls;
mod wire;
mod without_namespaces;

pub use client::{Launcher, Pending, Program};
pub use error::{Failure, LaunchError, Wall};
pub use idle_memory::release_idle_memory;
pub use plan::{Cgroup, LaunchPlan, PlanMount, PlanNetwork, PlanWorkspace, Rlimits, Root};
pub use runtime_start::{ReadOnlyView, start_in};
pub use sealed_memfd::{add_seals, copy_to_sealed_memfd};
pub use seccomp::{DENIED_SYSCALLS, Denied};
pub use server::{Mode, serve};
pub use template::{Made, Piece, SANDBOX_HOME, host_root};
pub use umask::{make_private, take_own_umask};
pub use walls::proc::masked_proc_paths;
pub use walls::scratch::PRIVATE_DIRECTORIES;
pub use wire::{AGENT_FD, CONTROL_FD, Launched, Proof};
pub use without_namespaces::{BARE_AGENT, BarePlan};
