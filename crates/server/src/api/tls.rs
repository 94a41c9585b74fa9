//! TLS of the API: one certificate with its private key, read when the daemon starts and again when their files have
//! changed. A key that other users can read is not used. Every peer has a deadline for its handshake; one that speaks
//! plain HTTP is told so.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use stockade_core::{Error, ErrorCode, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Join};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::http::{ReaderPatience, StallTimeout};

const LOAD_OPERATION: &str = "set up TLS";
/// The largest file of certificates.
const MAX_CHAIN_BYTES: u64 = 1 << 20;
/// The largest file of a private key.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// Timeout for a peer to finish its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The protocol that is spoken over TLS, as ALPN names it.
const HTTP1_ALPN: &[u8] = b"http/1.1";
/// Bytes that are taken of a request in plain HTTP, so that its sender reads the reply before the end.
const MAX_PLAIN_REQUEST_BYTES: u64 = 64 << 10;
/// What a peer is told that speaks plain HTTP.
const PLAIN_HTTP_REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\
    Connection: close\r\n\r\n{\"error\":{\"code\":\"invalid\",\"message\":\"this port takes TLS only\",\
    \"remedy\":\"use https:// instead of http://; revoke the token if the request carried one\"}}\n";

/// A certificate with its private key, as their files have them. Clones are the same.
#[derive(Clone)]
pub struct ApiTls(Arc<TlsState>);

struct TlsState {
    chain_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<TlsIdentity>,
}

/// What was read from the two files.
#[derive(Clone)]
struct TlsIdentity {
    acceptor: TlsAcceptor,
    certificate: Arc<CertificateDer<'static>>,
    versions: [Option<FileVersion>; 2],
}

/// By what a file that was written anew differs: device, inode, bytes, and when it was changed.
type FileVersion = (u64, u64, u64, (i64, i64));

/// A connection over TLS. Stalls are watched below the encryption, where each piece is seen that the peer takes.
pub(crate) type EncryptedStream = TlsStream<Join<OwnedReadHalf, StallTimeout<OwnedWriteHalf>>>;

impl ApiTls {
    /// Reads a chain of certificates, the server's own first, and the private key of that one.
    pub fn load(chain_file: &Path, key_file: &Path) -> Result<Self> {
        let current = RwLock::new(TlsIdentity::read(chain_file, key_file)?);
        let (chain_file, key_file) = (chain_file.to_owned(), key_file.to_owned());
        Ok(Self(Arc::new(TlsState { chain_file, key_file, current })))
    }

    /// Reads the files again if they have changed; answers whether a renewed certificate is used from now on. Where
    /// they cannot be used, such as while only one of them is written yet, the one that was read before stays.
    pub fn refresh(&self) -> Result<bool> {
        let TlsState { chain_file, key_file, current } = &*self.0;
        if self.current().versions == [chain_file, key_file].map(|file| read_version(file)) {
            return Ok(false);
        }
        let renewed = TlsIdentity::read(chain_file, key_file)?;
        *current.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(true)
    }

    /// The certificate as it is now, for one connection: a renewal does not change it.
    pub(crate) fn pin(&self) -> Self {
        let (chain_file, key_file) = (self.0.chain_file.clone(), self.0.key_file.clone());
        let current = RwLock::new(self.current());
        Self(Arc::new(TlsState { chain_file, key_file, current }))
    }

    fn current(&self) -> TlsIdentity {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the certificate is for a name or an address.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        let certificate = self.current().certificate;
        let Ok(certificate) = ParsedCertificate::try_from(&*certificate) else { return false };
        ServerName::try_from(name).is_ok_and(|name| verify_server_name(&certificate, &name).is_ok())
    }

    /// Encrypts a connection; nothing where its peer does not begin TLS and finish its handshake in time.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        patience: ReaderPatience,
    ) -> Option<EncryptedStream> {
        let accepting = async {
            if begins_plain_http(&stream).await {
                refuse_plain_http(stream).await;
                return None;
            }
            let (reader, writer) = stream.into_split();
            let stream = tokio::io::join(reader, StallTimeout::new(writer, patience));
            self.finish_handshake(stream).await
        };
        timeout(HANDSHAKE_TIMEOUT, accepting).await.ok().flatten()
    }

    /// A peer that breaks off, or does not accept the certificate, is no business of ours.
    async fn finish_handshake<S>(&self, stream: S) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        timeout(HANDSHAKE_TIMEOUT, self.current().acceptor.accept(stream)).await.ok()?.ok()
    }
}

impl TlsIdentity {
    fn read(chain_file: &Path, key_file: &Path) -> Result<Self> {
        // Before the content: what is written meanwhile is read the next time.
        let versions = [chain_file, key_file].map(read_version);
        let chain = read_chain(chain_file)?;
        let Some(certificate) = chain.first().cloned() else { return Err(no_chain(chain_file)) };
        let key = read_key(key_file)?;
        let unusable = |error: rustls::Error| {
            let (chain, key) = (chain_file.display(), key_file.display());
            let message = format!("the certificate in `{chain}` cannot be used with `{key}`");
            tls_error(message)
                .remedy("give a certificate and the private key that it was made for")
                .source(error)
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![HTTP1_ALPN.to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, certificate: Arc::new(certificate), versions })
    }
}

fn read_version(file: &Path) -> Option<FileVersion> {
    let found = file.metadata().ok()?;
    Some((found.dev(), found.ino(), found.len(), (found.ctime(), found.ctime_nsec())))
}

impl fmt::Debug for ApiTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiTls(…)")
    }
}

/// Whether the first byte of a connection is that of a method. TLS begins with the type of a record.
async fn begins_plain_http(stream: &TcpStream) -> bool {
    let mut first = [0];
    let peeked = stream.peek(&mut first).await;
    peeked.is_ok_and(|count| count == 1 && first[0].is_ascii_uppercase())
}

async fn refuse_plain_http(mut stream: TcpStream) {
    let replied = async {
        stream.write_all(PLAIN_HTTP_REPLY).await?;
        stream.shutdown().await?;
        // A connection that is closed with something unread is reset, and the reply lost.
        let mut rest = stream.take(MAX_PLAIN_REQUEST_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // The peer may be gone already.
    let _ = replied.await;
}

fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = read_regular_file(file, MAX_CHAIN_BYTES);
    let (_, pem) = read.map_err(|error| no_chain(file).source(error))?;
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    chain.map_err(|error| no_chain(file).source(error))
}

fn no_chain(file: &Path) -> Error {
    tls_error(format!("no certificate can be read from `{}`", file.display())).remedy(
        "give a readable file with the certificate as PEM, and its intermediate ones behind it",
    )
}

fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let unusable = |what: &str| tls_error(format!("the TLS key `{}` {what}", file.display()));
    let (about, pem) = read_regular_file(file, MAX_KEY_BYTES).map_err(|error| {
        unusable("cannot be read").remedy("give a readable file with the key as PEM").source(error)
    })?;
    if about.mode() & 0o077 != 0 || about.uid() != rustix::process::geteuid().as_raw() {
        let remedy = format!("chown it to this user and `chmod 600 {}`", file.display());
        return Err(unusable("can be read by other users").remedy(remedy));
    }
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        unusable("is none").remedy("give a private key as PEM, without a passphrase").source(error)
    })
}

/// Reads a regular file: opening a pipe of that name could block this process.
fn read_regular_file(path: &Path, most: u64) -> io::Result<(Metadata, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > most {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((about, bytes))
}

fn tls_error(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, LOAD_OPERATION, message)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::{ClientConfig, RootCertStore};
    use tempfile::TempDir;
    use tokio::io::duplex;
    use tokio_rustls::TlsConnector;

    use super::*;

    const NAMES: [&str; 3] = ["api.example.org", "*.sub.example.org", "192.0.2.7"];

    /// A certificate for these names and its key, as files.
    fn write_identity() -> (TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (chain, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(NAMES.map(str::to_owned).to_vec()).unwrap();
        fs::write(&chain, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        (dir, chain, key)
    }

    #[test]
    fn a_certificate_is_for_its_own_names_alone() {
        let (_dir, chain, key) = write_identity();
        let tls = ApiTls::load(&chain, &key).unwrap();
        for name in ["api.example.org", "API.example.ORG", "a.sub.example.org", "192.0.2.7"] {
            assert!(tls.is_for(name), "{name}");
        }
        for name in ["example.org", "localhost", "127.0.0.1", "a.b.sub.example.org", "", "é", "::1"]
        {
            assert!(!tls.is_for(name), "{name}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_and_one_of_another_certificate_are_not_used() {
        let (_dir, chain, key) = write_identity();
        let (_other_dir, _, other) = write_identity();
        let refused = |key: &Path, part: &str| {
            let error = ApiTls::load(&chain, key).unwrap_err();
            let told = format!("{} {}", error.message(), error.hint().unwrap());
            assert!(told.contains(part), "{told}");
        };
        refused(&other, "cannot be used with");
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            refused(&key, "chmod 600");
        }
        refused(Path::new("/dev/null"), "cannot be read");
        refused(Path::new("/nowhere/key.pem"), "cannot be read");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(ApiTls::load(&chain, &key).is_ok());
        let error = ApiTls::load(&key, &key).unwrap_err();
        assert!(error.message().contains("no certificate"), "{error}");
        fs::copy(&chain, &other).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        refused(&other, "is none");
    }

    #[test]
    fn a_renewed_certificate_is_used_as_soon_as_its_key_is_there() {
        let (_dir, chain, key) = write_identity();
        let (_renewed_dir, renewed_chain, renewed_key) = write_identity();
        let tls = ApiTls::load(&chain, &key).unwrap();
        let (first, pinned) = (tls.current().certificate, tls.pin());
        assert!(!tls.refresh().unwrap());
        // As a program does that renews certificates: one file after the other, each put in place as a whole.
        fs::rename(renewed_chain, &chain).unwrap();
        tls.refresh().unwrap_err();
        assert_eq!(tls.current().certificate, first);
        fs::rename(renewed_key, &key).unwrap();
        assert!(tls.refresh().unwrap());
        assert_ne!(tls.current().certificate, first);
        assert_eq!(pinned.current().certificate, first);
        assert!(!tls.refresh().unwrap());
        fs::remove_file(&key).unwrap();
        tls.refresh().unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_finishes_its_handshake_is_cut_off() {
        let (_dir, chain, key) = write_identity();
        let tls = ApiTls::load(&chain, &key).unwrap();
        let (near, mut far) = duplex(1024);
        // The head of a record that does not come.
        far.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
        assert!(tls.finish_handshake(near).await.is_none());
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }

    /// A client that accepts this certificate alone.
    fn build_connector(tls: &ApiTls) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::clone(&tls.current().certificate)).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_noticed_though_all_is_in_a_buffer() {
        let (_dir, chain, key) = write_identity();
        let tls = ApiTls::load(&chain, &key).unwrap();
        let (near, far) = duplex(4096);
        let (reader, writer) = tokio::io::split(near);
        let writer = StallTimeout::new(writer, ReaderPatience::default());
        let (connector, name) = (build_connector(&tls), ServerName::try_from("api.example.org"));
        let (near, far) = tokio::join!(
            tls.finish_handshake(tokio::io::join(reader, writer)),
            connector.connect(name.unwrap(), far),
        );
        let (mut near, _far) = (near.unwrap(), far.unwrap());
        // More than the pipe holds, and less than the encryption does.
        near.write_all(&[0; 8192]).await.unwrap();
        let stalled = near.flush().await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
    }
}
