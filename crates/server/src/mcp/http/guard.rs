//! Who gets in: the right path and the right token, checked before anything of a request is read.
//! Where it comes from (`Host`, `Origin`) is checked by the protocol's own service behind this.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};

use super::{PATH, Token};

/// Who gets in.
pub struct Guard(Token);

/// Why somebody does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is nothing at that path.
    NoSuchPath,
    /// No token, or another one.
    NoToken,
}

impl Guard {
    pub const fn new(token: Token) -> Self {
        Self(token)
    }

    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        if request.uri().path() != PATH {
            return Err(Refusal::NoSuchPath);
        }
        let mut given = request.headers().get_all(AUTHORIZATION).iter();
        match (given.next().and_then(bearer), given.next()) {
            (Some(token), None) if self.0.is(token) => Ok(()),
            (Some(_) | None, Some(_) | None) => Err(Refusal::NoToken),
        }
    }
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl From<Refusal> for Response<BoxBody<Bytes, Infallible>> {
    fn from(refusal: Refusal) -> Self {
        let (status, text) = match refusal {
            Refusal::NoSuchPath => (StatusCode::NOT_FOUND, "there is nothing here but /mcp\n"),
            Refusal::NoToken => {
                (StatusCode::UNAUTHORIZED, "send the token: `Authorization: Bearer TOKEN`\n")
            }
        };
        let mut response = Self::new(Full::from(text).boxed());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if refusal == Refusal::NoToken {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, given: &[&str]) -> Result<(), Refusal> {
        let token = Token::try_from("0123456789abcdef".to_owned()).unwrap();
        let mut request = Request::builder().uri(path);
        for value in given {
            request = request.header(AUTHORIZATION, *value);
        }
        Guard::new(token).check(&request.body(()).unwrap())
    }

    #[test]
    fn the_token_opens_the_one_path() {
        assert_eq!(asked("/mcp", &["Bearer 0123456789abcdef"]), Ok(()));
        assert_eq!(asked("/mcp?x=1", &["bearer 0123456789abcdef"]), Ok(()));
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
            assert_eq!(asked("/mcp", given), Err(Refusal::NoToken), "{given:?}");
        }
        for path in ["/", "/mcp/", "/mcp/x", "/.well-known/oauth-protected-resource"] {
            assert_eq!(asked(path, &["Bearer 0123456789abcdef"]), Err(Refusal::NoSuchPath));
        }
    }
}
