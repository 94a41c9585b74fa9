//! Trusted certificates in the form that Java reads: a key store of type JKS, which every version recognises by its first
//! bytes.
//!
//! It has no digest at its end: Java looks for one only where it is told a password, and a file that the guest may read
//! and replace is not protected by one that everybody knows.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// How a key store of this type begins.
const JKS_MAGIC: u32 = 0xFEED_FEED;
const JKS_VERSION: u32 = 2;
/// The kind of an entry: a certificate that is trusted.
const TRUSTED_CERTIFICATE_TAG: u32 = 2;
/// When an entry was made, in milliseconds since 1970: of no meaning here.
const CREATED_MILLIS: u64 = 0;
/// The type of a certificate.
const CERTIFICATE_TYPE: &str = "X.509";

/// A key store of the certificates in this text.
pub fn build_java_store(pem: &[u8]) -> Vec<u8> {
    let certificates = read_certificates(pem);
    let mut store = Vec::new();
    for number in [JKS_MAGIC, JKS_VERSION, certificates.len() as u32] {
        store.extend(number.to_be_bytes());
    }
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED_CERTIFICATE_TAG.to_be_bytes());
        write_text(&mut store, &format!("trusted-{number}"));
        store.extend(CREATED_MILLIS.to_be_bytes());
        write_text(&mut store, CERTIFICATE_TYPE);
        store.extend((certificate.len() as u32).to_be_bytes());
        store.extend_from_slice(certificate);
    }
    store
}

/// Those that can be read: any other would have Java refuse the whole store.
fn read_certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    found.filter(|certificate| roots.add(certificate.clone()).is_ok()).collect()
}

/// A short text, behind its length.
fn write_text(store: &mut Vec<u8>, text: &str) {
    store.extend((text.len() as u16).to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;

    #[test]
    fn a_store_has_every_certificate_that_can_be_read_and_no_other() {
        let [one, other] = [Authority::new().unwrap(), Authority::new().unwrap()];
        let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let pem = [one.certificate_pem(), unreadable, other.certificate_pem()].concat();
        let store = build_java_store(pem.as_bytes());
        assert_eq!(store[..12], [0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 2]);
        let certificates = read_certificates(pem.as_bytes());
        assert_eq!(certificates.len(), 2);
        assert!(store.ends_with(&certificates[1]));
        // Tag, alias, time, type and length of each.
        let entry_head = 4 + 2 + "trusted-0".len() + 8 + 2 + "X.509".len() + 4;
        let lengths: usize = certificates.iter().map(|der| der.len() + entry_head).sum();
        assert_eq!(store.len(), 12 + lengths);
        assert_eq!(build_java_store(b"no certificate")[8..], [0; 4]);
    }
}
