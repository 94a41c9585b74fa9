//! The certificate authority of one sandbox. Its key is made with the sandbox, is in memory alone, and signs for
//! the hosts of its secrets and those whose requests are judged, and for no others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::policy::EgressTarget;

/// How long before now a certificate begins to be valid: clocks inside may be slow.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the authority's certificate is valid: longer than any sandbox lives.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// How long a host's certificate is valid.
const LEAF_VALIDITY: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// After how long another one is made.
const LEAF_RENEWAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The only protocol that is spoken over a connection that was opened.
pub const HTTP1_ALPN: &[u8] = b"http/1.1";

/// No certificate can be made.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Making or signing it failed.
    #[error("a certificate cannot be made")]
    Certificate(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("a certificate cannot be used")]
    Tls(#[from] rustls::Error),
}

/// The most hosts whose certificates are kept: a rule with a wildcard leaves it to the guest how many there are.
const MAX_LEAVES: usize = 256;

/// Signs certificates for the hosts whose connections are opened.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    /// By host.
    leaves: Mutex<HashMap<String, Leaf>>,
}

struct Leaf {
    config: Arc<ServerConfig>,
    made: Instant,
}

impl Authority {
    /// A new one, with a key of its own.
    pub fn new() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let name = "Stockade sandbox authority";
        let mut params = build_params(Vec::new(), name, AUTHORITY_VALIDITY)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate_pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, certificate_pem, leaves: Mutex::default() })
    }

    /// Its certificate, for those who are to trust it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// How a connection to this host is answered.
    pub fn server_config(
        &self,
        target: &EgressTarget,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let host = target.to_string();
        // Nothing panics half-way through a change.
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = leaves.get(&host).filter(|leaf| leaf.made.elapsed() < LEAF_RENEWAL) {
            return Ok(Arc::clone(&leaf.config));
        }
        let config = Arc::new(self.make_leaf(&host)?);
        make_room(&mut leaves);
        leaves.insert(host, Leaf { config: Arc::clone(&config), made: Instant::now() });
        Ok(config)
    }

    fn make_leaf(&self, host: &str) -> Result<ServerConfig, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = build_params(vec![host.to_owned()], "Stockade sandbox", LEAF_VALIDITY)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Strict clients want to be told by which key it was signed.
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![HTTP1_ALPN.to_vec()];
        Ok(config)
    }
}

/// Forgets the oldest, where there are too many.
fn make_room(leaves: &mut HashMap<String, Leaf>) {
    let oldest = leaves.iter().min_by_key(|(_, leaf)| leaf.made).map(|(host, _)| host.clone());
    if let Some(oldest) = oldest.filter(|_| leaves.len() >= MAX_LEAVES) {
        leaves.remove(&oldest);
    }
}

fn build_params(
    hosts: Vec<String>,
    common_name: &str,
    validity: Duration,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::new(hosts)?;
    let now = SystemTime::now();
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    params.not_after = OffsetDateTime::from(now + validity);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_certificate_and_others_get_their_own() {
        let authority = Authority::new().unwrap();
        let config =
            |host: &str| authority.server_config(&EgressTarget::parse(host).unwrap()).unwrap();
        let first = config("a.org");
        assert!(Arc::ptr_eq(&first, &config("A.org")));
        assert!(!Arc::ptr_eq(&first, &config("b.org")));
        assert_eq!(config("127.0.0.1").alpn_protocols, [HTTP1_ALPN.to_vec()]);
        for number in 0..MAX_LEAVES + 5 {
            config(&format!("h{number}.org"));
        }
        assert_eq!(authority.leaves.lock().unwrap().len(), MAX_LEAVES);
        assert!(!Arc::ptr_eq(&first, &config("a.org")), "the oldest was forgotten");
        assert!(authority.certificate_pem().starts_with("-----BEGIN CERTIFICATE-----"));
    }
}
