//! The sockets at which the helper listens, all on the sandbox's own loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

use super::greeting::ProxyKind;
use crate::protocol::network::{MAX_PORTS_PER_NAME, Setup};

/// The most sockets for names.
const MAX_NAME_LISTENERS: usize = 4096;
/// Connections that wait to be accepted.
const LISTEN_BACKLOG: i32 = 512;
/// How long an earlier helper, which was killed, may still hold the addresses.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A socket for one port of one name.
pub struct NameListener {
    pub listener: TcpListener,
    name: String,
    port: u16,
}

/// Every listening socket. None of them where no other host is to be reached.
#[derive(Default)]
pub struct Listeners {
    pub datagrams: Option<UdpSocket>,
    pub queries: Option<TcpListener>,
    pub proxies: Vec<(ProxyKind, TcpListener)>,
    pub names: Vec<NameListener>,
}

/// What could not be listened at, and why.
type ListenError = (&'static str, io::Error);

impl Listeners {
    /// Listens where the setup says.
    pub fn open(setup: &Setup) -> Result<Self, ListenError> {
        let address = Ipv4Addr::from(setup.address);
        let tcp = |what: &'static str, port| {
            open_patiently(|| listen_at(address, port)).map_err(|error| (what, error))
        };
        let datagrams = open_patiently(|| {
            let socket = UdpSocket::bind((address, setup.dns_port))?;
            socket.set_nonblocking(true).map(|()| socket)
        });
        Ok(Self {
            datagrams: Some(datagrams.map_err(|error| ("the name server cannot listen", error))?),
            queries: Some(tcp("the name server cannot listen", setup.dns_port)?),
            proxies: vec![
                (ProxyKind::Http, tcp("the HTTP proxy cannot listen", setup.http_port)?),
                (ProxyKind::Socks, tcp("the SOCKS proxy cannot listen", setup.socks_port)?),
            ],
            names: Vec::new(),
        })
    }

    /// Listens at a name's address on those of these ports at which nothing listens yet.
    pub fn listen_for_name(
        &mut self,
        name: &str,
        address: Ipv4Addr,
        ports: &[u16],
    ) -> io::Result<()> {
        for port in ports.iter().take(MAX_PORTS_PER_NAME) {
            let known = |known: &NameListener| known.name == name && known.port == *port;
            if self.names.iter().any(known) {
                continue;
            }
            if self.names.len() >= MAX_NAME_LISTENERS {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let listener = listen_at(address, *port)?;
            self.names.push(NameListener { listener, name: name.to_owned(), port: *port });
        }
        Ok(())
    }

    /// The next connection to a name.
    pub fn accept_name(&self, at: usize) -> Option<(TcpStream, String, u16)> {
        let NameListener { listener, name, port } = self.names.get(at)?;
        Some((accept(listener)?, name.clone(), *port))
    }

    /// The next connection to a proxy.
    pub fn accept_proxy(&self, kind: ProxyKind) -> Option<TcpStream> {
        let (_, listener) = self.proxies.iter().find(|(of, _)| *of == kind)?;
        accept(listener)
    }
}

fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok().map(|()| socket)
}

/// Opens a socket at an address that a killed process may hold for a moment more.
fn open_patiently<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + BIND_TIMEOUT;
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(BIND_RETRY_INTERVAL);
            }
            opened => return opened,
        }
    }
}

fn listen_at(address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let socket = open_socket(AddressFamily::INET)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(address, port))?;
    listen(&socket, LISTEN_BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Begins to connect to a server of the sandbox.
pub fn begin_connecting(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = open_socket(family)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

fn open_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, SocketType::STREAM, flags, None)?)
}
