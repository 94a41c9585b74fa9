//! `fetch`: an HTTP request by each way out that a sandbox may have.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Args, VerbOutcome, report_attempt};

/// Where a sandbox's name server and proxies are.
const HELPER_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 63, 0, 53);
const DNS_PORT: u16 = 53;
const HTTP_PORT: u16 = 3128;
const SOCKS_PORT: u16 = 1080;
/// How long each step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of an answer that is printed.
const MAX_ANSWER_BYTES: u64 = 4096;

/// `fetch WAY HOST PORT NAMED`: asks HOST by `name`, `connect`, `http`, `socks` or `address` for the page of
/// the host NAMED.
pub fn fetch(args: &Args) -> io::Result<VerbOutcome> {
    let port = u16::try_from(args.number(2)?).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(report_attempt(fetch_page(args.text(0), args.text(1), port, args.text(3))))
}

fn fetch_page(way: &str, host: &str, port: u16, named: &str) -> io::Result<Value> {
    let direct = format!("GET /page HTTP/1.1\r\nHost: {named}\r\nConnection: close\r\n\r\n");
    let answer = match way {
        "name" => exchange(connect_to(look_up(host)?, port)?, &direct)?,
        "address" => {
            let address = host.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
            exchange(connect_to(address, port)?, &direct)?
        }
        "connect" => exchange(open_tunnel(host, port)?, &direct)?,
        "socks" => exchange(open_socks(host, port)?, &direct)?,
        "http" => {
            let absolute = direct.replacen("/page", &format!("http://{host}:{port}/page"), 1);
            exchange(connect_to(HELPER_ADDRESS, HTTP_PORT)?, &absolute)?
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(json!({ "answer": answer }))
}

fn connect_to(address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((address, port)), STEP_TIMEOUT)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    Ok(stream)
}

fn exchange(mut stream: TcpStream, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Asks the sandbox's name server.
fn look_up(host: &str) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.set_read_timeout(Some(STEP_TIMEOUT))?;
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in host.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    socket.send_to(&query, (HELPER_ADDRESS, DNS_PORT))?;
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply)?;
    let has_answer = reply[3] & 0x0F == 0 && reply[7] == 1;
    match reply[..length].last_chunk::<4>() {
        Some(address) if has_answer => Ok(Ipv4Addr::from(*address)),
        Some(_) | None => Err(io::ErrorKind::NotFound.into()),
    }
}

fn open_tunnel(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut stream = connect_to(HELPER_ADDRESS, HTTP_PORT)?;
    write!(stream, "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 200") {
        Ok(stream)
    } else {
        Err(io::Error::from_raw_os_error(libc::EACCES))
    }
}

fn open_socks(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut stream = connect_to(HELPER_ADDRESS, SOCKS_PORT)?;
    stream.write_all(&[5, 1, 0])?;
    stream.read_exact(&mut [0; 2])?;
    let mut request = vec![5, 1, 0, 3, host.len() as u8];
    request.extend_from_slice(host.as_bytes());
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    if reply[1] == 0 { Ok(stream) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}
