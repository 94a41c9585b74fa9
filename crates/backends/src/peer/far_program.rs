//! The program for the peer, carried along inside this one.

/// The program: static, so that it runs anywhere.
pub(crate) static FAR_PROGRAM: &[u8] = include_bytes!(env!("STOCKADE_FAR"));
/// Digest (SHA-256) of the program, which names the place where it is kept.
pub(crate) const FAR_DIGEST: &str = env!("STOCKADE_FAR_SUM");
