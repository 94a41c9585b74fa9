//! Becomes the program that runs a virtual machine: gets its arguments and open files over a socket, and
//! executes it with them. So it needs to be shown no file of the host's that is not open already.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use stockade_backends::peer::vmm::{FIRST_FILE_FD, MAX_MESSAGE_BYTES, MAX_MESSAGE_FILES};

/// Only comes back if it fails.
pub fn become_vmm(socket: &str) -> io::Error {
    match receive_arguments(socket) {
        Ok((line, files)) => exec_vmm(&line, &files),
        Err(error) => error,
    }
}

fn exec_vmm(line: &[u8], files: &[OwnedFd]) -> io::Error {
    let words: Vec<String> = serde_json::from_slice(line).unwrap_or_default();
    let Some((program, rest)) = words.split_first() else {
        return io::ErrorKind::InvalidData.into();
    };
    match assign_numbers(files) {
        Ok(_kept) => Command::new(program).args(rest).exec(),
        Err(error) => error,
    }
}

/// The files under the numbers that the arguments name them by.
fn assign_numbers(files: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    let number = |file| {
        let copy = fcntl_dupfd_cloexec(file, FIRST_FILE_FD)?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        Ok(copy)
    };
    files.iter().map(number).collect()
}

/// The arguments and the files that they speak of.
fn receive_arguments(socket: &str) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    // Once: only the process that started this program can see the name.
    let (socket, _) = UnixListener::bind(socket)?.accept()?;
    let mut line = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut line)];
    let got = recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            files.extend(given);
        }
    }
    line.truncate(got.bytes);
    Ok((line, files))
}
