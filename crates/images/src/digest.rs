//! Digests of contents: `sha256:` and 64 hexadecimal digits, the only kind that is taken.

use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stockade_core::clean_foreign;

/// The SHA-256 digest of a manifest, a config, a layer or an archive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no digest (`sha256:` and 64 hexadecimal digits in lower case)", clean_foreign(.0))]
pub struct DigestError(String);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest that a hasher has come to.
    pub(crate) fn from_hasher(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    /// Its 64 digits.
    pub fn hex(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in self.0 {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// The digest of 64 digits.
    pub fn from_hex(hex: &str) -> Result<Self, DigestError> {
        let wrong = || DigestError(hex.to_owned());
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            0..=b'/' | b':'..=b'`' | b'g'..=u8::MAX => Err(wrong()),
        };
        let bytes = hex.as_bytes();
        if bytes.len() != 64 {
            return Err(wrong());
        }
        let mut digest = [0; 32];
        for (into, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
            *into = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(digest))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let hex = text.strip_prefix("sha256:").ok_or_else(|| DigestError(text.to_owned()))?;
        Self::from_hex(hex)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_written_as_it_was_read() {
        let text = format!("sha256:{}", "0123456789abcdef".repeat(4));
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
    }

    #[test]
    fn other_kinds_lengths_and_letters_are_refused() {
        let (upper, short) = ("A".repeat(64), "a".repeat(63));
        for bad in
            ["", "sha256:", "sha512:00", &format!("sha256:{upper}"), &format!("sha256:{short}")]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
