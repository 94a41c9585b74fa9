//! A guest's end of the sockets between a machine and who runs it, for monitors that have no serial port.
#![allow(unsafe_code, reason = "the address of such a socket has no safe form")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use stockade_backends::peer::guest::VSOCK_PORT;

/// The wildcard context id: binds to the id of this machine, which need not be known.
const VMADDR_CID_ANY: u32 = u32::MAX;

/// What the kernel calls `sockaddr_vm`.
#[repr(C)]
struct Address {
    family: u16,
    reserved: u16,
    port: u32,
    machine: u32,
    flags: u8,
    zero: [u8; 3],
}

// SAFETY: laid out as the kernel's own, with nothing left uninitialised.
unsafe impl SocketAddrArg for Address {
    unsafe fn with_sockaddr<R>(
        &self,
        call: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        call(ptr::from_ref(self).cast(), size_of::<Self>() as SocketAddrLen)
    }
}

/// Listens for who runs this machine.
pub struct Listener(OwnedFd);

impl Listener {
    pub fn open() -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let family = AddressFamily::VSOCK.as_raw();
        let (reserved, flags, zero) = (0, 0, [0; 3]);
        bind(
            &socket,
            &Address { family, reserved, port: VSOCK_PORT, machine: VMADDR_CID_ANY, flags, zero },
        )?;
        listen(&socket, 1)?;
        Ok(Self(socket))
    }

    /// Waits for a connection.
    pub fn accept(&self) -> io::Result<File> {
        Ok(accept_with(&self.0, SocketFlags::CLOEXEC)?.into())
    }
}
