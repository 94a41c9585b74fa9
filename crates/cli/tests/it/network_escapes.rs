//! Ways out past the rules. A real program inside tries each, and sockets of this host are witness that nothing came.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

/// Sockets of this host, at all of its addresses, that a program inside must not reach.
struct Witnesses {
    datagrams: UdpSocket,
    resolver: TcpListener,
}

impl Witnesses {
    fn start() -> Self {
        let all = (Ipv4Addr::UNSPECIFIED, 0_u16);
        let (datagrams, resolver) =
            (UdpSocket::bind(all).unwrap(), TcpListener::bind(all).unwrap());
        datagrams.set_nonblocking(true).unwrap();
        resolver.set_nonblocking(true).unwrap();
        Self { datagrams, resolver }
    }

    fn ports(&self) -> [u16; 2] {
        [self.datagrams.local_addr().unwrap().port(), self.resolver.local_addr().unwrap().port()]
    }

    /// Fails if anything has come; and if this host's own datagram does not.
    fn assert_unvisited(&self) {
        let visitor = self.resolver.accept();
        assert!(visitor.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a connection");
        let mut buffer = [0; 2048];
        let came = self.datagrams.recv_from(&mut buffer);
        assert!(came.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a datagram");
        let [port, _] = self.ports();
        self.datagrams.set_nonblocking(false).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.send_to(b"own", (Ipv4Addr::LOCALHOST, port)).unwrap();
        let (length, _) = self.datagrams.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"own");
    }
}

/// The address of this host in its network, where it has one. Nothing is sent to find it.
fn find_outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

mod needs_python {
    use super::*;
    use crate::common::CliPlace;
    use crate::network::{Internet, KNOWN_NAME, fetch_program};

    fn tries_every_way_out(place: &CliPlace) {
        let (internet, witnesses) = (Internet::start(), Witnesses::start());
        internet.configure(place);
        place.write("escapes.py", include_str!("network_escapes.py"));
        let port = internet.port;
        let net = format!("{KNOWN_NAME}:{port},127.0.0.1:{port}");
        let [datagrams, resolver] = witnesses.ports();
        let mut args =
            [internet.name_server.port(), datagrams, resolver].map(|it| it.to_string()).to_vec();
        args.extend(find_outer_address().map(|address| address.to_string()));
        let run = ["run", "--net", &net, "--", "/usr/bin/python3", "escapes.py"];
        let args: Vec<_> = run.into_iter().chain(args.iter().map(String::as_str)).collect();
        let done = place.stockade(&args);
        done.code_is(0);
        assert!(done.stdout.lines().all(|line| line.ends_with(" failed")), "{done:?}");
        let first_and_last = ["lookup failed", "raw echo 192.0.2.1 failed"];
        assert!(first_and_last.iter().all(|line| done.stdout.contains(line)), "{done:?}");
        witnesses.assert_unvisited();
        assert_eq!((internet.asked(), internet.visits()), (Vec::new(), 0));
        // The name server hears of a name that is allowed.
        let program = fetch_program(KNOWN_NAME, port, false);
        place
            .stockade(&["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program])
            .is(0, "hello\n", "");
        assert_eq!(internet.asked(), [KNOWN_NAME]);
    }

    #[test]
    fn neither_datagrams_nor_echoes_nor_another_resolver_get_out() {
        tries_every_way_out(&CliPlace::new());
    }

    #[test]
    fn neither_datagrams_nor_echoes_nor_another_resolver_get_an_ordinary_user_out() {
        tries_every_way_out(&CliPlace::of_an_ordinary_user());
    }
}
