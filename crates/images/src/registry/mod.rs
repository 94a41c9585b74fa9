//! The client of registries: documents and blobs by HTTP, each bounded in bytes and in time.
//!
//! A registry may send its client elsewhere, for blobs and for tokens. It is followed over TLS only (unless it
//! is plain itself), a bounded number of times, never to an address that is private, of this host or of a
//! cloud's metadata service (unless it is private itself), and never with its authorization. The same holds for the place that it names for an upload.

mod auth;
mod body;
mod connect;
mod credentials;
mod endpoint;
mod http;
mod proxy;
mod rate;
mod session;
mod upload;

pub(crate) use body::FileUpload;
pub use credentials::CredentialFiles;
pub(crate) use http::BodyReader;
pub use proxy::RegistryProxies;
pub(crate) use session::{BlobStart, FetchedDocument, Session, open_push_session, open_sessions};
