//! One connection: who is at its other end, and whether what it says is let in. Checked before anything of a
//! body is read, and before it is known which route is meant.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::{Error as AxumError, Router};
use bytes::Bytes;
use http::header::{HOST, ORIGIN};
use http::{HeaderName, Method, Request};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use stockade_core::{ErrorCode, TenantName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::state::Api;
use super::tls::{ApiTls, EncryptedStream};
use super::tokens::TokenStore;
use super::upgraded::{ConnectionUpgrades, Revocation, UpgradeHold, watch_revocation};
use crate::http::{
    FramedReader, FramingVerdict, ReaderPatience, StallTimeout, Visit, build_http1, carries_token,
    find_request_token, is_plain, names_loopback, names_loopback_origin, strip_port,
};

/// What a supervisor of the daemon asks without a token.
const OPEN_PATHS: [&str; 2] = ["/v1/health", "/v1/ready"];

/// Mark of an answer that waits for its reader as long as that takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitsForReader;

/// Where a connection came in.
#[derive(Clone)]
pub(crate) enum ApiDoor {
    /// The socket: its peer is the daemon's own user.
    Socket(Arc<SocketDoor>),
    /// TCP: its peer may be anybody.
    Tcp(Arc<TcpDoor>),
}

/// A connection that came in by the socket.
pub(crate) struct SocketDoor {
    pub visit: Visit,
    /// Connections at once that have sent a request; more wait.
    pub slots: Arc<Semaphore>,
    /// Held from the first request on.
    pub slot: OnceCell<OwnedSemaphorePermit>,
    /// Held until the connection is closed.
    pub _open: OwnedSemaphorePermit,
}

impl SocketDoor {
    /// Waits for room among the connections that have sent a request.
    async fn take_slot(&self) -> Result<(), ApiFailure> {
        let taking = async || Arc::clone(&self.slots).acquire_owned().await;
        let taken = self.slot.get_or_try_init(taking).await;
        taken.map_err(|_| ApiFailure::new(ErrorCode::Unavailable, "the daemon is being ended"))?;
        self.visit.leave();
        Ok(())
    }
}

/// A connection that came in by TCP.
pub(crate) struct TcpDoor {
    pub visit: Visit,
    /// Of all connections and of the tenant's; held from the first request with a token on.
    pub slots: OnceCell<[OwnedSemaphorePermit; 2]>,
    /// Held until the connection is closed.
    pub _open: OwnedSemaphorePermit,
}

/// What is known of a connection by every request on it.
#[derive(Clone)]
struct ConnectionPeer {
    door: ApiDoor,
    framing: FramingVerdict,
    upgrades: ConnectionUpgrades,
}

fn ends_something(request: &Request<Incoming>) -> bool {
    request.method() == Method::DELETE || request.uri().path().ends_with("/cancel")
}

/// What every connection is served with.
#[derive(Clone)]
pub(crate) struct ApiService {
    pub api: Api,
    pub router: Router,
    pub tokens: Arc<TokenStore>,
    /// How TCP is encrypted; absent: not at all.
    pub tls: Option<ApiTls>,
    /// Names of this server beside those of its certificate or, without one, the loopback ones.
    pub hosts: Arc<[String]>,
    /// Connections at once by TCP that have shown a token.
    pub slots: Arc<Semaphore>,
    /// The daemon ends: what is being answered is finished.
    pub closing: CancellationToken,
    /// Nothing is answered any more.
    pub ended: CancellationToken,
}

impl ApiService {
    /// Serves a connection to its end.
    pub(crate) async fn serve<S>(self, stream: S, door: ApiDoor)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let patience = ReaderPatience::default();
        let (reader, writer) = tokio::io::split(stream);
        let writer = StallTimeout::new(writer, patience.clone());
        self.serve_halves(reader, writer, patience, door).await;
    }

    /// The same over TLS, below which stalls are watched already.
    pub(crate) async fn serve_encrypted(
        self,
        stream: EncryptedStream,
        patience: ReaderPatience,
        door: ApiDoor,
    ) {
        let (reader, writer) = tokio::io::split(stream);
        self.serve_halves(reader, writer, patience, door).await;
    }

    async fn serve_halves<R, W>(self, reader: R, writer: W, patience: ReaderPatience, door: ApiDoor)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let framing = FramingVerdict::default();
        let reader = FramedReader::new(reader, framing.clone());
        let stream = tokio::io::join(reader, writer);
        let upgrades = ConnectionUpgrades::default();
        let _cut_off = upgrades.cut_off_when_dropped();
        // The room of the connection is held until what it was upgraded to has ended.
        let (_door, ended) = (door.clone(), self.ended.clone());
        let peer = ConnectionPeer { door, framing, upgrades: upgrades.clone() };
        self.serve_requests(stream, patience, peer).await;
        tokio::select! {
            () = upgrades.wait() => {}
            () = ended.cancelled() => {}
        }
    }

    /// Answers requests until the connection ends or is upgraded.
    async fn serve_requests<S>(self, stream: S, patience: ReaderPatience, peer: ConnectionPeer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (closing, ended) = (self.closing.clone(), self.ended.clone());
        let turned_out = match &peer.door {
            ApiDoor::Socket(door) => door.visit.turned_out(),
            ApiDoor::Tcp(door) => door.visit.turned_out(),
        };
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, peer, patience) = (self.clone(), peer.clone(), patience.clone());
            async move {
                let response = service.answer(request, &peer).await;
                patience.set(response.extensions().get::<WaitsForReader>().is_some());
                Ok::<_, Infallible>(response)
            }
        });
        let served = build_http1().serve_connection(TokioIo::new(stream), answer);
        let mut served = pin!(served.with_upgrades());
        tokio::select! {
            // A client that breaks off is no business of ours.
            _ = served.as_mut() => return,
            () = turned_out.cancelled() => return,
            () = closing.cancelled() => served.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = served => {}
            () = ended.cancelled() => {}
        }
    }

    async fn answer(self, request: Request<Incoming>, peer: &ConnectionPeer) -> Response {
        let api = self.api.clone();
        let answered = match peer.framing.is_ambiguous() {
            true => Err(ambiguous_length()),
            false => self.let_in(request, peer).await,
        };
        let response = answered.unwrap_or_else(IntoResponse::into_response);
        api.counters.count(response.status());
        response
    }

    async fn let_in(
        mut self,
        mut request: Request<Incoming>,
        peer: &ConnectionPeer,
    ) -> Result<Response, ApiFailure> {
        let caller = self.find_caller(&request, &peer.door)?;
        if let ApiDoor::Socket(door) = &peer.door {
            door.take_slot().await?;
        }
        if let (ApiDoor::Tcp(door), ApiCaller::Holder(token)) = (&peer.door, &caller) {
            let taking = async || reserve_connection(&self.api, &self.slots, &token.tenant);
            door.slots.get_or_try_init(taking).await?;
            door.visit.leave();
        }
        // What ends something frees room, and needs none.
        let held = match ends_something(&request) {
            true => None,
            false => self.api.reserve_request(&caller)?.map(Arc::new),
        };
        let mut revoked = watch_revocation(&self.tokens, &caller);
        let hold = UpgradeHold::new(&peer.upgrades, held.clone(), &self.tokens, &caller);
        request.extensions_mut().insert(hold);
        request.extensions_mut().insert(caller);
        let answered = tokio::select! {
            answered = self.router.call(request) => answered,
            () = &mut revoked => return Err(ApiFailure::unauthorized()),
        };
        let Ok(response) = answered;
        Ok(response.map(|body| Body::new(HeldBody { body, revoked, _held: held })))
    }

    fn find_caller<B>(
        &self,
        request: &Request<B>,
        door: &ApiDoor,
    ) -> Result<ApiCaller, ApiFailure> {
        if !is_plain(request) {
            let message = "the request does not say in one way only whom it is for";
            return Err(ApiFailure::new(ErrorCode::Invalid, message)
                .remedy("send one `Host` header, and only the path in the request line")
                .last());
        }
        let given = carries_token(request);
        match door {
            ApiDoor::Socket(_) => {
                // A token counts here too: a proxy of this user passes on what others may do.
                if given {
                    self.check_origin(request)?;
                    return self.authenticate(request);
                }
                // A forwarder of this user passes on what pages in a browser ask for.
                self.refuse_pages(request)?;
                Ok(ApiCaller::OwnUser)
            }
            ApiDoor::Tcp(_) => {
                self.check_host(request)?;
                self.check_origin(request)?;
                let is_open = OPEN_PATHS.contains(&request.uri().path());
                let asked = request.method() == Method::GET && is_open;
                if asked && !given { Ok(ApiCaller::Unknown) } else { self.authenticate(request) }
            }
        }
    }

    fn authenticate<B>(&self, request: &Request<B>) -> Result<ApiCaller, ApiFailure> {
        let token = find_request_token(request).ok_or_else(ApiFailure::unauthorized)?;
        match self.tokens.authenticate(&token)? {
            Some(token) => Ok(ApiCaller::Holder(token)),
            None => Err(ApiFailure::unauthorized()),
        }
    }

    /// Fails where a page of another site can have sent the request by a name that was made to resolve to this machine.
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), ApiFailure> {
        if !header_text(request, HOST).is_some_and(|host| self.is_own_host(host)) {
            let message = "the `Host` of the request is not a name of this server";
            let usual = match &self.tls {
                Some(_) => "a name of its certificate",
                None => "127.0.0.1 or localhost",
            };
            let remedy = format!("use {usual}, or start the daemon with --allow-host NAME");
            return Err(ApiFailure::new(ErrorCode::Denied, message).remedy(remedy).last());
        }
        Ok(())
    }

    /// Fails where a page of another site says that it has sent the request. Programs send no origin.
    fn check_origin<B>(&self, request: &Request<B>) -> Result<(), ApiFailure> {
        if !header_text(request, ORIGIN).is_none_or(|origin| self.is_own_origin(origin)) {
            let message = "the request comes from a page of another site";
            return Err(ApiFailure::new(ErrorCode::Denied, message).last());
        }
        Ok(())
    }

    /// Refuses requests that a page in a browser may have sent: without a token they are taken for those of the user's
    /// own program. A page at a loopback origin may be a guest's server, and a page after DNS rebinding sends its own
    /// name as `Host` and no `Origin`. Names without a dot pass: no site has one.
    fn refuse_pages<B>(&self, request: &Request<B>) -> Result<(), ApiFailure> {
        let is_private = |host: &str| {
            let name = strip_port(host).unwrap_or(".");
            !name.contains(['.', ':']) || names_loopback(host, &self.hosts)
        };
        let by_name = header_text(request, HOST).is_none_or(is_private);
        if !by_name || request.headers().contains_key(ORIGIN) {
            let message = "the request comes from a page in a browser, and carries no token";
            let remedy =
                "make a token for it with `stockade token new`; programs use `localhost` as `Host`";
            return Err(ApiFailure::new(ErrorCode::Denied, message).remedy(remedy).last());
        }
        Ok(())
    }

    fn is_own_host(&self, host: &str) -> bool {
        let Some(tls) = &self.tls else { return names_loopback(host, &self.hosts) };
        let is_listed = |name: &str| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
        strip_port(host).is_some_and(|name| is_listed(name) || tls.is_for(name))
    }

    fn is_own_origin(&self, origin: &str) -> bool {
        match &self.tls {
            Some(_) => origin.strip_prefix("https://").is_some_and(|host| self.is_own_host(host)),
            None => names_loopback_origin(origin, &self.hosts),
        }
    }
}

/// The value of a header, empty where it is no text.
fn header_text<B>(request: &Request<B>, name: HeaderName) -> Option<&str> {
    request.headers().get(name).map(|value| value.to_str().unwrap_or(""))
}

/// Room for one more connection by TCP, among all and among those of its tenant.
fn reserve_connection(
    api: &Api,
    slots: &Arc<Semaphore>,
    tenant: &TenantName,
) -> Result<[OwnedSemaphorePermit; 2], ApiFailure> {
    let of_tenant = api.reserve_connection(tenant)?;
    let of_all = Arc::clone(slots).try_acquire_owned();
    Ok([of_all.map_err(|_| too_many_connections())?, of_tenant])
}

fn ambiguous_length() -> ApiFailure {
    let message = "the request does not say in one way only how long it is and whom it is for";
    ApiFailure::new(ErrorCode::Invalid, message)
        .remedy("send one `Host`, and one `Content-Length` or one `Transfer-Encoding: chunked`")
        .last()
}

fn too_many_connections() -> ApiFailure {
    let message = "holders of tokens have as many connections open as they may";
    ApiFailure::new(ErrorCode::Unavailable, message).remedy("close one, or wait").last()
}

/// A body that holds the room of its request until it is sent, and is cut off when the token is revoked.
struct HeldBody {
    body: Body,
    revoked: Revocation,
    _held: Option<Arc<OwnedSemaphorePermit>>,
}

impl hyper::body::Body for HeldBody {
    type Data = Bytes;
    type Error = AxumError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AxumError>>> {
        if self.revoked.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(AxumError::new("the token was revoked"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
