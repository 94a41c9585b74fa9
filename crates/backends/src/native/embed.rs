//! The launcher and the agent, carried inside this program: one file installs.

/// The agent: static, so that it runs in any root.
pub const AGENT: &[u8] = include_bytes!(env!("STOCKADE_AGENT"));
/// The launcher: static too, so that starting it takes no dynamic linking.
pub const LAUNCHER: &[u8] = include_bytes!(env!("STOCKADE_LAUNCHER"));
