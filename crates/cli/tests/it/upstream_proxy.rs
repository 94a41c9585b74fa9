//! The operator's proxy, `network.upstreamProxy`: a real one on this host's loopback, which keeps what it was asked.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A proxy that leads every tunnel to one port of this host. It lives as long as the test's process.
struct RecordingProxy {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl RecordingProxy {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                kept.lock().unwrap().push(read_head(&mut client));
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
                let far = TcpStream::connect(("127.0.0.1", server)).unwrap();
                join_streams(client, far);
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn read_head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Passes bytes on in both directions, each until its end.
fn join_streams(client: TcpStream, far: TcpStream) {
    let back = (far.try_clone().unwrap(), client.try_clone().unwrap());
    for (mut from, mut to) in [(client, far), back] {
        std::thread::spawn(move || {
            // Either side may be gone.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}

mod needs_python {
    use super::*;
    use crate::common::{CliPlace, finish};
    use crate::network::{Internet, fetch_program};

    /// An address of the public network, to which nothing is sent.
    const ADDRESS: &str = "8.8.8.8";
    const PORT: u16 = 4000;
    /// Every variable by which programs are told of a proxy.
    const PROXY_VARIABLES: [&str; 6] =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

    #[test]
    fn hosts_are_reached_through_the_configured_proxy_and_no_other() {
        let (place, internet) = (CliPlace::new(), Internet::start());
        let proxy = RecordingProxy::start(internet.port);
        let decoy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        decoy.set_nonblocking(true).unwrap();
        let decoy_url = format!("http://{}", decoy.local_addr().unwrap());
        let setting = format!("upstreamProxy = \"http://127.0.0.1:{}\"\n", proxy.port);
        internet.configure_with(&place, &setting);
        let (net, program) = (format!("{ADDRESS}:{PORT}"), fetch_program(ADDRESS, PORT, true));
        let run = ["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program];
        let mut command = place.command(&run);
        command.envs(PROXY_VARIABLES.map(|name| (name, decoy_url.as_str())));
        finish(command).is(0, "hello\n", "");
        let request = format!("CONNECT {net} HTTP/1.1\r\nHost: {net}\r\n\r\n");
        assert_eq!((proxy.asked(), internet.visits()), (vec![request], 1));
        let visitor = decoy.accept();
        assert!(visitor.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        // What no rule allows does not get there.
        let program = fetch_program("8.8.4.4", PORT, true);
        let denied =
            place.stockade(&["run", "--net", &net, "--", "/usr/bin/python3", "-c", &program]);
        assert!(denied.stdout.starts_with("failed "), "{denied:?}");
        assert_eq!(proxy.asked().len(), 1);
    }
}
