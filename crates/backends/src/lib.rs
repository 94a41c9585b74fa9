//! The backends: one module each, one cargo feature each.

#[cfg(feature = "across")]
pub mod across;
#[cfg(feature = "docker")]
pub mod docker;
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
#[cfg(feature = "microvm")]
pub mod microvm;
#[cfg(feature = "mock")]
pub mod mock;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "ssh")]
pub mod ssh;
#[cfg(feature = "wasm")]
pub mod wasm;
