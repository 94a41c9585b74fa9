//! The backends: one module each, one cargo feature each.

#[cfg(feature = "landlock")]
pub mod landlock;
#[cfg(feature = "linux")]
mod linux;
#[cfg(feature = "local")]
pub mod local;
#[cfg(feature = "mock")]
pub mod mock;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "wasm")]
pub mod wasm;
