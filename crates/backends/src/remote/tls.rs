//! TLS to a daemon on another host. It is verified by the authorities that this host trusts, or by those of one file
//! alone. Nothing switches that off, and nothing is sent before it has succeeded.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use stockade_core::{Error, ErrorCode, Result, clean_foreign};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::client::daemon_error;
use super::url::TlsHost;

/// Timeout for a connection to be made, with all addresses of the host's name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a daemon to finish its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest file of certificates.
const MAX_CA_FILE_BYTES: u64 = 8 << 20;
/// The protocol that is spoken over TLS, as ALPN names it.
const HTTP1_ALPN: &[u8] = b"http/1.1";
const CA_REMEDY: &str = "name a file with the certificate of the daemon's authority (PEM) by STOCKADE_CA_FILE, or by \
     `caFile` in the table [remote]";

/// Whose certificates are accepted. Read when it is first needed; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct DaemonTls {
    ca_file: Option<PathBuf>,
    config: Arc<OnceCell<Arc<ClientConfig>>>,
}

impl DaemonTls {
    /// By the certificates in this file alone, or by those that this host trusts.
    pub(super) fn new(ca_file: Option<PathBuf>) -> Self {
        Self { ca_file, config: Arc::default() }
    }

    /// Encrypts a connection, and verifies that this host is at its other end.
    pub(super) async fn encrypt(
        &self,
        operation: &'static str,
        host: &TlsHost,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let building = || async { build_config(self.ca_file.as_deref()) };
        let config = self.config.get_or_try_init(building).await?;
        let connecting = TlsConnector::from(Arc::clone(config)).connect(host.name.clone(), stream);
        match timeout(HANDSHAKE_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(|error| explain_handshake(operation, host, &error)),
            Err(_) => {
                let message = format!("`{host}` did not finish its TLS handshake");
                Err(daemon_error(ErrorCode::TooSlow, operation, message))
            }
        }
    }
}

/// Connects to a host by any of its addresses.
pub(super) async fn connect_host(host: &TlsHost) -> io::Result<TcpStream> {
    let name = host.name.to_str();
    timeout(CONNECT_TIMEOUT, TcpStream::connect((&*name, host.port))).await?
}

/// What is wrong. Names in the certificate are foreign text, so they are cleaned and no source is kept.
fn explain_handshake(operation: &'static str, host: &TlsHost, error: &io::Error) -> Error {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(why)) = fault {
        let why = clean_foreign(&why.to_string());
        let message = format!("the certificate of `{host}` is not accepted: {why}");
        let remedy = format!("use a name that it is for, while it is valid; or {CA_REMEDY}");
        return daemon_error(ErrorCode::Unavailable, operation, message).remedy(remedy);
    }
    let why = clean_foreign(&error.to_string());
    let message = format!("there is no TLS at `{host}`: {why}");
    daemon_error(ErrorCode::Unavailable, operation, message)
        .remedy("start the daemon there with `stockade serve --tls-cert`, or correct the URL")
}

fn build_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => add_file(&mut roots, file)?,
        None => {
            // Old ones that cannot be read are left out, as other clients do.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(no_trust("this host has no certificates of authorities that it trusts"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| no_trust("TLS cannot be set up").source(error))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP1_ALPN.to_vec()];
    Ok(Arc::new(config))
}

fn add_file(roots: &mut RootCertStore, file: &Path) -> Result<()> {
    let unusable = || no_trust(format!("no certificate can be read from `{}`", file.display()));
    let pem = read_ca_file(file).map_err(|error| unusable().source(error))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable().source(error))?;
        roots.add(certificate).map_err(|error| unusable().source(error))?;
    }
    if roots.is_empty() { Err(unusable()) } else { Ok(()) }
}

/// Reads a regular file: opening a pipe of that name could block this process.
fn read_ca_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_CA_FILE_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut pem = Vec::new();
    file.take(MAX_CA_FILE_BYTES).read_to_end(&mut pem)?;
    Ok(pem)
}

fn no_trust(message: impl Into<String>) -> Error {
    daemon_error(ErrorCode::Unavailable, "connect", message).remedy(CA_REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_certificate_is_refused_by_its_name() {
        for file in ["/nowhere/ca.pem", "/dev/null", "/proc/self/status"] {
            let error = build_config(Some(Path::new(file))).unwrap_err();
            assert!(error.message().contains(file), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("STOCKADE_CA_FILE")), "{error}");
        }
    }
}
