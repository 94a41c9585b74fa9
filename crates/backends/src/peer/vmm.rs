//! How the program that runs a virtual machine is started by a helper inside its walls: one message with
//! its arguments, as JSON, and the files that they name by the numbers which those have by then.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, RawFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Most files in one message.
pub const MAX_MESSAGE_FILES: usize = 16;
/// Longest message.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024;
/// Descriptor number of the first file; the others follow.
pub const FIRST_FILE_FD: RawFd = 100;

/// Sends a message with open files.
pub fn send(socket: impl AsFd, text: &[u8], files: &[impl AsFd]) -> io::Result<()> {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("too many files"));
    }
    let sent = sendmsg(socket, &[io::IoSlice::new(text)], &mut ancillary, SendFlags::empty())?;
    if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
