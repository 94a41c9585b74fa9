//! What the HTTP servers of this crate share: how connections are accepted and bounded, and which requests
//! can be read in one way only.

mod framing;
mod lobby;
mod request;
mod stall;

use std::net::IpAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};

pub(crate) use framing::{FramedReader, FramingVerdict};
pub(crate) use lobby::{Lobby, MAX_UNPROVEN, Visit};
pub(crate) use request::{
    carries_token, find_bearer_token, find_request_token, is_plain, names_loopback,
    names_loopback_origin, strip_port,
};
pub(crate) use stall::{ReaderPatience, StallTimeout};

/// Timeout for the head of a request, also of the next one on a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory for the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Retry interval after a connection could not be accepted: most likely there are too many open files.
pub(crate) const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Of the files that this process may open, the share of each kind of connections: one in this many. The rest is for
/// sandboxes, tokens and the journal, whatever clients do.
const DESCRIPTORS_PER_CONNECTION: u64 = 8;

/// A bound on connections, lower where this process may open few files.
pub(crate) fn bound_by_descriptors(max: usize) -> usize {
    let share = getrlimit(Resource::Nofile).current.map(|most| most / DESCRIPTORS_PER_CONNECTION);
    let share = share.and_then(|share| usize::try_from(share).ok());
    share.map_or(max, |share| max.min(share.max(1)))
}

/// HTTP/1.1 with bounds on the head of a request.
pub(crate) fn build_http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    builder
}

/// The next connection; none where it could not be accepted.
pub(crate) async fn accept_tcp(listener: &TcpListener) -> Option<(TcpStream, IpAddr)> {
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer.ip())),
        Err(_) => {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            None
        }
    }
}
