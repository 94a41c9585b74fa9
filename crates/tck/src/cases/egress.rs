//! What can be reached by an allow-list: exactly what it names, by every way out (C-51, C-52).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use stockade_core::{Feature, Network, SandboxSpec};

use crate::case::{case, check};
use crate::kit::probe_command;
use crate::{Case, Kit, Verdict};

const EGRESS_FEATURES: &[Feature] = &[Feature::EgressAllowlist];
/// Every way in which a program may ask for a host by its name.
pub(super) const NAMED_WAYS: [&str; 4] = ["name", "connect", "http", "socks"];
/// What the host's server says.
const PAGE: &str = "the page of the host";

pub(super) const EGRESS_CASES: &[Case] = &[
    case!("a host of the list is reached by name and by proxy", "C-51", listed_host)
        .needs(EGRESS_FEATURES),
    case!("a host that is not on the list is not reached in any way", "C-51", other_host)
        .needs(EGRESS_FEATURES),
    case!("a name does not open an address of the host", "C-51", special_address)
        .needs(EGRESS_FEATURES),
    case!("a rule that denies wins over one that allows", "C-51", denied_host)
        .needs(EGRESS_FEATURES),
    case!("a connection carries requests for its own host only", "C-51", other_name)
        .needs(EGRESS_FEATURES),
    case!("a listed host does not open the network to addresses", "C-51", direct_address)
        .needs(EGRESS_FEATURES)
        .isolation(),
    case!("a listed host does not open the network to datagrams", "C-51", datagram)
        .needs(EGRESS_FEATURES)
        .isolation(),
];

/// A server on the host's loopback that counts who came, and keeps what it was sent.
pub(super) struct HostServer {
    pub port: u16,
    visits: Arc<AtomicUsize>,
    heard: HeardBytes,
}

type HeardBytes = Arc<Mutex<Vec<u8>>>;

impl HostServer {
    pub fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let visits = Arc::new(AtomicUsize::new(0));
        let heard = HeardBytes::default();
        let (counted, kept) = (Arc::clone(&visits), Arc::clone(&heard));
        // It lives as long as the process: a case has no end at which to wait for it.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || serve_page(stream, &kept));
            }
        });
        Ok(Self { port, visits, heard })
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }

    /// Whether anybody has sent this.
    pub fn has_heard(&self, text: &str) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// A spec with these rules, in which `PORT` is the server's.
    pub fn spec(&self, kit: &Kit, rules: &[&str]) -> Result<SandboxSpec, crate::Stop> {
        let rules = rules.iter().map(|rule| rule.replace("PORT", &self.port.to_string()).parse());
        let rules = rules.collect::<Result<_, _>>().map_err(crate::Stop::Failed)?;
        Ok(SandboxSpec { network: Network::Egress(rules), ..kit.spec() })
    }
}

/// Answers each request until the peer ends.
fn serve_page(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut seen = Vec::new();
    let mut buffer = [0; 1024];
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
        if seen.ends_with(b"\r\n\r\n") {
            seen.clear();
            let length = PAGE.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{PAGE}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

async fn fetch(
    kit: &Kit,
    spec: &SandboxSpec,
    (way, host, named): (&str, &str, &str),
    port: u16,
) -> Result<Value, crate::Stop> {
    let command = probe_command(["fetch", way, host, &port.to_string(), named]);
    kit.run_with(spec.clone(), command).await?.facts()
}

pub(super) fn has_page(facts: &Value) -> bool {
    facts["ok"] == json!(true) && facts["answer"].as_str().is_some_and(|it| it.ends_with(PAGE))
}

async fn check_unreached(
    kit: &Kit,
    server: &HostServer,
    rules: &[&str],
    ways: &[&str],
    host: &str,
) -> Verdict {
    let spec = server.spec(kit, rules)?;
    for way in ways {
        let facts = fetch(kit, &spec, (way, host, host), server.port).await?;
        check!(!has_page(&facts), "expected no page by {way}, saw {facts}");
    }
    check!(server.visits() == 0, "expected nobody at the host's server, saw {}", server.visits());
    Ok(())
}

async fn listed_host(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let spec = server.spec(&kit, &["localhost:PORT", "127.0.0.1:PORT"])?;
    for way in NAMED_WAYS {
        let facts = fetch(&kit, &spec, (way, "localhost", "localhost"), server.port).await?;
        check!(has_page(&facts), "expected the page by {way}, saw {facts}");
    }
    let facts = fetch(&kit, &spec, ("connect", "127.0.0.1", "127.0.0.1"), server.port).await?;
    check!(has_page(&facts), "expected the page by address, saw {facts}");
    Ok(())
}

async fn other_host(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let rules = ["example.org:PORT", "127.0.0.1:PORT"];
    check_unreached(&kit, &server, &rules, &NAMED_WAYS, "localhost").await
}

async fn special_address(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    check_unreached(&kit, &server, &["localhost:PORT"], &NAMED_WAYS, "localhost").await?;
    // A range that happens to include it does not name it.
    let rules = ["localhost:PORT", "0.0.0.0/0:PORT"];
    check_unreached(&kit, &server, &rules, &NAMED_WAYS, "localhost").await
}

async fn denied_host(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let rules = ["localhost:PORT", "127.0.0.0/8:PORT", "!localhost"];
    check_unreached(&kit, &server, &rules, &NAMED_WAYS, "localhost").await?;
    let rules = ["localhost:PORT", "127.0.0.0/8:PORT", "!127.0.0.1"];
    check_unreached(&kit, &server, &rules, &NAMED_WAYS, "localhost").await
}

async fn other_name(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let spec = server.spec(&kit, &["localhost:PORT", "127.0.0.1:PORT"])?;
    for way in NAMED_WAYS {
        // The way is open, so that what is refused is the name.
        let facts = fetch(&kit, &spec, (way, "localhost", "localhost"), server.port).await?;
        check!(has_page(&facts), "expected the page by {way}, saw {facts}");
        let facts = fetch(&kit, &spec, (way, "localhost", "example.org"), server.port).await?;
        check!(!has_page(&facts), "expected no page of another host by {way}, saw {facts}");
    }
    Ok(())
}

async fn direct_address(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let rules = ["localhost:PORT", "127.0.0.1:PORT"];
    check_unreached(&kit, &server, &rules, &["address"], "127.0.0.1").await
}

/// A rule opens a port to connections: QUIC and names asked elsewhere go by datagrams.
async fn datagram(kit: Kit) -> Verdict {
    let server = HostServer::start()?;
    let witness = UdpSocket::bind(("127.0.0.1", 0))?;
    witness.set_nonblocking(true)?;
    let port = witness.local_addr()?.port().to_string();
    let spec = server.spec(&kit, &["localhost:PORT", &format!("127.0.0.1:{port}")])?;
    let command = probe_command(["send", "127.0.0.1", &port]);
    let facts = kit.run_with(spec, command).await?.facts()?;
    let came = witness.recv(&mut [0; 64]);
    check!(came.is_err(), "expected no datagram at the host's socket, saw one after {facts}");
    Ok(())
}
