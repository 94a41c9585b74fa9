//! Network egress of a sandbox: the host's half.
//!
//! Inside the walls there is no interface but loopback. The agent's network helper takes the connections that
//! programs make and asks, through the agent's pipe, for each name and each connection. Here is the one
//! component that decides: it reads the name once ([`stockade_core::canonical_host`]), resolves it with its own
//! resolver, checks every address, connects to exactly what it has checked, looks at what the first bytes say
//! about the host, and records what it did.
//!
//! In the other direction it carries connections to ports inside ([`Relay::connect`]), also for a sandbox that may
//! reach nothing ([`Relay::start_for_ports`]).
//!
//! Secrets are put in here too ([`SecretSet`]): inside there is a placeholder, and towards the hosts of a secret
//! TLS ends in this process and begins anew (C-53). The same is done where rules name methods or paths of a host, so
//! that each request to it can be judged.
//!
//! What the helper says is guest input: decoded strictly, bounded by credit, and the first message that does
//! not fit ends the helper, and with it every connection (C-51, C-52).

mod asking;
mod authority;
mod client_hello;
mod connection;
mod dial;
mod filtered_body;
mod frame_reader;
mod http_relay;
mod intercept;
mod java_store;
mod limits;
mod mask;
mod outbox;
mod patterns;
mod policy;
mod port;
mod raw_relay;
mod record;
mod relay;
mod request_judge;
mod resolver;
mod secret_mask;
mod secrets;
mod special;
mod stream;
mod supply;
mod traffic_filter;
mod trust;
mod upstream_proxy;

pub use asking::HostApprover;
pub use limits::{EgressLimits, TenantBudget, TenantPlace};
pub use policy::{Egress, SharedNetwork};
pub use port::PortStream;
pub use record::{ConnectionLog, ConnectionRecord, ConnectionVerdict, SecretRenewal};
pub use relay::{GUEST_ENVIRONMENT, NAME_SERVER, Relay};
pub use resolver::ResolverSettings;
pub use secrets::{BUNDLE_ENVIRONMENT, GUEST_BUNDLE_PATH, GUEST_JAVA_STORE_PATH, SecretSet};
pub use supply::{IssuedSecret, SecretIssuer, SecretSupply};
pub use trust::{TrustSettings, TrustStore};
pub use upstream_proxy::{ProxyBypass, UpstreamProxySettings, UpstreamProxyUrl};
