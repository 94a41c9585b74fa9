//! A web server with a certificate of its own, and a client inside a sandbox that speaks TLS to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use stockade_agent::protocol::network::FromHelper;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::helper::{Said, TestHelper};

/// Longer than anything takes here on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of the stream by which a client speaks.
const STREAM: u32 = 1;
const PIPE_BYTES: usize = 64 * 1024;

/// A server that keeps what it was sent, and answers as it is told.
pub struct TlsServer {
    pub address: SocketAddr,
    /// The certificate of the authority that has signed its own.
    pub root_pem: String,
    pub requests: mpsc::UnboundedReceiver<String>,
}

impl TlsServer {
    /// Answers each request with what this makes of it.
    pub async fn start(answer: impl Fn(&str) -> String + Send + 'static) -> Self {
        let (config, root_pem) = make_server_config();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, requests) = mpsc::unbounded_channel();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                // A client that does not trust it ends the handshake.
                let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                while let Some(request) = read_request(&mut stream).await {
                    let reply = answer(&request);
                    let _ = seen.send(request);
                    if stream.write_all(reply.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        Self { address, root_pem, requests }
    }

    /// The next request.
    pub async fn request(&mut self) -> String {
        let next = tokio::time::timeout(STEP_TIMEOUT, self.requests.recv()).await;
        next.expect("a request comes").unwrap()
    }
}

fn make_server_config() -> (ServerConfig, String) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::<String>::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().unwrap();
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let leaf = CertificateParams::new(names.to_vec()).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (config, root_pem)
}

/// A head, and a body as long as it says or up to the last chunk; nothing at the end of the connection.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = String::new();
    loop {
        let head_end = text.find("\r\n\r\n").map(|at| at + 4);
        if let Some(end) = head_end {
            let head = text[..end].to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|it| it.lines().next());
            let is_whole = match length.map(|length| length.trim().parse::<usize>().unwrap()) {
                Some(length) => text.len() >= end + length,
                None if head.contains("chunked") => text.ends_with("\r\n0\r\n\r\n"),
                None => true,
            };
            if is_whole {
                return Some(text);
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => text.push_str(std::str::from_utf8(&buffer[..count]).unwrap()),
        }
    }
}

/// A connection of a program inside, as a byte stream.
pub fn open_stream(helper: TestHelper, address: SocketAddr) -> DuplexStream {
    open_stream_to(helper, &address.ip().to_string(), address.port())
}

/// The same, to a host by its name.
pub fn open_stream_to(mut helper: TestHelper, host: &str, port: u16) -> DuplexStream {
    let (client, inside) = tokio::io::duplex(PIPE_BYTES);
    helper.open(STREAM, host, port);
    let (mut from_client, mut to_client) = tokio::io::split(inside);
    tokio::spawn(async move {
        let (mut buffer, mut is_open) = (vec![0; 16 * 1024], true);
        loop {
            tokio::select! {
                read = from_client.read(&mut buffer), if is_open => match read {
                    Ok(0) | Err(_) => {
                        is_open = false;
                        helper.say(&FromHelper::End(STREAM));
                    }
                    Ok(count) => helper.say(&FromHelper::Data(STREAM, &buffer[..count])),
                },
                // The client may be gone. The relay goes on until the test ends.
                said = helper.hear() => match said {
                    Some(Said::Data(STREAM, data)) => drop(to_client.write_all(&data).await),
                    Some(Said::End(STREAM) | Said::Reset(STREAM) | Said::Refused(STREAM, _)) => {
                        drop(to_client.shutdown().await);
                    }
                    Some(_) => {}
                    None => return,
                },
            }
        }
    });
    client
}

/// Speaks TLS as a client that trusts these certificates.
pub async fn connect_tls<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    trusted_pem: &[u8],
    address: SocketAddr,
) -> std::io::Result<TlsStream<S>> {
    connect_tls_to(stream, trusted_pem, &address.ip().to_string()).await
}

/// The same, to a host by its name.
pub async fn connect_tls_to<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    trusted_pem: &[u8],
    host: &str,
) -> std::io::Result<TlsStream<S>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted_pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends this and reads an answer, which says its length or comes in chunks.
pub async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let answered = tokio::time::timeout(STEP_TIMEOUT, read_request(stream)).await;
    answered.expect("an answer comes").expect("the connection is open")
}
