//! The backends: one module each, one cargo feature each.

#[cfg(feature = "mock")]
pub mod mock;
#[cfg(feature = "native")]
pub mod native;
