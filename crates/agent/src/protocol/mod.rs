//! What travels over the pipe between engine and agent: versioned, framed, multiplexed, bounded.
//!
//! A frame is a little-endian `u32` length and that many bytes of body: a tag, then the fields in
//! order. Integers are little-endian and of fixed width; text and data carry a `u32` length; lists
//! carry a `u32` count. The encoding is written by hand rather than taken from a library because it
//! is smaller than any (the agent is a static program), borrows its data from the buffer it arrived
//! in, and is canonical: what decodes encodes back to the same bytes, which is what the tests check.
//!
//! Rules both sides keep, and end the pipe over when the other does not:
//! - The first frame in each direction is `Hello`, with the same version.
//! - No body is longer than [`MAX_FRAME`].
//! - The client numbers channels upwards and never uses a number twice. A message for a channel that
//!   has ended is ignored by the agent (it may have crossed the end); one for a channel that was
//!   never opened is an error. The client knows every channel that is open, so to it any other is an error.
//! - Neither side sends data without credit. Each output stream of a channel starts with [`WINDOW_BYTES`]; a
//!   frame costs [`charge`] of its length. Input towards the agent starts with [`WINDOW_BYTES`] too and costs
//!   its length.

mod message;
pub mod network;
mod parts;
mod wire;

pub use message::{FromAgent, ToAgent, put_output};
pub use parts::{
    End, FileEntry, FileErrorKind, FileKind, FileRequest, Hello, Limit, Size, Spawn, StartKind,
    Stream, WatchEvent, WatchKind,
};
pub use wire::{DecodeError, TooLong, frame_length, split_frame};

/// The version both sides must speak.
pub const PROTOCOL_VERSION: u16 = 6;
/// The longest body of a frame.
pub const MAX_FRAME: usize = 256 * 1024;
/// The most data one frame should carry: leaves room for the fields around it.
pub const MAX_DATA: usize = 128 * 1024;
/// The length that precedes each frame.
pub const HEADER_BYTES: usize = 4;
/// The credit each data stream starts with.
pub const WINDOW_BYTES: u32 = 256 * 1024;
/// The least a frame of output costs, so that credit bounds the number of frames as well.
pub const MIN_CHARGE: u32 = 512;
/// The most channels open at once.
pub const MAX_CHANNELS: usize = 1024;
/// The most entries a directory may have to be listed.
pub const MAX_ENTRIES: usize = 100_000;

/// What a frame of output of this length costs.
pub fn charge(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX).max(MIN_CHARGE)
}
