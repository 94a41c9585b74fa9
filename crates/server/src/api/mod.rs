//! The HTTP API under `/v1`: sandboxes, executions, files, snapshots and jobs, as `openapi.json` describes
//! them. Every handler is a thin translation to the engine. What a caller may see and name is checked here:
//! the socket's own user everything, the holder of a token what belongs to its tenant (C-05).
//!
//! Everything a client can feed has a bound: heads, bodies, connections, requests and executions at once,
//! executions and idempotency keys that are remembered, pages of lists.

mod activation;
mod answer;
mod attached;
mod attached_executions;
mod backends;
mod body;
mod caller;
mod connection;
mod directories;
mod events;
mod executions;
mod failure;
mod file_parts;
mod files;
mod held;
mod idempotency;
mod job_output;
mod jobs;
mod lifetime;
mod metrics;
mod named;
mod openapi;
mod page;
mod query;
mod routes;
mod sandboxes;
mod server;
mod snapshots;
mod socket;
mod spec;
mod state;
mod tar_reader;
mod tenant_slots;
mod terminal;
mod tls;
mod tokens;
mod upgraded;
mod usage;

pub use server::{ApiDoors, ApiServer};
pub use socket::ApiSocket;
pub use state::{Api, ApiOptions};
pub use tls::ApiTls;
pub use tokens::{TokenRecord, TokenRight, TokenStore};
