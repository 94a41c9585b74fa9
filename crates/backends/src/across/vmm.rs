//! How the program that runs a virtual machine is started by a helper inside its walls: one message with
//! its arguments, as JSON, and the files that they name by the numbers which those have by then.

use std::os::fd::RawFd;

/// The most files at once.
pub const FILES: usize = 16;
/// The longest message.
pub const LONGEST: usize = 32 * 1024;
/// The number of the first file; the others follow.
pub const FIRST: RawFd = 100;
