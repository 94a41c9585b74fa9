//! The standard streams, which are pipes or sockets, without a thread that waits for them.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;

use rustix::fs::{FileType, fstat};
use rustix::stdio::{stdin, stdout};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// What can be read from.
pub type InputStream = Box<dyn AsyncRead + Send + Unpin>;
/// What can be written to.
pub type OutputStream = Box<dyn AsyncWrite + Send + Unpin>;

/// Standard input.
pub fn open_stdin() -> io::Result<InputStream> {
    let own = stdin().try_clone_to_owned()?;
    match is_pipe(&own)? {
        true => Ok(Box::new(pipe::Receiver::from_owned_fd(own)?)),
        false => Ok(Box::new(socket_from_fd(own)?)),
    }
}

/// Standard output.
pub fn open_stdout() -> io::Result<OutputStream> {
    let own = stdout().try_clone_to_owned()?;
    match is_pipe(&own)? {
        true => Ok(Box::new(pipe::Sender::from_owned_fd(own)?)),
        false => Ok(Box::new(socket_from_fd(own)?)),
    }
}

/// Both directions of a connection.
pub type StreamPair = (InputStream, OutputStream);

/// Both directions of a machine's port. By threads that wait for it: one read brings what one buffer of the
/// host's held and no more, which a reader that polls for readiness takes for the end of what there is. The one
/// that reads does something else first.
pub fn spawn_port_streams(
    port: File,
    first: impl FnOnce(&File) + Send + 'static,
) -> io::Result<StreamPair> {
    let (ours, theirs) = Socket::pair()?;
    let (inward, outward) = (port.try_clone()?, port);
    let (to, from) = (theirs.try_clone()?, theirs);
    std::thread::Builder::new().spawn(move || {
        first(&inward);
        let _ = io::copy(&mut &inward, &mut &to);
        // The peer has closed the port.
        let _ = to.shutdown(Shutdown::Both);
    })?;
    std::thread::Builder::new().spawn(move || io::copy(&mut &from, &mut &outward))?;
    ours.set_nonblocking(true)?;
    let (input, output) = UnixStream::from_std(ours)?.into_split();
    Ok((Box::new(input), Box::new(output)))
}

fn is_pipe(fd: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Fifo)
}

fn socket_from_fd(fd: OwnedFd) -> io::Result<UnixStream> {
    let socket = Socket::from(fd);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}
