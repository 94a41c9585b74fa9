//! The protocol on HTTP. Every client must know the token; where a request comes from is checked
//! as well, since a browser can be made to send one. Connections, sessions and bodies are bounded; those
//! that have not shown the token share no bound with those that have.

mod guard;
mod token;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::guard::TokenGuard;
pub use self::token::{Token, TokenError};
use super::desk::Desk;
use super::handler::Handler;
use crate::http::{Lobby, ReaderPatience, StallTimeout, Visit, accept_tcp, build_http1};

/// Path of the endpoint, the only one there is.
pub const MCP_PATH: &str = "/mcp";
/// The pages of this machine, on any port.
const LOOPBACK_ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];
/// How clients are served.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// What every request must carry.
    pub token: Token,
    /// The names of this server, beside the loopback ones. Others are refused in `Host`.
    pub hosts: Vec<String>,
    /// Pages that may send requests, beside those of this machine. None, usually: only browsers say
    /// where they come from.
    pub origins: Vec<String>,
    /// A session without a request for this long ends, with its sandboxes.
    pub idle: Duration,
    /// The longest request.
    pub body: usize,
    /// Connections at once that have shown the token; more wait.
    pub connections: usize,
}

impl HttpOptions {
    /// The usual bounds.
    pub const fn new(token: Token) -> Self {
        Self {
            token,
            hosts: Vec::new(),
            origins: Vec::new(),
            idle: Duration::from_secs(30 * 60),
            body: 4 << 20,
            connections: 128,
        }
    }
}

type Service = StreamableHttpService<Handler, LocalSessionManager>;

/// Serves clients until `end`. The desk stays open.
pub async fn serve(
    listener: TcpListener,
    desk: Arc<Desk>,
    options: HttpOptions,
    end: CancellationToken,
) {
    let service = build_service(&desk, &options, end.child_token());
    let door = GuardedService {
        guard: Arc::new(TokenGuard::new(options.token.clone())),
        slots: Arc::new(Semaphore::new(options.connections)),
        service,
    };
    let lobby = Arc::new(Lobby::default());
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            // Without a slot: a slot is for who has shown the token.
            let Some((stream, peer)) = accept_tcp(&listener).await else { continue };
            let visit = Arc::clone(&lobby).enter(peer);
            connections.spawn(serve_connection(stream, visit, door.clone(), end.clone()));
        }
    };
    tokio::select! {
        () = accepting => {}
        () = desk.tidy(options.idle) => {}
        () = end.cancelled() => {}
    }
    connections.close();
    connections.wait().await;
}

fn build_service(desk: &Arc<Desk>, options: &HttpOptions, end: CancellationToken) -> Service {
    let loopback = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let hosts = loopback.into_iter().chain(options.hosts.iter().cloned());
    // A page of this machine may ask; without the token it gets as far as any other.
    let origins = LOOPBACK_ORIGINS.map(str::to_owned).into_iter();
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(hosts)
        .with_allowed_origins(origins.chain(options.origins.iter().cloned()))
        .enforce_origin_validation()
        .with_max_request_body_bytes(options.body)
        .with_cancellation_token(end);
    let mut sessions = SessionConfig::default();
    sessions.keep_alive = Some(options.idle);
    let mut manager = LocalSessionManager::default();
    manager.session_config = sessions;
    let desk = Arc::clone(desk);
    let open = move || Ok(Handler::new(Arc::clone(&desk)));
    StreamableHttpService::new(open, Arc::new(manager), config)
}

/// What every connection is let in by.
#[derive(Clone)]
struct GuardedService {
    guard: Arc<TokenGuard>,
    slots: Arc<Semaphore>,
    service: Service,
}

async fn serve_connection(
    stream: TcpStream,
    visit: Visit,
    door: GuardedService,
    end: CancellationToken,
) {
    let turned_out = visit.turned_out();
    let visit = Arc::new(visit);
    // Held for as long as the connection lasts, from its first request with the token on.
    let slot = Arc::new(OnceCell::new());
    let answer = service_fn(move |request: http::Request<Incoming>| {
        let (door, visit, slot) = (door.clone(), Arc::clone(&visit), Arc::clone(&slot));
        async move {
            if let Err(refusal) = door.guard.check(&request) {
                return Ok::<_, Infallible>(refusal.into());
            }
            visit.leave();
            slot.get_or_init(|| Arc::clone(&door.slots).acquire_owned()).await;
            Ok(door.service.handle(request).await)
        }
    });
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(reader, StallTimeout::new(writer, ReaderPatience::default()));
    let served = build_http1().serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        // A client that breaks off is no business of ours.
        _ = served => {}
        () = turned_out.cancelled() => {}
        () = end.cancelled() => {}
    }
}

/// Where clients find a server that listens here.
pub fn url(address: SocketAddr) -> String {
    format!("http://{address}{MCP_PATH}")
}
