//! What the two ends of a sandbox on another host, or in a machine of its own, have in common: their protocol, and the
//! workspace that is copied there and whose changes come back.
//!
//! Each end takes what the other one sends for hostile: bounded, parsed strictly, and resolved beneath
//! its root by the kernel.

pub mod blocking_io;
#[cfg(feature = "peer-client")]
pub(crate) mod client;
#[cfg(feature = "peer-client")]
pub(crate) mod far_program;
pub mod frame;
pub mod guest;
pub mod protocol;
pub mod tree;
pub mod vmm;
