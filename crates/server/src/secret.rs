//! Random secrets and their hashes. A hash is compared in constant time.

use std::fmt::Write as _;
use std::io;

use sha2::{Digest, Sha256};

const SECRET_BYTES: usize = 32;

/// 256 random bits in hexadecimal, which cannot be guessed.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(to_hex(&bytes))
}

/// The SHA-256 of a text or body, in hexadecimal.
pub(crate) fn hash_hex(data: &[u8]) -> String {
    to_hex(&Sha256::digest(data))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether two hashes are the same. How long that takes does not depend on where they differ.
pub(crate) fn is_same_hash(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let differing =
        one.iter().zip(other).fold(0, |bits, (a, b)| std::hint::black_box(bits | (a ^ b)));
    one.len() == other.len() && differing == 0
}
