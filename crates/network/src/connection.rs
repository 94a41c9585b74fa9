//! One connection: decided, made, looked at, relayed, recorded.
//!
//! The name under which a program asked is not yet what it means: the first bytes are looked at before any of
//! them goes on. A TLS client must ask for that name (SNI), each HTTP request must name it (`Host`), and at the
//! ports of the web nothing else is spoken. At other ports, which a rule has to name, any protocol is relayed.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use stockade_agent::protocol::network::{RefusalKind, Via};
use stockade_core::EgressRule;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::asking::add_grant;
use crate::client_hello::{HelloError, HelloState, MAX_HELLO_BYTES, read_server_name};
use crate::dial::{DialError, Dialed, dial};
use crate::filtered_body::RefusalHook;
use crate::http_relay::{FilterSource, HttpPlan, relay_http};
use crate::intercept::relay_intercepted;
use crate::policy::{Denial, Egress, EgressTarget, check_address, check_target, describe_no_host};
use crate::raw_relay::{relay_bytes, relay_watched};
use crate::record::{ConnectionRecord, ConnectionVerdict};
use crate::request_judge::{RequestJudge, describe_opaque, describe_unopened};
use crate::secrets::describe_https_only;
use crate::special::OwnAddresses;
use crate::stream::{ByteCounts, GuestStream};

/// How long a client of the web may say nothing.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest first line of a request that is looked for.
const MAX_REQUEST_LINE: usize = 8 * 1024;
/// How a TLS connection begins: a handshake, of major version 3.
const TLS_START: [u8; 2] = [0x16, 3];
/// Ports at which only TLS and HTTP are spoken.
const WEB_PORTS: [u16; 2] = [80, 443];

/// What a program asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    pub host: String,
    pub port: u16,
    pub via: Via,
}

/// What a connection carries, by its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CarriedProtocol {
    /// TLS, for the right host.
    Tls,
    /// HTTP, which is looked at request by request.
    Http,
    /// Something else.
    Raw,
}

/// The record of a connection, written when it is concluded, or else when this value is dropped: also when the
/// task is aborted.
struct PendingRecord {
    egress: Arc<Egress>,
    counts: ByteCounts,
    record: Mutex<Option<ConnectionRecord>>,
}

impl PendingRecord {
    fn of(egress: &Arc<Egress>, guest: &GuestStream, request: &OpenRequest) -> Arc<Self> {
        let reason = "the sandbox or its network ended first".into();
        let record = ConnectionRecord {
            host: request.host.clone(),
            port: Some(request.port),
            address: None,
            via: Some(request.via),
            begun: SystemTime::now(),
            request: None,
            verdict: ConnectionVerdict::Failed { rule: None, reason },
            sent: 0,
            received: 0,
        };
        let record = Mutex::new(Some(record));
        Arc::new(Self { egress: Arc::clone(egress), counts: guest.counts(), record })
    }

    fn lock(&self) -> MutexGuard<'_, Option<ConnectionRecord>> {
        // Nothing panics half-way through a change.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut ConnectionRecord)) {
        if let Some(record) = self.lock().as_mut() {
            change(record);
        }
    }

    /// Writes it with this verdict, once: a later one changes nothing.
    fn conclude(&self, verdict: ConnectionVerdict) {
        self.set(|record| record.verdict = verdict);
        self.write();
    }

    fn note_request(&self, denial: &Denial) {
        self.set(|record| record.request.clone_from(&denial.request));
    }

    fn write(&self) {
        let pending = self.lock().take();
        if let Some(mut record) = pending {
            (record.sent, record.received) = self.counts.get();
            self.egress.record(record);
        }
    }

    /// Concludes it where a request is refused, before the program hears of it.
    fn refusal_hook(self: &Arc<Self>) -> RefusalHook {
        let pending = Arc::clone(self);
        Arc::new(move |denial: &Denial| {
            pending.note_request(denial);
            pending.conclude(denial.clone().into());
        })
    }
}

impl Drop for PendingRecord {
    fn drop(&mut self) {
        self.write();
    }
}

/// Serves a connection from its request to its end.
pub async fn serve_connection(egress: Arc<Egress>, guest: GuestStream, request: OpenRequest) {
    let pending = PendingRecord::of(&egress, &guest, &request);
    match parse_target(&egress, &request.host) {
        Err(denial) => refuse_denied(guest, denial, &pending),
        Ok(target) => {
            let verdict = serve_target(&egress, guest, &request, &target, &pending).await;
            pending.conclude(verdict);
        }
    }
}

/// Recorded before the program hears of it: one that ends at once still has its denial told in its outcome.
fn refuse_denied(guest: GuestStream, denial: Denial, pending: &PendingRecord) {
    pending.conclude(denial.clone().into());
    guest.refuse(RefusalKind::Denied, &denial.reason);
}

/// Refuses a connection for which there is no room: a denial like others, recorded before the program hears of it.
pub fn refuse_busy(egress: &Arc<Egress>, guest: GuestStream, request: &OpenRequest, reason: &str) {
    let pending = PendingRecord::of(egress, &guest, request);
    pending.conclude(Denial::from(reason).into());
    guest.refuse(RefusalKind::Busy, reason);
}

fn parse_target(egress: &Egress, host: &str) -> Result<EgressTarget, Denial> {
    if let Some(reason) = egress.secrets().and_then(|secrets| secrets.refuse_name(host)) {
        return Err(reason.into());
    }
    EgressTarget::parse(host).ok_or_else(|| describe_no_host(host).into())
}

fn refuse_undialed(
    guest: GuestStream,
    error: DialError,
    pending: &PendingRecord,
) -> ConnectionVerdict {
    match error {
        DialError::Denied(denial) => {
            refuse_denied(guest, denial.clone(), pending);
            denial.into()
        }
        DialError::Failed { rule, reason } => {
            guest.refuse(RefusalKind::Unreachable, &reason);
            ConnectionVerdict::Failed { rule: Some(rule), reason }
        }
    }
}

async fn serve_target(
    egress: &Egress,
    guest: GuestStream,
    request: &OpenRequest,
    target: &EgressTarget,
    pending: &Arc<PendingRecord>,
) -> ConnectionVerdict {
    let (rules, spent) = (egress.follow_rules(), egress.meter.spent());
    let dialed = match dial(egress, target, request.port).await {
        Ok(dialed) => dialed,
        Err(error) => return refuse_undialed(guest, error, pending),
    };
    let Dialed { socket, address, rule, grant, place: _place } = dialed;
    egress.observe(target, request.port);
    guest.accept();
    let ip = address.ip();
    // From now on it is allowed, also if it ends with its sandbox.
    pending.set(|record| {
        record.address = Some(ip);
        record.verdict = ConnectionVerdict::Allowed { rule: rule.clone() };
    });
    let judge = Arc::new(RequestJudge::new(egress, target, request.port, grant.clone()));
    let lost = wait_until_denied(rules, grant.as_ref(), (target, ip, request.port), &judge);
    let refused = pending.refusal_hook();
    let order = RelayOrder { egress, request, target, judge: &judge, refused };
    let relayed = tokio::select! {
        relayed = relay_checked(guest, socket, order) => relayed,
        denial = lost => Err(RelayError::Denied(denial)),
        denial = egress.meter.wait_until_spent(spent) => Err(RelayError::Denied(denial)),
    };
    match relayed {
        Ok(()) => ConnectionVerdict::Allowed { rule },
        Err(RelayError::Denied(denial)) => {
            pending.note_request(&denial);
            denial.into()
        }
        Err(RelayError::Failed(reason)) => ConnectionVerdict::Failed { rule: Some(rule), reason },
    }
}

/// Resolves when other rules are in force, under which this connection would not be made, or not for what it carries.
async fn wait_until_denied(
    mut rules: watch::Receiver<Arc<[EgressRule]>>,
    grant: Option<&EgressRule>,
    (target, address, port): (&EgressTarget, std::net::IpAddr, u16),
    judge: &RequestJudge,
) -> Denial {
    loop {
        if rules.changed().await.is_err() {
            // The policy ends with the sandbox, which ends the connection by itself.
            std::future::pending::<()>().await;
        }
        let now = add_grant(rules.borrow_and_update().clone(), grant);
        let checked = check_target(&now, target, port)
            .and_then(|_| check_address(&now, address, port, &OwnAddresses::list()))
            .and_then(|()| judge.recheck(&now));
        if let Err(denial) = checked {
            return denial;
        }
    }
}

/// Why a connection that was made has ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayError {
    /// What went over it is not allowed.
    Denied(Denial),
    /// It broke.
    Failed(String),
}

impl From<io::Error> for RelayError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What a connection is relayed by.
struct RelayOrder<'a> {
    egress: &'a Egress,
    request: &'a OpenRequest,
    target: &'a EgressTarget,
    judge: &'a Arc<RequestJudge>,
    refused: RefusalHook,
}

async fn relay_checked(
    guest: GuestStream,
    socket: TcpStream,
    RelayOrder { egress, request, target, judge, refused }: RelayOrder<'_>,
) -> Result<(), RelayError> {
    let carried = find_protocol(&guest, &socket, request, target).await?;
    let secrets = egress.secrets();
    let is_bound = secrets.is_some_and(|secrets| secrets.is_intercepted(target));
    // Noted before the rules are read: a change between the two is seen by `wait_until_denied`.
    judge.note_opaque();
    let is_judged = judge.is_needed();
    let plain = secrets.and_then(|secrets| secrets.filter_plain(target));
    let plan = HttpPlan {
        target: target.clone(),
        via: request.via,
        judge: Arc::clone(judge),
        filter: plain.map_or(FilterSource::Unfiltered, |filter| FilterSource::Fixed(filter.into())),
        refused,
        guest_ended: guest.watch_end(),
    };
    let denied = |reason: String| Err(RelayError::Denied(reason.into()));
    match (carried, secrets) {
        (CarriedProtocol::Http, _) => {
            judge.begin_requests();
            relay_http(guest, socket, plan).await
        }
        (CarriedProtocol::Tls, Some(secrets)) if is_bound || is_judged => {
            judge.begin_requests();
            let bound = || FilterSource::Bound(Arc::clone(secrets), Arc::clone(egress.log()));
            let filter = if is_bound { bound() } else { plan.filter };
            relay_intercepted(secrets, guest, socket, HttpPlan { filter, ..plan }).await
        }
        (CarriedProtocol::Tls, None) if is_judged => denied(describe_unopened(target)),
        (CarriedProtocol::Raw, _) if is_bound => denied(describe_https_only(target)),
        (CarriedProtocol::Raw, _) if is_judged => denied(describe_opaque(target)),
        (CarriedProtocol::Tls, _) => relay_bytes(guest, socket).await,
        (CarriedProtocol::Raw, secrets) => match secrets.and_then(|it| it.watch_raw(target)) {
            Some(watch) => relay_watched(guest, socket, watch).await,
            None => relay_bytes(guest, socket).await,
        },
    }
}

async fn find_protocol(
    guest: &GuestStream,
    socket: &TcpStream,
    request: &OpenRequest,
    target: &EgressTarget,
) -> Result<CarriedProtocol, RelayError> {
    if WEB_PORTS.contains(&request.port) {
        return match timeout(FIRST_BYTES_TIMEOUT, inspect(guest, target, true)).await {
            Ok(inspected) => inspected,
            Err(_) => Err(RelayError::Failed("the program sent nothing".into())),
        };
    }
    tokio::select! {
        // A server that speaks first: neither TLS nor HTTP.
        spoken = socket.readable() => Ok(spoken.map(|()| CarriedProtocol::Raw)?),
        inspected = inspect(guest, target, false) => inspected,
    }
}

/// Tells by its first bytes what a connection carries, and refuses what does not name its host.
async fn inspect(
    guest: &GuestStream,
    target: &EgressTarget,
    web: bool,
) -> Result<CarriedProtocol, RelayError> {
    // Not looked at again before there is something new to be seen.
    let mut needed = 1;
    let judge = |bytes: &[u8], ended: bool| {
        if bytes.len() < needed && !ended {
            return None;
        }
        needed = match read_server_name(bytes) {
            Ok(HelloState::Needs(length)) if length > bytes.len() => length,
            Ok(HelloState::Needs(_) | HelloState::Complete(_)) | Err(_) => 1,
        };
        judge_first_bytes(bytes, ended, target, web)
    };
    guest.peek(judge).await?
}

/// Nothing: more bytes are needed.
fn judge_first_bytes(
    bytes: &[u8],
    ended: bool,
    target: &EgressTarget,
    web: bool,
) -> Option<Result<CarriedProtocol, RelayError>> {
    // Servers skip empty lines before a request.
    let bytes = bytes.trim_ascii_start();
    if bytes.first()? == &TLS_START[0] {
        return judge_tls(bytes, target, web);
    }
    match find_request_line(bytes) {
        FirstLine::Complete => Some(Ok(CarriedProtocol::Http)),
        FirstLine::Other => {
            let reason = "without TLS only well-formed HTTP/1 is let through, and no other version";
            Some(Err(RelayError::Denied(reason.into())))
        }
        FirstLine::Incomplete if !ended => None,
        FirstLine::Incomplete | FirstLine::None if web => {
            let reason = "at the ports of the web only TLS and HTTP/1 are let through";
            Some(Err(RelayError::Denied(reason.into())))
        }
        FirstLine::Incomplete | FirstLine::None => Some(Ok(CarriedProtocol::Raw)),
    }
}

fn judge_tls(
    bytes: &[u8],
    target: &EgressTarget,
    web: bool,
) -> Option<Result<CarriedProtocol, RelayError>> {
    let denied = |reason: String| Some(Err(RelayError::Denied(reason.into())));
    match read_server_name(bytes) {
        Ok(HelloState::Needs(_)) if bytes.len() < MAX_HELLO_BYTES => None,
        Ok(HelloState::Needs(_)) => denied("the TLS client's first message is too long".into()),
        Ok(HelloState::Complete(name)) if target.is_same_host(&name) => {
            Some(Ok(CarriedProtocol::Tls))
        }
        Ok(HelloState::Complete(name)) => denied(format!(
            "the TLS client asks for `{}` over a connection to `{target}`",
            name.escape_debug()
        )),
        // A rule for an address does not say which name is served there.
        Err(_) if matches!(target, EgressTarget::Address(_)) => Some(Ok(CarriedProtocol::Tls)),
        // Bytes of another protocol, which merely begin with the same one.
        Err(HelloError::Malformed) if !web && !bytes.starts_with(&TLS_START) => {
            Some(Ok(CarriedProtocol::Raw))
        }
        Err(error) => denied(error.to_string()),
    }
}

enum FirstLine {
    /// `METHOD target HTTP/1.x`.
    Complete,
    /// Of another version of HTTP.
    Other,
    Incomplete,
    None,
}

fn find_request_line(bytes: &[u8]) -> FirstLine {
    let line = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => &bytes[..end],
        None if bytes.len() < MAX_REQUEST_LINE && looks_like_text(bytes) => {
            return FirstLine::Incomplete;
        }
        // A server may take it for a request all the same.
        None if begins_like_request(bytes) => return FirstLine::Other,
        None => return FirstLine::None,
    };
    let line = line.trim_ascii_end();
    let version = line.rsplit(u8::is_ascii_whitespace).next().unwrap_or_default();
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" => FirstLine::Complete,
        other if is_http_version(other) || !looks_like_text(line) && begins_like_request(line) => {
            FirstLine::Other
        }
        _ => FirstLine::None,
    }
}

fn is_http_version(word: &[u8]) -> bool {
    word.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"))
}

/// Whether it begins as `METHOD /`, `METHOD *` or `METHOD http`.
fn begins_like_request(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|byte| *byte == b' ') else { return false };
    let (method, target) = (&bytes[..end], bytes[end..].trim_ascii_start());
    let starts_as = |start: &[u8]| {
        target.get(..start.len()).is_some_and(|first| first.eq_ignore_ascii_case(start))
    };
    !method.is_empty()
        && method.iter().all(u8::is_ascii_alphabetic)
        && [&b"/"[..], b"*", b"http"].iter().any(|start| starts_as(start))
}

fn looks_like_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_hello::tests::client_hello;

    fn judge(bytes: &[u8], host: &str, web: bool) -> Option<Result<CarriedProtocol, RelayError>> {
        judge_first_bytes(bytes, false, &EgressTarget::parse(host).unwrap(), web)
    }

    #[test]
    fn a_tls_client_must_ask_for_the_host_that_it_connected_to() {
        let hello = client_hello("Pypi.org");
        assert_eq!(judge(&hello, "pypi.org", true), Some(Ok(CarriedProtocol::Tls)));
        assert!(matches!(judge(&hello, "a.org", true), Some(Err(RelayError::Denied(_)))));
        assert!(matches!(judge(&hello, "a.org", false), Some(Err(RelayError::Denied(_)))));
        assert!(matches!(judge(&hello, "8.8.8.8", true), Some(Err(RelayError::Denied(_)))));
        assert_eq!(judge(&hello[..20], "pypi.org", true), None);
        // A name of another writing is asked for by the letters that resolvers have for it, and by no others.
        let books = "xn--bcher-kva.test";
        let hello = client_hello("XN--BCHER-kva.test");
        assert_eq!(judge(&hello, books, true), Some(Ok(CarriedProtocol::Tls)));
        for named in ["b\u{fc}cher.test", "xn--bcher-kva\u{3002}test", "xn--bcher-kva.test\0"] {
            let judged = judge(&client_hello(named), books, true);
            assert!(matches!(judged, Some(Err(RelayError::Denied(_)))), "{named}: {judged:?}");
        }
    }

    #[test]
    fn the_ports_of_the_web_carry_tls_and_http_only() {
        for bytes in [&b"SSH-2.0-x\r\n"[..], b"\x00\x01", b"EHLO a\r\n", b"\x16\x02\x00"] {
            assert!(matches!(judge(bytes, "a.org", true), Some(Err(RelayError::Denied(_)))));
            assert_eq!(judge(bytes, "a.org", false), Some(Ok(CarriedProtocol::Raw)));
        }
        // No other spelling lets them through, at any port.
        for web in [true, false] {
            for bytes in [&b"PRI * HTTP/2.0\r\n\r\n"[..], b"\x16\x03\x01\x00\x00"] {
                let judged = judge(bytes, "a.org", web);
                assert!(matches!(judged, Some(Err(RelayError::Denied(_)))), "{judged:?}");
            }
            let long = [&b"GET /"[..], &b"x".repeat(MAX_REQUEST_LINE)].concat();
            for bytes in [&b"GET /\xff"[..], b"GET / http/1.1\r\n", b"get /a\xff\r\n", &long] {
                let judged = judge(bytes, "a.org", web);
                assert!(matches!(judged, Some(Err(RelayError::Denied(_)))), "{judged:?}");
            }
            let spaced = judge(b"\r\n\nGET / HTTP/1.1 \r\n", "a.org", web);
            assert_eq!(spaced, Some(Ok(CarriedProtocol::Http)));
        }
        assert_eq!(judge(b"GET / HTTP/1.1\r\n", "a.org", true), Some(Ok(CarriedProtocol::Http)));
        assert_eq!(judge(b"GET / HTTP/1.1\r\n", "a.org", false), Some(Ok(CarriedProtocol::Http)));
        assert_eq!(judge(b"GET / HT", "a.org", true), None);
    }

    proptest::proptest! {
        #[test]
        fn any_first_bytes_are_judged_without_harm(
            start in proptest::sample::select(
                vec![&b""[..], b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\x00\x05\x01"],
            ),
            rest in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            let bytes = [start, &rest[..]].concat();
            let target = EgressTarget::parse("a.org").unwrap();
            for ended in [true, false] {
                // Nothing else is spoken at the ports of the web.
                let judged = judge_first_bytes(&bytes, ended, &target, true);
                proptest::prop_assert_ne!(judged, Some(Ok(CarriedProtocol::Raw)));
                let _ = judge_first_bytes(&bytes, ended, &target, false);
            }
        }
    }
}
