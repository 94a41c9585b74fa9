//! Who gets in: a plain request for the right path with the right token, checked before anything of
//! its body is read. What can be read in two ways (a second `Host`, a user in front of it, a whole URL
//! in the request line) is refused here; whether `Host` and `Origin` are ours is checked by the
//! protocol's own service behind this.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};

use super::{MCP_PATH, Token};
use crate::http::{find_bearer_token, is_plain};

/// Decides which requests are let in.
pub struct TokenGuard(Token);

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpRefusal {
    /// It does not say in one way only whom it is for, or where it comes from.
    Ambiguous,
    /// There is nothing at that path.
    NoSuchPath,
    /// No token, or another one.
    NoToken,
}

impl TokenGuard {
    pub const fn new(token: Token) -> Self {
        Self(token)
    }

    pub fn check<B>(&self, request: &Request<B>) -> Result<(), HttpRefusal> {
        if !is_plain(request) {
            return Err(HttpRefusal::Ambiguous);
        }
        if request.uri().path() != MCP_PATH {
            return Err(HttpRefusal::NoSuchPath);
        }
        match find_bearer_token(request) {
            Some(token) if self.0.is(token) => Ok(()),
            Some(_) | None => Err(HttpRefusal::NoToken),
        }
    }
}

impl From<HttpRefusal> for Response<BoxBody<Bytes, Infallible>> {
    fn from(refusal: HttpRefusal) -> Self {
        let (status, text) = match refusal {
            HttpRefusal::Ambiguous => (
                StatusCode::BAD_REQUEST,
                "name the host once, in one `Host` header, and only the path in the request line\n",
            ),
            HttpRefusal::NoSuchPath => (StatusCode::NOT_FOUND, "there is nothing here but /mcp\n"),
            HttpRefusal::NoToken => {
                (StatusCode::UNAUTHORIZED, "send the token: `Authorization: Bearer TOKEN`\n")
            }
        };
        let mut response = Self::new(Full::from(text).boxed());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        // Who was not let in does not stay.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if refusal == HttpRefusal::NoToken {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http::header::{AUTHORIZATION, HOST};

    use super::*;

    fn asked(path: &str, given: &[&str]) -> Result<(), HttpRefusal> {
        let token = Token::try_from("0123456789abcdef".to_owned()).unwrap();
        let mut request = Request::builder().uri(path).header(HOST, "127.0.0.1:80");
        for value in given {
            request = request.header(AUTHORIZATION, *value);
        }
        TokenGuard::new(token).check(&request.body(()).unwrap())
    }

    #[test]
    fn the_token_opens_the_one_path() {
        assert_eq!(asked("/mcp", &["Bearer 0123456789abcdef"]), Ok(()));
        assert_eq!(asked("/mcp?x=1", &["bearer 0123456789abcdef"]), Ok(()));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let asked = |uri: &str, headers: &[(&str, &str)]| {
            let token = Token::try_from("0123456789abcdef".to_owned()).unwrap();
            let mut request = Request::builder().uri(uri);
            request = request.header(AUTHORIZATION, "Bearer 0123456789abcdef");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            TokenGuard::new(token).check(&request.body(()).unwrap())
        };
        for host in ["localhost", "127.0.0.1:8080", "[::1]:80", "my-host.example"] {
            assert_eq!(asked("/mcp", &[("host", host)]), Ok(()), "{host}");
        }
        for headers in [
            &[][..],
            &[("host", "")],
            &[("host", "evil@127.0.0.1")],
            &[("host", "127.0.0.1/x")],
            &[("host", "127.0.0.1, evil")],
            &[("host", "127.0.0.1"), ("host", "127.0.0.1")],
            &[("host", "127.0.0.1"), ("host", "evil")],
            &[("host", "127.0.0.1"), ("origin", "http://127.0.0.1"), ("origin", "http://evil")],
        ] {
            assert_eq!(asked("/mcp", headers), Err(HttpRefusal::Ambiguous), "{headers:?}");
        }
        let absolute = asked("http://evil/mcp", &[("host", "127.0.0.1")]);
        assert_eq!(absolute, Err(HttpRefusal::Ambiguous));
    }

    #[test]
    fn anything_else_is_refused() {
        for given in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcde"],
            &["Bearer 0123456789abcdef0"],
            &["Basic 0123456789abcdef"],
            &["0123456789abcdef"],
            &["Bearer wrong", "Bearer 0123456789abcdef"],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert_eq!(asked("/mcp", given), Err(HttpRefusal::NoToken), "{given:?}");
        }
        for path in ["/", "/mcp/", "/mcp/x", "/.well-known/oauth-protected-resource"] {
            assert_eq!(asked(path, &["Bearer 0123456789abcdef"]), Err(HttpRefusal::NoSuchPath));
        }
    }
}
