//! The head of a request: whom it is for, where it comes from, which token it carries. What can be read in
//! two ways (a second `Host`, a user in front of it, a whole URL in the request line) is not plain.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderValue, Request};

/// What stands in front of a token among the subprotocols of a WebSocket, for pages: a browser lets them set no header.
const TOKEN_SUBPROTOCOL: &[u8] = b"base64url.bearer.authorization.stockade.";
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Whether a request names its host once, as a name or address with or without a port, and its origin
/// at most once. A URL in the request line would be a second name for the host.
pub(crate) fn is_plain<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().is_some_and(|host| is_host(host.as_bytes())) && hosts.next().is_none();
    let origin = headers.get_all(ORIGIN).iter().count() <= 1;
    request.uri().authority().is_none() && request.uri().scheme().is_none() && host && origin
}

fn is_host(host: &[u8]) -> bool {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte);
    !host.is_empty() && host.iter().all(part)
}

/// The token of a request that carries exactly one.
pub(crate) fn find_bearer_token<B>(request: &Request<B>) -> Option<&str> {
    let mut given = request.headers().get_all(AUTHORIZATION).iter();
    match (given.next().and_then(parse_bearer_token), given.next()) {
        (token, None) => token,
        (_, Some(_)) => None,
    }
}

fn parse_bearer_token(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Whether a request carries a token, right or wrong.
pub(crate) fn carries_token<B>(request: &Request<B>) -> bool {
    let offered = list_offered_tokens(request).next().is_some();
    offered || request.headers().contains_key(AUTHORIZATION)
}

/// The token of a request that carries exactly one, in its header or among its subprotocols.
pub(crate) fn find_request_token<B>(request: &Request<B>) -> Option<String> {
    let mut offered = list_offered_tokens(request);
    match (request.headers().contains_key(AUTHORIZATION), offered.next(), offered.next()) {
        (true, None, _) => find_bearer_token(request).map(str::to_owned),
        (false, Some(encoded), None) => decode_token(encoded),
        _ => None,
    }
}

/// The tokens among the subprotocols of a request, encoded.
fn list_offered_tokens<B>(request: &Request<B>) -> impl Iterator<Item = &[u8]> {
    let lists = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let names = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| name.trim_ascii().strip_prefix(TOKEN_SUBPROTOCOL))
}

fn decode_token(encoded: &[u8]) -> Option<String> {
    String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
}

/// Whether a `Host` is a loopback name, or one of these further ones, on any port. A page whose name was made
/// to resolve to this machine sends its own name.
pub(crate) fn names_loopback(host: &str, further: &[String]) -> bool {
    let Some(name) = strip_port(host) else { return false };
    let same = |known: &str| known.eq_ignore_ascii_case(name);
    LOOPBACK_NAMES.into_iter().any(same) || further.iter().any(|known| same(known))
}

/// Whether an `Origin` is a page of this machine, or of one of these further hosts.
pub(crate) fn names_loopback_origin(origin: &str, further: &[String]) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| names_loopback(host, further))
}

/// The name or address without its port; none where it is neither.
pub(crate) fn strip_port(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let port = rest.strip_prefix(':').unwrap_or(rest);
    port.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]", "[::1]:80", "box"] {
            assert!(names_loopback(host, &["box".to_owned()]), "{host}");
        }
        for host in
            ["", "evil", "localhost.evil", "127.0.0.1.evil:80", "localhost:x", "[::1", "::1"]
        {
            assert!(!names_loopback(host, &["box".to_owned()]), "{host}");
        }
    }

    #[test]
    fn a_request_carries_one_token_in_one_place() {
        let request = |headers: &[(&str, &str)]| {
            let all = headers
                .iter()
                .fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
            all.body(()).unwrap()
        };
        let (name, list) = ("sec-websocket-protocol", "base64url.bearer.authorization.stockade.");
        let offered = &*format!("stockade.terminal.v1, {list}c2VjcmV0");
        let header = ("authorization", "Bearer secret");
        for carried in [[header], [(name, offered)]] {
            let request = request(&carried);
            assert!(carries_token(&request));
            assert_eq!(find_request_token(&request).as_deref(), Some("secret"), "{carried:?}");
        }
        let twice = &*format!("{list}c2VjcmV0,{list}c2VjcmV0");
        let padded = &*format!("{list}c2VjcmV0=");
        for wrong in [
            &[header, (name, offered)][..],
            &[header, header],
            &[(name, offered), (name, offered)],
            &[(name, twice)],
            &[(name, padded)],
            &[(name, list)],
        ] {
            assert!(carries_token(&request(wrong)), "{wrong:?}");
            let found = find_request_token(&request(wrong));
            assert!(found.is_none_or(|token| token.is_empty()), "{wrong:?}");
        }
        let none = request(&[(name, "stockade.terminal.v1")]);
        assert!(!carries_token(&none) && find_request_token(&none).is_none());
    }

    #[test]
    fn only_pages_of_this_machine_are_origins() {
        for origin in ["http://localhost", "https://127.0.0.1:3000", "http://[::1]:1"] {
            assert!(names_loopback_origin(origin, &[]), "{origin}");
        }
        for origin in ["null", "", "localhost", "http://evil", "http://localhost.evil", "file://"] {
            assert!(!names_loopback_origin(origin, &[]), "{origin}");
        }
    }
}
