//! The server: listens, and when it is stopped lets what is being answered finish and leaves no sandbox behind.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use stockade_core::Result;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{ApiDoor, ApiService, SocketDoor, TcpDoor};
use super::routes::build_router;
use super::state::Api;
use super::tls::ApiTls;
use super::tokens::TokenStore;
use crate::http::{
    ACCEPT_RETRY_INTERVAL, Lobby, MAX_UNPROVEN, ReaderPatience, accept_tcp, bound_by_descriptors,
};
use crate::peer::{Stranger, check_peer};

/// Connections at once on the socket that have sent a request; more wait.
const MAX_SOCKET_CONNECTIONS: usize = 256;
/// Stands for the socket's peers, which are one user, in the lobby. No address of a peer.
const SOCKET_PEER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// Connections at once by TCP that have shown a token; more are refused.
const MAX_TCP_CONNECTIONS: usize = 256;
/// Grace period of connections after every sandbox has ended.
const CONNECTIONS_GRACE_PERIOD: Duration = Duration::from_secs(2);
/// How often sandboxes are looked for that have ended.
const RELEASE_INTERVAL: Duration = Duration::from_millis(500);
/// What a process in a container is told, which is a stranger under any user id.
const STRANGER_REPLY: &[u8] = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\
    Connection: close\r\n\r\n{\"error\":{\"code\":\"denied\",\"message\":\"the request comes from a user \
    or process namespace of its own\",\"remedy\":\"send it from outside of any container\"}}\n";

/// Where clients come in.
#[derive(Debug)]
pub struct ApiDoors {
    /// The socket of the daemon's own user.
    pub socket: UnixListener,
    /// TCP, for holders of tokens.
    pub tcp: Option<TcpListener>,
    /// How TCP is encrypted; absent: not at all.
    pub tls: Option<ApiTls>,
    /// Names of this server beside those of its certificate or, without one, the loopback ones.
    pub hosts: Vec<String>,
}

/// A server that is running.
pub struct ApiServer {
    service: ApiService,
    connections: TaskTracker,
    accepting: Vec<tokio::task::AbortHandle>,
}

impl ApiServer {
    /// Starts to serve.
    pub fn start(api: Api, doors: ApiDoors, tokens: Arc<TokenStore>) -> Self {
        let service = ApiService {
            router: build_router(api.clone()),
            api,
            tokens,
            tls: doors.tls,
            hosts: doors.hosts.into(),
            slots: Arc::new(Semaphore::new(bound_by_descriptors(MAX_TCP_CONNECTIONS))),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let connections = TaskTracker::new();
        let socket = accept_on_socket(doors.socket, service.clone(), connections.clone());
        let releasing = release_ended_sandboxes(service.api.clone(), service.closing.clone());
        connections.spawn(releasing);
        let mut accepting = vec![tokio::spawn(socket).abort_handle()];
        if let Some(tcp) = doors.tcp {
            let tcp = accept_on_tcp(tcp, service.clone(), connections.clone());
            accepting.push(tokio::spawn(tcp).abort_handle());
        }
        Self { service, connections, accepting }
    }

    /// Takes no more connections, ends every sandbox and execution, and tells who reads their events.
    pub async fn stop(self) -> Result<()> {
        self.accepting.iter().for_each(tokio::task::AbortHandle::abort);
        self.service.closing.cancel();
        let closed = self.service.api.close().await;
        self.connections.close();
        let _ = tokio::time::timeout(CONNECTIONS_GRACE_PERIOD, self.connections.wait()).await;
        self.service.ended.cancel();
        self.connections.wait().await;
        // What a request was still making when it was cut off.
        closed.and(self.service.api.close().await)
    }
}

/// Looks after sandboxes that end otherwise than by a request, until the daemon ends.
async fn release_ended_sandboxes(api: Api, closing: CancellationToken) {
    let mut ticks = tokio::time::interval(RELEASE_INTERVAL);
    while closing.run_until_cancelled(ticks.tick()).await.is_some() {
        api.release_ended().await;
    }
}

/// Connections that are open, those that were turned out and are being closed included. There is room for one more than
/// lobby and slots have, so that there is always one that can come in and turn out another.
fn count_open(lobby: usize, slots: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(lobby + slots + 1))
}

async fn accept_on_socket(listener: UnixListener, service: ApiService, connections: TaskTracker) {
    let max = [MAX_UNPROVEN, MAX_SOCKET_CONNECTIONS].map(bound_by_descriptors);
    let (lobby, slots) = (Arc::new(Lobby::new(max[0])), Arc::new(Semaphore::new(max[1])));
    let open = count_open(max[0], max[1]);
    // Without a slot: a slot is for who has sent a request.
    while let Ok(permit) = Arc::clone(&open).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let visit = Arc::clone(&lobby).enter(SOCKET_PEER);
                let (slots, slot) = (Arc::clone(&slots), OnceCell::new());
                let door = SocketDoor { visit, slots, slot, _open: permit };
                connections.spawn(serve_socket_connection(stream, service.clone(), door));
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
        }
    }
}

async fn serve_socket_connection(stream: UnixStream, service: ApiService, door: SocketDoor) {
    match check_peer(&stream) {
        Ok(()) => service.serve(stream, ApiDoor::Socket(Arc::new(door))).await,
        Err(Stranger::User) => {}
        Err(Stranger::Namespace) => {
            let _ = stream.try_write(STRANGER_REPLY);
        }
    }
}

async fn accept_on_tcp(listener: TcpListener, service: ApiService, connections: TaskTracker) {
    let max = [MAX_UNPROVEN, MAX_TCP_CONNECTIONS].map(bound_by_descriptors);
    let (lobby, open) = (Arc::new(Lobby::new(max[0])), count_open(max[0], max[1]));
    // Without a slot: a slot is for who has shown a token.
    while let Ok(permit) = Arc::clone(&open).acquire_owned().await {
        let Some((stream, peer)) = accept_tcp(&listener).await else { continue };
        let visit = Arc::clone(&lobby).enter(peer);
        let door = TcpDoor { visit, slots: OnceCell::new(), _open: permit };
        connections.spawn(serve_tcp_connection(stream, service.clone(), Arc::new(door)));
    }
}

async fn serve_tcp_connection(stream: TcpStream, mut service: ApiService, door: Arc<TcpDoor>) {
    // Its requests are judged by the certificate that it was made with.
    service.tls = service.tls.as_ref().map(ApiTls::pin);
    let Some(tls) = service.tls.clone() else {
        return service.serve(stream, ApiDoor::Tcp(door)).await;
    };
    let (turned_out, closing) = (door.visit.turned_out(), service.closing.clone());
    let patience = ReaderPatience::default();
    let encrypted = tokio::select! {
        encrypted = tls.accept(stream, patience.clone()) => encrypted,
        () = turned_out.cancelled() => None,
        () = closing.cancelled() => None,
    };
    if let Some(stream) = encrypted {
        service.serve_encrypted(stream, patience, ApiDoor::Tcp(door)).await;
    }
}
