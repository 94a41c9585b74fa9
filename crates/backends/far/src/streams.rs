//! The standard streams, which are pipes or sockets, without a thread that waits for them.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;

use rustix::fs::{FileType, OFlags, fstat};
use rustix::stdio::{stdin, stdout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// What can be read from.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// What can be written to.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Standard input.
pub fn input() -> io::Result<Input> {
    let own = stdin().try_clone_to_owned()?;
    match is_pipe(&own)? {
        true => Ok(Box::new(pipe::Receiver::from_owned_fd(own)?)),
        false => Ok(Box::new(socket(own)?)),
    }
}

/// Standard output.
pub fn output() -> io::Result<Output> {
    let own = stdout().try_clone_to_owned()?;
    match is_pipe(&own)? {
        true => Ok(Box::new(pipe::Sender::from_owned_fd(own)?)),
        false => Ok(Box::new(socket(own)?)),
    }
}

/// Both directions of a machine's port.
pub fn port(port: File) -> io::Result<(Input, Output)> {
    rustix::fs::fcntl_setfl(&port, OFlags::NONBLOCK)?;
    let (input, output) = (port.try_clone()?, port);
    // A device that can be waited for as a pipe can.
    Ok((
        Box::new(pipe::Receiver::from_file_unchecked(input)?),
        Box::new(pipe::Sender::from_file_unchecked(output)?),
    ))
}

fn is_pipe(fd: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Fifo)
}

fn socket(fd: OwnedFd) -> io::Result<UnixStream> {
    let socket = Socket::from(fd);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
