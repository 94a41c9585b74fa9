//! Ways out past the rules. A real program inside tries each, and sockets of this host are witness that nothing came.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

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

/// A port of this host's loopback at which nothing listens, and no other process can, as long as the socket lives.
fn take_port() -> (OwnedFd, u16) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: std::net::SocketAddr = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address.port())
}

/// Sockets of this host of the kind that has no network: at paths, and under an abstract name.
struct UnixWitnesses {
    _dir: tempfile::TempDir,
    names: Vec<String>,
    listeners: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
}

impl UnixWitnesses {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("witness").tempdir_in("/tmp").unwrap();
        let all = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir.path(), all(0o755)).unwrap();
        let paths = ["stream", "datagrams"].map(|name| dir.path().join(name));
        let abstract_name = format!("stockade-{}", dir.path().display());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let listeners = vec![
            UnixListener::bind(&paths[0]).unwrap(),
            UnixListener::bind_addr(&address).unwrap(),
        ];
        let datagrams = vec![UnixDatagram::bind(&paths[1]).unwrap()];
        for path in &paths {
            std::fs::set_permissions(path, all(0o777)).unwrap();
        }
        let names = paths.map(|path| path.display().to_string());
        let names = names.into_iter().chain([format!("@{abstract_name}")]).collect();
        Self { _dir: dir, names, listeners, datagrams }
    }

    /// Fails if anything has come.
    fn assert_unvisited(&self) {
        for listener in &self.listeners {
            listener.set_nonblocking(true).unwrap();
            let came = listener.accept();
            assert!(came.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a connection");
        }
        for datagrams in &self.datagrams {
            datagrams.set_nonblocking(true).unwrap();
            let came = datagrams.recv(&mut [0; 16]);
            assert!(came.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a datagram");
        }
    }
}

mod needs_python {
    use std::process::Command;

    use super::*;
    use crate::common::lasting::{Lasting, eventually};
    use crate::common::{CliPlace, finish};
    use crate::network::{Internet, KNOWN_NAME, fetch_program};

    /// A server inside, of TCP and under an abstract name, that counts who came.
    const SIBLING_PROGRAM: &str = r#"
import selectors, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
hidden = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
hidden.bind("\0stockade-sibling-" + sys.argv[1])
hidden.listen()
waiting = selectors.DefaultSelector()
for one in (listener, hidden):
    waiting.register(one, selectors.EVENT_READ)
visits = 0
open("/tmp/listens", "w").close()
while True:
    for key, _ in waiting.select():
        peer, _ = key.fileobj.accept()
        visits += 1
        with open("/tmp/visits", "w") as file:
            print(visits, file=file)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        peer.close()
"#;

    /// A sandbox with rules and a server, and what another one has to know to look for it.
    struct Sibling {
        id: String,
        port: String,
        address: String,
        hidden: String,
    }

    impl Sibling {
        fn start(place: &Lasting, net: &str, name: &str, port: u16) -> Self {
            let port = port.to_string();
            let id = place.create(&["--no-workspace", "--net", net]);
            let server = ["exec", &id, "--detach", "--", "/usr/bin/python3", "-c", SIBLING_PROGRAM];
            place.stockade(&[&server[..], &[name, &port]].concat()).code_is(0);
            let listens = || place.shell(&id, "test -e /tmp/listens").code == 0;
            eventually("the sibling listens", listens);
            let look_up = format!("import socket; print(socket.gethostbyname('{KNOWN_NAME}'))");
            let found = place.stockade(&["exec", &id, "--", "/usr/bin/python3", "-c", &look_up]);
            let (address, hidden) = (found.stdout, format!("stockade-sibling-{name}"));
            Self { id, port, address: address.trim_end().to_owned(), hidden }
        }

        /// Fails unless nobody has come but this sandbox itself, now, in both ways.
        fn assert_unvisited(&self, place: &Lasting) {
            let Self { id, port, hidden, .. } = self;
            let visit = format!(
                "import socket\n\
                 socket.create_connection(('127.0.0.1', {port}), timeout=30).recv(9)\n\
                 hidden = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n\
                 hidden.connect('\\0{hidden}')\n\
                 hidden.recv(9)\n\
                 print(open('/tmp/visits').read().strip())"
            );
            let visited = place.stockade(&["exec", id, "--", "/usr/bin/python3", "-c", &visit]);
            assert_eq!(visited.stdout, "2\n", "{visited:?}");
        }
    }

    #[test]
    fn neither_sockets_of_the_host_nor_another_sandbox_are_reached_under_rules() {
        let (place, internet) = (Lasting::new(), Internet::start());
        internet.configure(&place);
        let (witnesses, unix) = (Witnesses::start(), UnixWitnesses::start());
        let name = std::process::id().to_string();
        let allowed = internet.port;
        let net = format!("{KNOWN_NAME}:{allowed},127.0.0.1:{allowed}");
        // At this port nothing listens on this host: connections are refused, whoever else looks for a free one.
        let (_taken, port) = take_port();
        let sibling = Sibling::start(&place, &net, &name, port);
        // At its port a rule opens this host's own address: what listens there is not the sibling.
        let net = format!("{net},127.0.0.1:{},localhost:{}", sibling.port, sibling.port);
        place.write("neighbours.py", include_str!("network_neighbours.py"));
        let ports = [witnesses.ports()[1].to_string(), allowed.to_string()];
        let hidden = format!("@{}", sibling.hidden);
        let mut line = vec!["run", "--net", &net, "--", "/usr/bin/python3", "neighbours.py"];
        line.extend([&ports[0], &sibling.port, &sibling.address, &ports[1]].map(String::as_str));
        line.extend(unix.names.iter().map(String::as_str).chain([hidden.as_str()]));
        let done = place.stockade(&line);
        done.code_is(0);
        assert!(done.stdout.lines().all(|line| line.ends_with(" failed")), "{done:?}");
        assert!(done.stdout.lines().count() > 150, "{done:?}");
        witnesses.assert_unvisited();
        unix.assert_unvisited();
        assert_eq!(internet.visits(), 0);
        sibling.assert_unvisited(&place);
    }

    /// What is tried is no vain attempt: without walls each of these witnesses is reached.
    #[test]
    fn the_same_program_reaches_them_where_there_are_no_walls() {
        let (unix, listener) = (UnixWitnesses::start(), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port().to_string();
        std::thread::spawn(move || {
            for mut peer in listener.incoming().flatten() {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                // One that has gone is answered in vain.
                let _ = std::io::Read::read(&mut peer, &mut [0; 1024]);
                let _ = std::io::Write::write_all(&mut peer, answer);
            }
        });
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/network_neighbours.py");
        let mut command = Command::new("/usr/bin/python3");
        command.args([script, &port, &port, "127.0.0.1", &port]).args(&unix.names);
        // Nothing is sent to another host.
        command.env("HOST_WRITINGS", "127.0.0.1 127.1");
        command.env("HTTP_PROXY", format!("http://127.0.0.1:{port}"));
        let done = finish(command);
        for reached in [
            "host at 127.0.0.1 by direct",
            "host at 127.1 by direct",
            "address of the sibling by direct",
        ] {
            assert!(done.stdout.contains(&format!("{reached} answered\n")), "{done:?}");
        }
        for name in &unix.names {
            assert!(done.stdout.contains(&format!("socket {name} answered\n")), "{done:?}");
        }
    }

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
