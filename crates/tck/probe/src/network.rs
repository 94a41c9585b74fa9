//! Verbs about sockets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Args, VerbOutcome, report_attempt};

/// `connect ADDRESS PORT MS`.
pub fn connect_tcp(args: &Args) -> io::Result<VerbOutcome> {
    let address: IpAddr = args.text(0).parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let port = u16::try_from(args.number(1)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), args.span(2)?);
    Ok(report_attempt(stream.map(|_| json!({}))))
}

/// `send ADDRESS PORT`: one datagram.
pub fn send_datagram(args: &Args) -> io::Result<VerbOutcome> {
    let address: IpAddr = args.text(0).parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let port = u16::try_from(args.number(1)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    let sent = UdpSocket::bind(("0.0.0.0", 0))
        .and_then(|socket| socket.send_to(b"out", SocketAddr::new(address, port)));
    Ok(report_attempt(sent.map(|_| json!({}))))
}

/// `listen-and-connect`: one message over a loopback connection with itself.
pub fn listen_and_connect() -> io::Result<VerbOutcome> {
    let trip = || -> io::Result<Value> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let mut near = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        let (mut far, _) = listener.accept()?;
        near.write_all(b"hello")?;
        let mut heard = [0; 5];
        far.read_exact(&mut heard)?;
        Ok(json!({ "heard": String::from_utf8_lossy(&heard) }))
    };
    Ok(report_attempt(trip()))
}

/// `listen-unix NAME MS`: holds the abstract socket NAME open for so long, after saying so.
pub fn listen_unix(args: &Args) -> io::Result<VerbOutcome> {
    let address = UnixAddr::from_abstract_name(args.text(0))?;
    let listener = UnixListener::bind_addr(&address);
    let held = listener.is_ok();
    writeln!(io::stdout(), "{}", json!({ "ok": held }))?;
    io::stdout().flush()?;
    std::thread::sleep(args.span(1)?);
    Ok(VerbOutcome::Code(0))
}

/// `connect-unix NAME`: to the abstract socket NAME.
pub fn connect_unix(args: &Args) -> io::Result<VerbOutcome> {
    let address = UnixAddr::from_abstract_name(args.text(0))?;
    Ok(report_attempt(UnixStream::connect_addr(&address).map(|_| json!({}))))
}

/// `connect-path STREAM DATAGRAMS`: to the socket of the one path, or sends to that of the other.
pub fn connect_path(args: &Args) -> io::Result<VerbOutcome> {
    let stream = UnixStream::connect(args.text(0)).map(drop);
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"x", args.text(1)));
    Ok(report_attempt(stream.or(sent.map(drop)).map(|()| json!({}))))
}
