//! HTTP, request by request, as it is or within TLS that ends here. Each request is parsed and written anew, so
//! that what was checked is what the server gets: no second host on a connection that is kept open, and nothing
//! that two parsers could read in two ways.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use stockade_agent::protocol::network::Via;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::sync::Notify;

use crate::connection::RelayError;
use crate::filtered_body::{RefusalHook, RefusalSlot, RelayBody, RequestError};
use crate::policy::EgressTarget;
use crate::record::ConnectionLog;
use crate::request_judge::RequestJudge;
use crate::secrets::SecretSet;
use crate::traffic_filter::{TrafficFilter, pass_unfiltered};

/// The longest head of a request or an answer.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long an answer is waited for after the program has ended its direction.
const ABANDONED_TIMEOUT: Duration = Duration::from_secs(60);
/// The most interim answers (1xx) before an answer.
const MAX_INTERIM_ANSWERS: usize = 8;
/// Headers that are meant for a proxy.
const PROXY_HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("proxy-connection"), HeaderName::from_static("proxy-authorization")];

/// Headers without which a server takes a request for another one, or for another host's.
const ESSENTIAL_HEADERS: [HeaderName; 3] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// How the requests of one connection are judged.
pub struct HttpPlan {
    /// The host that each of them has to name.
    pub target: EgressTarget,
    /// How the program asked for the connection.
    pub via: Via,
    /// Decides by method and path, where rules name any of this host.
    pub judge: Arc<RequestJudge>,
    /// What is done for the sake of secrets, where there are any.
    pub filter: FilterSource,
    /// Called when a request is refused, before the program hears of it.
    pub refused: RefusalHook,
    /// Told when the program has ended its direction, or both.
    pub guest_ended: Arc<Notify>,
}

/// What is done to requests for the sake of secrets.
pub enum FilterSource {
    /// Nothing: there is none.
    Unfiltered,
    /// The same for each request of a connection.
    Fixed(Arc<TrafficFilter>),
    /// Values are put in, as they are at each request. Where they have to be asked for again, this log hears of it.
    Bound(Arc<SecretSet>, Arc<dyn ConnectionLog>),
}

impl FilterSource {
    /// The filter for the next request to this host.
    async fn build_filter(
        &self,
        target: &EgressTarget,
    ) -> Result<Option<Arc<TrafficFilter>>, RequestError> {
        match self {
            Self::Unfiltered => Ok(None),
            Self::Fixed(filter) => Ok(Some(Arc::clone(filter))),
            Self::Bound(secrets, log) => {
                let filter = secrets.filter_intercepted(target, log).await;
                filter.map(|filter| Some(Arc::new(filter))).map_err(RequestError::refuse)
            }
        }
    }
}

/// What the requests of one connection share.
struct HttpRelay {
    plan: HttpPlan,
    server: tokio::sync::Mutex<SendRequest<RelayBody>>,
    /// Both ends of a connection that has become another protocol.
    upgrade: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
    /// Why a request was refused.
    refusal: RefusalSlot,
}

/// Relays requests until one side ends the connection.
pub async fn relay_http<G, S>(guest: G, server: S, plan: HttpPlan) -> Result<(), RelayError>
where
    G: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let keep_alive = plan.via != Via::Http;
    let (server, upstream) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(server))
        .await
        .map_err(describe_broken)?;
    let relay = Arc::new(HttpRelay::new(plan, server));
    let service = {
        let relay = relay.clone();
        service_fn(move |request| {
            let relay = relay.clone();
            async move { Ok::<_, Infallible>(relay.answer(request).await) }
        })
    };
    let downstream = hyper::server::conn::http1::Builder::new()
        // A client of a proxy asks for other hosts over the same connection, if it is kept open.
        .keep_alive(keep_alive)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(guest), service)
        .with_upgrades();
    let upstream = upstream.with_upgrades();
    tokio::pin!(downstream, upstream);
    let mut upstream_is_over = false;
    let guest_ended = Arc::clone(&relay.plan.guest_ended);
    let served = tokio::select! {
        served = &mut downstream => served,
        () = wait_until_abandoned(&guest_ended) => {
            return Err(RelayError::Failed("the program waits for no answer any more".into()));
        }
        // The server has ended: the program still gets its last answer, and asks elsewhere for the next.
        _ = &mut upstream => {
            upstream_is_over = true;
            downstream.as_mut().graceful_shutdown();
            downstream.await
        }
    };
    // A connection that has ended must not be polled again.
    let upstream_end = async {
        if !upstream_is_over {
            let _ = upstream.await;
        }
    };
    conclude_relay(&relay, served, upstream_end).await
}

/// What became of a connection whose requests are over: it goes on as another protocol, or has ended.
async fn conclude_relay(
    relay: &HttpRelay,
    served: Result<(), hyper::Error>,
    upstream_end: impl Future<Output = ()>,
) -> Result<(), RelayError> {
    if let Some(denial) = relay.refusal.get() {
        return Err(RelayError::Denied(denial));
    }
    let Some((guest, server)) = take(&relay.upgrade) else {
        return served.map_err(describe_broken);
    };
    // The server's half is handed over by its connection, which has to be driven for that.
    let (upgraded, ()) = tokio::join!(copy_upgraded(guest, server), upstream_end);
    upgraded.map_err(describe_broken)
}

fn describe_broken(error: hyper::Error) -> RelayError {
    RelayError::Failed(error.to_string())
}

/// A program that has ended its direction may still wait for its last answer, but not for ever: one that has died looks
/// the same, while the server says nothing.
async fn wait_until_abandoned(guest_ended: &Notify) {
    guest_ended.notified().await;
    tokio::time::sleep(ABANDONED_TIMEOUT).await;
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

async fn copy_upgraded(guest: OnUpgrade, server: OnUpgrade) -> Result<(), hyper::Error> {
    let (guest, server) = (guest.await?, server.await?);
    // Either side may break off: that is the end.
    let _ = copy_bidirectional(&mut TokioIo::new(guest), &mut TokioIo::new(server)).await;
    Ok(())
}

impl HttpRelay {
    fn new(plan: HttpPlan, server: SendRequest<RelayBody>) -> Self {
        let refusal = RefusalSlot::new(Arc::clone(&plan.refused));
        let server = tokio::sync::Mutex::new(server);
        Self { plan, server, upgrade: Mutex::default(), refusal }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<RelayBody> {
        match self.relay(request).await {
            Ok(response) => response,
            Err(RequestError::Refused(denial)) => {
                self.refusal.set(&denial);
                respond(StatusCode::FORBIDDEN, &denial.reason)
            }
            Err(RequestError::Failed(reason)) => respond(StatusCode::BAD_GATEWAY, &reason),
        }
    }

    async fn relay(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<RelayBody>, RequestError> {
        check_request(&request, &self.plan.target).map_err(RequestError::refuse)?;
        check_framing(request.headers()).map_err(RequestError::refuse)?;
        self.plan.judge.check(&request)?;
        let guest = hyper::upgrade::on(&mut request);
        let mut request = rewrite_request(request);
        let Some(filter) = self.plan.filter.build_filter(&self.plan.target).await? else {
            let response = self.send(request.map(pass_unfiltered)).await?;
            return Ok(self.note_upgrade(response, guest).map(pass_unfiltered));
        };
        if filter.is_intercepted() {
            remove_upgrade(request.headers_mut());
        }
        let request = filter.filter_request(request, &self.refusal).await?;
        let response = self.send(request).await?;
        filter.note_status(response.status());
        let response =
            if filter.is_intercepted() { response } else { self.note_upgrade(response, guest) };
        filter.filter_response(response, &self.refusal).await
    }

    async fn send(
        &self,
        mut request: Request<RelayBody>,
    ) -> Result<Response<Incoming>, RequestError> {
        let flooded = count_interim_answers(&mut request);
        let mut server = self.server.lock().await;
        let sent = match server.ready().await {
            Ok(()) => tokio::select! {
                sent = server.send_request(request) => sent,
                () = flooded.notified() => {
                    let reason = "the server sends interim answers (1xx) without end";
                    return Err(RequestError::Failed(reason.into()));
                }
            },
            Err(error) => Err(error),
        };
        // A body that was stopped half-way ends the connection: that is not the server's failure.
        sent.map_err(|error| match self.refusal.get() {
            Some(denial) => RequestError::Refused(denial),
            None => RequestError::Failed(error.to_string()),
        })
    }

    /// Remembers both ends of a connection that becomes another protocol with this answer.
    fn note_upgrade(
        &self,
        mut response: Response<Incoming>,
        guest: OnUpgrade,
    ) -> Response<Incoming> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server = hyper::upgrade::on(&mut response);
            let pair = Some((guest, server));
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = pair;
        }
        response
    }
}

/// Told when the server sends more interim answers to this request than any needs. They are left out anyway.
fn count_interim_answers(request: &mut Request<RelayBody>) -> Arc<Notify> {
    let (flooded, count) = (Arc::new(Notify::new()), AtomicUsize::new(0));
    let told = Arc::clone(&flooded);
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_INTERIM_ANSWERS {
            told.notify_one();
        }
    });
    flooded
}

fn respond(status: StatusCode, reason: &str) -> Response<RelayBody> {
    let body = Full::new(Bytes::from(format!("stockade: {reason}\n")));
    let mut response = Response::new(RelayBody::Right(body));
    *response.status_mut() = status;
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// Whether every place in which a request names its host names the same one.
fn check_request<B>(request: &Request<B>, target: &EgressTarget) -> Result<(), String> {
    if request.method() == Method::CONNECT {
        return Err("CONNECT is for proxies, not for a server".into());
    }
    let named = host_header(request.headers())?;
    let in_target = request.uri().authority();
    if named.is_none() && in_target.is_none() {
        return Err("the request names no host".into());
    }
    for authority in named.iter().chain(in_target) {
        if authority.as_str().contains('@') || !target.is_same_host(authority.host()) {
            let named = authority.as_str().escape_debug();
            return Err(format!("a request for `{named}` over a connection to `{target}`"));
        }
    }
    Ok(())
}

/// Whether every server on the way reads the end of the request, and its host, in the same way. Lengths that contradict
/// each other do not come here: the parser refuses them, or leaves those out that do not count.
fn check_framing(headers: &HeaderMap) -> Result<(), String> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if codings.next().is_some_and(|first| !is_plain(first)) || codings.next().is_some() {
        return Err("the request's `Transfer-Encoding` is not `chunked` alone".into());
    }
    let mut options =
        headers.get_all(CONNECTION).iter().flat_map(|it| it.as_bytes().split(|b| *b == b','));
    let is_essential = |option: &[u8]| {
        ESSENTIAL_HEADERS
            .iter()
            .any(|header| option.trim_ascii().eq_ignore_ascii_case(header.as_str().as_bytes()))
    };
    // Servers on the way remove the headers that it names.
    if options.any(is_essential) {
        return Err("the request's `Connection` header names one that must not be removed".into());
    }
    Ok(())
}

fn host_header(headers: &HeaderMap) -> Result<Option<Authority>, String> {
    let mut all = headers.get_all(HOST).iter();
    let Some(only) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() {
        return Err("the request has two `Host` headers".into());
    }
    let parsed = Authority::try_from(only.as_bytes());
    parsed.map(Some).map_err(|_| "the request's `Host` header names no host".into())
}

/// The request as the server wants it: without what was for a proxy.
fn rewrite_request<B>(mut request: Request<B>) -> Request<B> {
    if let (None, Some(authority)) = (request.headers().get(HOST), request.uri().authority())
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    for header in PROXY_HEADERS {
        request.headers_mut().remove(header);
    }
    keep_to_known_upgrades(request.headers_mut());
    request
}

/// Of all that a connection may become, a WebSocket alone stays with its host. HTTP/2 would not.
fn keep_to_known_upgrades(headers: &mut HeaderMap) {
    let is_known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    if !headers.get_all(UPGRADE).iter().all(is_known) {
        remove_upgrade(headers);
    }
}

fn remove_upgrade(headers: &mut HeaderMap) {
    if headers.remove(UPGRADE).is_some() {
        headers.remove(CONNECTION);
    }
    headers.remove(HeaderName::from_static("http2-settings"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &str, hosts: &[&str]) -> Result<(), String> {
        let builder = Request::get(uri);
        let builder = hosts.iter().fold(builder, |builder, host| builder.header(HOST, *host));
        check_request(&builder.body(()).unwrap(), &EgressTarget::parse("a.org").unwrap())
    }

    #[test]
    fn every_name_in_a_request_is_that_of_the_connection() {
        assert_eq!(check("/x", &["a.org"]), Ok(()));
        assert_eq!(check("/x", &["A.ORG:8080"]), Ok(()));
        assert_eq!(check("http://a.org/x", &["a.org"]), Ok(()));
        assert_eq!(check("http://a.org/x", &[]), Ok(()));
        for (uri, hosts) in [
            ("/x", &[][..]),
            ("/x", &["b.org"]),
            ("/x", &["a.org", "b.org"]),
            ("/x", &["a.org", "a.org"]),
            ("/x", &["a.org@b.org"]),
            ("/x", &["b.org@a.org"]),
            ("http://b.org/x", &["a.org"]),
            ("http://a.org/x", &["b.org"]),
            ("http://a.org@b.org/x", &["a.org"]),
        ] {
            assert!(check(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn the_end_of_a_request_and_its_host_are_the_same_for_every_server() {
        let check = |name: HeaderName, values: &[&str]| {
            let pairs = values.iter().map(|value| (name.clone(), value.parse().unwrap()));
            check_framing(&pairs.collect()).is_ok()
        };
        assert!(check(TRANSFER_ENCODING, &[]) && check(TRANSFER_ENCODING, &["Chunked"]));
        for codings in
            [&["gzip, chunked"][..], &["chunked, chunked"], &["chunked", "chunked"], &[""]]
        {
            assert!(!check(TRANSFER_ENCODING, codings), "{codings:?}");
        }
        assert!(check(CONNECTION, &["keep-alive, Upgrade", "TE, HTTP2-Settings", "", ","]));
        for options in
            [&["Host"][..], &["close, content-length"], &["close", "\tTransfer-Encoding ,x"]]
        {
            assert!(!check(CONNECTION, options), "{options:?}");
        }
    }

    #[test]
    fn the_server_gets_a_path_and_nothing_for_proxies() {
        let request = Request::get("http://a.org/x?y").header("proxy-authorization", "secret");
        let rewritten = rewrite_request(request.body(()).unwrap());
        assert_eq!(rewritten.uri(), "/x?y");
        let names: Vec<_> = rewritten.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["host"]);
        assert_eq!(rewritten.headers()[HOST], "a.org");
    }

    #[test]
    fn a_connection_becomes_a_websocket_and_nothing_else() {
        let upgraded = |to: &[&str]| {
            let request = Request::get("/").header(CONNECTION, "upgrade, http2-settings");
            let request = request.header("http2-settings", "AAMAAABk");
            let request = to.iter().fold(request, |request, to| request.header(UPGRADE, *to));
            rewrite_request(request.body(()).unwrap()).headers().contains_key(UPGRADE)
        };
        assert!(upgraded(&["WebSocket"]));
        assert!(!upgraded(&["h2c"]) && !upgraded(&["websocket", "h2c"]) && !upgraded(&["h2c, x"]));
    }

    proptest::proptest! {
        #[test]
        fn any_host_of_a_request_is_that_of_the_connection_or_refused(
            host in "(a\\.org|A\\.ORG|b\\.org|@|:|80|\\.|/|[ -~]){0,4}",
        ) {
            let header = HeaderValue::from_str(&host).unwrap();
            let request = Request::get("/").header(HOST, header).body(()).unwrap();
            let target = EgressTarget::parse("a.org").unwrap();
            if check_request(&request, &target).is_ok() {
                proptest::prop_assert!(host.to_ascii_lowercase().contains("a.org"), "{host}");
                proptest::prop_assert!(!host.contains('@'), "{host}");
            }
        }
    }
}
