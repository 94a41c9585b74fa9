//! Whom this host trusts: the certificates by which the far ends of opened connections are verified. Programs
//! inside trust the same ones, and the sandbox's own authority.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use stockade_core::{Error, ErrorCode, Result};

use crate::authority::HTTP1_ALPN;

/// Where systems keep it.
const BUNDLE_PATHS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-bundle.crt",
];
/// The largest file of certificates that is read.
const MAX_BUNDLE_BYTES: u64 = 8 << 20;

/// Whose certificates are accepted. The operator's setting; nothing inside a sandbox changes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustSettings {
    /// A file with certificates of authorities that are trusted beside those of the host.
    pub ca_file: Option<PathBuf>,
}

/// Certificates of authorities that are trusted.
pub struct TrustStore {
    pem: Vec<u8>,
    config: Arc<ClientConfig>,
}

impl TrustStore {
    /// Those that this host trusts, and those of the settings.
    pub fn of_host(settings: &TrustSettings) -> Result<Self> {
        let usual = BUNDLE_PATHS.map(PathBuf::from).into_iter().find(|path| path.is_file());
        let mut pem = Vec::new();
        for path in usual.iter().chain(&settings.ca_file) {
            let bundle = read_bundle(path).map_err(|error| {
                no_trust(format!("`{}` cannot be read", path.display())).source(error)
            })?;
            if !CertificateDer::pem_slice_iter(&bundle).any(|certificate| certificate.is_ok()) {
                return Err(no_trust(format!("`{}` holds no certificate", path.display())));
            }
            pem.extend_from_slice(&bundle);
            pem.push(b'\n');
        }
        Self::from_pem(pem)
    }

    /// Those in this text.
    pub fn from_pem(pem: Vec<u8>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_slice_iter(&pem).filter_map(std::result::Result::ok);
        // Old ones that cannot be read are left out, as other clients do.
        let (added, _) = roots.add_parsable_certificates(found);
        if added == 0 {
            return Err(no_trust("no trusted certificate can be read"));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| no_trust("TLS cannot be set up").source(error))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![HTTP1_ALPN.to_vec()];
        Ok(Self { pem, config: Arc::new(config) })
    }

    /// The certificates as text.
    pub(crate) fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// How the far end of a connection is verified.
    pub(crate) fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

/// A regular file: opening a pipe of that name could block this process.
fn read_bundle(path: &Path) -> std::io::Result<Vec<u8>> {
    let about = std::fs::metadata(path)?;
    if !about.is_file() || about.len() > MAX_BUNDLE_BYTES {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_BUNDLE_BYTES).read_to_end(&mut pem)?;
    Ok(pem)
}

fn no_trust(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Unavailable, "bind secrets", message).remedy(
        "install the host's trusted certificates (package `ca-certificates`), or name a file of them in the \
         configuration: `[network] caFile = \"PATH\"`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_certificate_is_refused_by_its_name() {
        for path in ["/nowhere/ca.pem", "/dev/null", "/proc/self/status"] {
            let settings = TrustSettings { ca_file: Some(path.into()) };
            let error = TrustStore::of_host(&settings).err().unwrap();
            assert!(error.message().contains(path), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("caFile")), "{error}");
        }
    }
}
