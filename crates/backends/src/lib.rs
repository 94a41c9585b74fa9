//! The backends: one module each, one cargo feature each. What they share is [`managed`], the life cycle, and
//! [`agent_sandbox`], the sandbox over an agent's pipe.

#![cfg_attr(
    not(feature = "default"),
    allow(dead_code, reason = "each backend uses a part of what is shared")
)]

#[cfg(feature = "linux")]
pub mod agent_sandbox;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "exec")]
pub mod exec;
#[cfg(feature = "factory")]
pub mod factory;
#[cfg(feature = "gvisor")]
pub mod gvisor;
#[cfg(feature = "landlock")]
pub mod landlock;
#[cfg(feature = "linux")]
mod linux;
#[cfg(feature = "local")]
pub mod local;
#[cfg(feature = "linux")]
pub mod managed;
#[cfg(feature = "microvm")]
pub mod microvm;
#[cfg(feature = "mock")]
pub mod mock;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "peer")]
pub mod peer;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "ssh")]
pub mod ssh;
#[cfg(feature = "wasm")]
pub mod wasm;
