//! The client of registries: documents and blobs by HTTP, each bounded in bytes and in time.
//!
//! A registry may send its client elsewhere, for blobs and for tokens. It is followed over TLS only (unless it
//! is plain itself), a bounded number of times, never to an address that is private, of this host or of a
//! cloud's metadata service (unless it is private itself), and never with its authorization.

mod auth;
mod connect;
mod credentials;
mod endpoint;
mod http;
mod session;

pub use credentials::CredentialFiles;
pub(crate) use http::BodyReader;
pub(crate) use session::{BlobStart, FetchedDocument, Session, open_sessions};
