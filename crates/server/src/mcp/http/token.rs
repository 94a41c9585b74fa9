//! The secret that clients share with the server. Never printed by accident, compared in constant
//! time.

use std::fmt;
use std::io;

use sha2::{Digest, Sha256};

use crate::secret::random_hex;

/// Shortest token: shorter ones can be tried out.
const MIN_TOKEN_BYTES: usize = 16;

/// The secret.
#[derive(Clone)]
pub struct Token(String);

/// Why a text cannot be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It could be guessed.
    #[error("the token has fewer than {MIN_TOKEN_BYTES} characters")]
    Short,
    /// It could not be sent.
    #[error("the token has characters other than visible ASCII")]
    Unsendable,
}

impl Token {
    /// A random token, which cannot be guessed.
    pub fn random() -> io::Result<Self> {
        random_hex().map(Self)
    }

    /// The secret in plain text, to be handed to clients.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is it.
    pub(super) fn is(&self, given: &str) -> bool {
        // Digests differ everywhere or nowhere: how long comparing takes says nothing.
        Sha256::digest(given) == Sha256::digest(&self.0)
    }
}

impl TryFrom<String> for Token {
    type Error = TokenError;

    fn try_from(given: String) -> Result<Self, TokenError> {
        if given.len() < MIN_TOKEN_BYTES {
            return Err(TokenError::Short);
        }
        if !given.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Unsendable);
        }
        Ok(Self(given))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
