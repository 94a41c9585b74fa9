//! What the two ends of a sandbox on another host, or in a machine of its own, have in common: the words they exchange, and the
//! workspace that is copied there and whose changes come back.
//!
//! Each end takes what the other one sends for hostile: bounded, parsed strictly, and resolved beneath
//! its root by the kernel.

#[cfg(feature = "near")]
pub(crate) mod far;
pub mod frame;
pub mod guest;
#[cfg(feature = "near")]
pub(crate) mod near;
pub mod pour;
pub mod tree;
pub mod vmm;
pub mod words;
