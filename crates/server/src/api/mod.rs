//! The HTTP API.

mod tokens;

pub use tokens::{TokenRecord, TokenRight, TokenStore};
