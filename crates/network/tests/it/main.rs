//! The relay against real servers on loopback, with a test in the place of the network helper: it says what a
//! helper would say, or what a hostile one might.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod asking;
mod helper;
mod hostile;
mod http;
mod limits;
mod name_server;
mod names;
mod observe;
mod other_protocols;
mod peers;
mod policy;
mod ports;
mod relayed;
mod requests;
mod secret_renewal;
mod secrets;
mod smuggling;
mod spellings;
mod tls_server;
mod upstream_proxy;
