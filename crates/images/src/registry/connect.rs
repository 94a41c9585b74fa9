//! Connections: which addresses a name may lead to, and TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stockade_core::classify_special;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::endpoint::Endpoint;
use crate::ImageError;

/// Upper bound of the addresses of one name that are tried.
pub(super) const MAX_ADDRESSES: usize = 8;

/// Which addresses a name may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Any: the operator named the host.
    Any,
    /// Those of private networks too, but no metadata service: the registry is private itself.
    Private,
    /// Those of the public network only.
    Public,
}

/// Why an address must not be connected to.
pub(super) fn refuse_address(address: IpAddr, reach: Reach) -> Option<&'static str> {
    let special = classify_special(address)?;
    match reach {
        Reach::Any => None,
        Reach::Private if special.is_metadata() || special.reason == "link-local" => {
            Some(special.reason)
        }
        Reach::Private => None,
        Reach::Public => Some(special.reason),
    }
}

/// A connection to an endpoint, with the address that it leads to.
///
/// A name with one address that must not be reached is refused altogether: which of its addresses is taken would
/// be left to luck.
pub(super) async fn connect(
    endpoint: &Endpoint,
    reach: Reach,
    stall: Duration,
) -> Result<(TcpStream, IpAddr), ImageError> {
    let unreachable = |source| ImageError::Unreachable { host: endpoint.authority(), source };
    let stalled = || ImageError::Stalled { host: endpoint.authority(), after: stall };
    let looked_up = timeout(stall, lookup_host((endpoint.host.as_str(), endpoint.port))).await;
    let addresses: Vec<SocketAddr> =
        looked_up.map_err(|_| stalled())?.map_err(unreachable)?.take(MAX_ADDRESSES).collect();
    for address in &addresses {
        if let Some(reason) = refuse_address(address.ip(), reach) {
            return Err(refused(endpoint, address.ip(), reason));
        }
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match timeout(stall, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return check_own_address(endpoint, reach, stream, address.ip()),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(unreachable(last))
}

/// A connection whose two ends have the same address stays on this host, whatever the address.
fn check_own_address(
    endpoint: &Endpoint,
    reach: Reach,
    stream: TcpStream,
    peer: IpAddr,
) -> Result<(TcpStream, IpAddr), ImageError> {
    let local = stream.local_addr().map(|local| local.ip());
    match reach == Reach::Public && !local.is_ok_and(|local| local != peer) {
        true => Err(refused(endpoint, peer, "this host's own address")),
        false => Ok((stream, peer)),
    }
}

pub(super) fn refused(endpoint: &Endpoint, address: IpAddr, reason: &str) -> ImageError {
    ImageError::Redirect {
        host: "the registry".to_owned(),
        target: endpoint.authority(),
        reason: format!("which is {address}: {reason}"),
    }
}

/// TLS with the host's certificates and those of a file.
pub(super) fn tls_connector(ca_file: Option<&Path>) -> Result<TlsConnector, ImageError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let wrong = |reason: String| {
            ImageError::Settings(format!("the certificates in `{}` {reason}", path.display()))
        };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if certificates.is_empty() {
            return Err(wrong("are none".to_owned()));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| wrong(format!("do not fit: {error}")))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ImageError::Settings(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that a certificate has to be for.
pub(super) fn server_name(endpoint: &Endpoint) -> Result<ServerName<'static>, ImageError> {
    ServerName::try_from(endpoint.host.clone()).map_err(|error| ImageError::Unreachable {
        host: endpoint.authority(),
        source: io::Error::new(io::ErrorKind::InvalidInput, error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_one_is_sent_to_a_metadata_service_and_only_private_registries_send_into_private_networks()
    {
        for (address, public, private) in [
            ("8.8.8.8", true, true),
            ("10.0.0.1", false, true),
            ("127.0.0.1", false, true),
            ("169.254.169.254", false, false),
            ("169.254.1.1", false, false),
            ("fe80::1", false, false),
            ("fd00:ec2::254", false, false),
            ("::ffff:127.0.0.1", false, true),
        ] {
            let allowed = |reach| refuse_address(address.parse().unwrap(), reach).is_none();
            let all = (allowed(Reach::Any), allowed(Reach::Public), allowed(Reach::Private));
            assert_eq!(all, (true, public, private), "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_of_this_host_is_not_connected_to_for_a_redirect() {
        let endpoint = Endpoint { tls: true, host: "localhost".to_owned(), port: 1 };
        let error = connect(&endpoint, Reach::Public, Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(error, ImageError::Redirect { .. }), "{error}");
    }
}
