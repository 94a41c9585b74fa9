//! Hosts that are reached through the operator's proxy, which the test plays: it leads every tunnel to one server and
//! keeps what it was asked.

use std::fs::Permissions;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use stockade_agent::protocol::network::FromHelper;
use stockade_network::{ConnectionVerdict, SharedNetwork, UpstreamProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::helper::{Said, TestHelper, network_asking};
use crate::http::{hear_text, read_head};
use crate::name_server::{TestNameServer, TestRecord};

/// The name that rules allow, at this port, and where it leads: an address of the public network.
const PAGES: &str = "pages.test";
const PAGES_PORT: u16 = 4000;
const PAGES_ADDRESS: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);
/// How the proxy answers where it opens a tunnel.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

struct TestProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    /// Leads every tunnel to this server.
    async fn to_server(server: SocketAddr) -> Self {
        Self::start(move |mut client| async move {
            let mut far = TcpStream::connect(server).await.unwrap();
            client.write_all(ESTABLISHED).await.unwrap();
            // Either side may end first.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut far).await;
        })
        .await
    }

    /// Answers every request so, and holds the connection until the other side ends it.
    async fn answering(reply: Vec<u8>) -> Self {
        Self::start(move |mut client| {
            let reply = reply.clone();
            async move {
                // A peer that has read enough may be gone.
                let _ = client.write_all(&reply).await;
                let _ = client.read_to_end(&mut Vec::new()).await;
            }
        })
        .await
    }

    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let head = read_head(&mut client).await;
                kept.lock().unwrap().push(head);
                tokio::spawn(serve(client));
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn settings(&self) -> UpstreamProxySettings {
        UpstreamProxySettings {
            url: format!("http://{}", self.address).parse().unwrap(),
            credentials_file: None,
            bypass: Vec::new(),
        }
    }

    /// A network behind it.
    fn network(&self, names: &TestNameServer) -> SharedNetwork {
        network_asking(names.address).with_proxy(&self.settings()).unwrap()
    }
}

fn known_names() -> TestNameServer {
    TestNameServer::start(|name, _| match name {
        PAGES => vec![TestRecord::Address(PAGES, PAGES_ADDRESS)],
        _ => Vec::new(),
    })
}

fn rules() -> [String; 1] {
    [format!("{PAGES}:{PAGES_PORT}")]
}

async fn hear_refusal(helper: &mut TestHelper, stream: u32) -> String {
    loop {
        let said = helper.hear().await.unwrap();
        assert_ne!(said, Said::Opened(stream));
        if let Said::Refused(refused, reason) = said
            && refused == stream
        {
            return reason;
        }
    }
}

#[tokio::test]
async fn an_allowed_name_is_reached_by_the_address_that_was_checked() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::to_server(server.local_addr().unwrap()).await;
    let names = known_names();
    let mut helper = TestHelper::start_shared(&rules(), proxy.network(&names)).await;
    helper.open(1, PAGES, PAGES_PORT);
    let (mut upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.say(&FromHelper::Data(1, b"\x00question"));
    helper.say(&FromHelper::End(1));
    let mut asked = Vec::new();
    upstream.read_to_end(&mut asked).await.unwrap();
    assert_eq!(asked, b"\x00question");
    upstream.write_all(b"answer").await.unwrap();
    drop(upstream);
    helper.hear_until(&Said::Data(1, b"answer".to_vec())).await;
    helper.hear_until(&Said::End(1)).await;
    let target = format!("{PAGES_ADDRESS}:{PAGES_PORT}");
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    assert_eq!(proxy.asked(), [request]);
    // What the proxy said is no part of what the host did.
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!((record.sent, record.received), (9, 6));
    assert_eq!(record.address, Some(PAGES_ADDRESS.into()));
    assert!(matches!(record.verdict, ConnectionVerdict::Allowed { .. }), "{record:?}");
}

#[tokio::test]
async fn what_a_host_says_right_behind_the_proxys_answer_is_heard() {
    let reply = [ESTABLISHED, b"220 hello\r\n"].concat();
    let (proxy, names) = (TestProxy::answering(reply).await, known_names());
    let mut helper = TestHelper::start_shared(&rules(), proxy.network(&names)).await;
    helper.open(1, PAGES, PAGES_PORT);
    helper.hear_until(&Said::Data(1, b"220 hello\r\n".to_vec())).await;
}

#[tokio::test]
async fn requests_through_the_proxy_are_for_their_own_host_only() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::to_server(server.local_addr().unwrap()).await;
    let names = known_names();
    let mut helper = TestHelper::start_shared(&rules(), proxy.network(&names)).await;
    helper.open(1, PAGES, PAGES_PORT);
    let (mut upstream, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.say(&FromHelper::Data(1, b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"));
    let refused = hear_text(&mut helper, "\n").await;
    assert!(refused.contains("403 Forbidden"), "{refused}");
    let mut sent = String::new();
    upstream.read_to_string(&mut sent).await.unwrap();
    assert_eq!(sent, "");
    let record = helper.wait_for_records(1).await.remove(0);
    assert!(matches!(record.verdict, ConnectionVerdict::Denied { .. }), "{record:?}");
}

#[tokio::test]
async fn the_proxy_is_asked_for_nothing_that_is_not_allowed() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::to_server(server.local_addr().unwrap()).await;
    let names = TestNameServer::start(|name, _| match name {
        PAGES => vec![TestRecord::Address(PAGES, PAGES_ADDRESS)],
        "inside.test" => vec![TestRecord::Address("inside.test", Ipv4Addr::new(10, 0, 0, 1))],
        _ => Vec::new(),
    });
    let rules = [&rules()[..], &[format!("inside.test:{PAGES_PORT}")]].concat();
    let mut helper = TestHelper::start_shared(&rules, proxy.network(&names)).await;
    let proxy_host = proxy.address.ip().to_string();
    for (number, (host, port)) in (1..).step_by(2).zip([
        ("other.test", PAGES_PORT),
        ("8.8.8.8", PAGES_PORT),
        (PAGES, 22),
        ("inside.test", PAGES_PORT),
        (proxy_host.as_str(), proxy.address.port()),
    ]) {
        helper.open(number, host, port);
        hear_refusal(&mut helper, number).await;
    }
    assert_eq!(proxy.asked(), [""; 0]);
    // The witness hears.
    helper.open(11, PAGES, PAGES_PORT);
    helper.hear_until(&Said::Opened(11)).await;
    assert_eq!(proxy.asked().len(), 1);
}

#[tokio::test]
async fn addresses_of_this_host_are_reached_without_it() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let names = TestNameServer::start(|_, _| vec![TestRecord::Address(PAGES, Ipv4Addr::LOCALHOST)]);
    let proxy = TestProxy::answering(ESTABLISHED.to_vec()).await;
    let rules = [address.to_string(), format!("{PAGES}:{}", address.port())];
    let mut helper = TestHelper::start_shared(&rules, proxy.network(&names)).await;
    for (number, host) in [(1, "127.0.0.1"), (3, PAGES)] {
        helper.open(number, host, address.port());
        server.accept().await.unwrap();
        helper.hear_until(&Said::Opened(number)).await;
    }
    assert_eq!(proxy.asked(), [""; 0]);
}

#[tokio::test]
async fn credentials_are_sent_to_the_proxy_and_told_to_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("credentials");
    std::fs::write(&file, "user:hunter2\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    // One that repeats what it was sent, with a colour.
    let repeating = b"HTTP/1.1 407 \x1b[31muser:hunter2\r\nX-Was: dXNlcjpodW50ZXIy\r\n\r\n";
    let (proxy, names) = (TestProxy::answering(repeating.to_vec()).await, known_names());
    let settings = UpstreamProxySettings { credentials_file: Some(file), ..proxy.settings() };
    let shared = network_asking(names.address).with_proxy(&settings).unwrap();
    let mut helper = TestHelper::start_shared(&rules(), shared).await;
    helper.open(1, PAGES, PAGES_PORT);
    let reason = hear_refusal(&mut helper, 1).await;
    let asked = proxy.asked().remove(0);
    assert!(asked.ends_with("\r\nProxy-Authorization: Basic dXNlcjpodW50ZXIy\r\n\r\n"), "{asked}");
    let target = format!("{PAGES_ADDRESS}:{PAGES_PORT}");
    let told = "the upstream proxy answers 407 Proxy Authentication Required";
    assert_eq!(reason, format!("{told} for {target}"));
    let record = helper.wait_for_records(1).await.remove(0);
    let rule = Some(format!("{PAGES}:{PAGES_PORT}"));
    assert_eq!(record.verdict, ConnectionVerdict::Failed { rule, reason });
}

#[tokio::test]
async fn an_answer_that_opens_no_tunnel_fails_the_connection() {
    let endless = [&b"HTTP/1.1 200 OK\r\nX-Long: "[..], &b"x".repeat(64 * 1024)].concat();
    for (reply, told) in [
        (b"HTTP/1.1 403 No\r\n\r\n".to_vec(), "answers 403 Forbidden"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n".to_vec(), "answers 302 Found"),
        (b"SSH-2.0-x\r\n\r\n".to_vec(), "not HTTP/1"),
        (endless, "more than 8192 bytes"),
    ] {
        let (proxy, names) = (TestProxy::answering(reply).await, known_names());
        let mut helper = TestHelper::start_shared(&rules(), proxy.network(&names)).await;
        helper.open(1, PAGES, PAGES_PORT);
        let reason = hear_refusal(&mut helper, 1).await;
        assert!(reason.contains("the upstream proxy") && reason.contains(told), "{reason}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_there_or_breaks_off_fails_the_connection() {
    let names = known_names();
    let ending = TestProxy::start(|client| async move { drop(client) }).await;
    // A port that is taken, so that nobody else comes to listen there.
    let unheard = TcpSocket::new_v4().unwrap();
    unheard.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = TestProxy { address: unheard.local_addr().unwrap(), asked: Arc::default() };
    for (proxy, told) in [(ending, "broke the connection off"), (gone, "cannot be reached")] {
        let mut helper = TestHelper::start_shared(&rules(), proxy.network(&names)).await;
        helper.open(1, PAGES, PAGES_PORT);
        let reason = hear_refusal(&mut helper, 1).await;
        assert!(reason.contains(told), "{reason}");
    }
}

/// Time goes on by itself where everybody waits, so that the deadline comes at once.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_never_answers_is_given_up() {
    let proxy = TestProxy::answering(b"HTTP/1.1 200 OK\r\n".to_vec()).await;
    let target = format!("{PAGES_ADDRESS}:{PAGES_PORT}");
    // By address: a name server would not be given time to answer.
    let shared = network_asking(proxy.address).with_proxy(&proxy.settings()).unwrap();
    let mut helper = TestHelper::start_shared(std::slice::from_ref(&target), shared).await;
    helper.open(1, &PAGES_ADDRESS.to_string(), PAGES_PORT);
    let reason = hear_refusal(&mut helper, 1).await;
    assert_eq!(reason, format!("the upstream proxy did not reach {target} in 15 s"));
}
