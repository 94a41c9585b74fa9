//! The program for the other side, carried along inside this one.

/// The program: static, so that it runs anywhere.
pub(crate) static PROGRAM: &[u8] = include_bytes!(env!("STOCKADE_FAR"));
/// Its SHA-256, by which it is named where it is kept.
pub(crate) const SUM: &str = env!("STOCKADE_FAR_SUM");
