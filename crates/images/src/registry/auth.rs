//! What a registry asks of its users: a password with each request, or a token of another host.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use serde::Deserialize;

use super::credentials::Credentials;

/// Upper bound of a token's document, and of a token.
pub(super) const MAX_TOKEN_BYTES: u64 = 256 << 10;

/// What `WWW-Authenticate` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and a password.
    Basic,
    /// A token, to be had at `realm`.
    Bearer { realm: String, service: Option<String> },
}

impl Challenge {
    /// Reads a challenge. Nothing for kinds that are not known.
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        match scheme.to_ascii_lowercase().as_str() {
            "basic" => Some(Self::Basic),
            "bearer" => {
                let mut parameters = parse_parameters(rest);
                let mut take = |name: &str| {
                    let at = parameters.iter().position(|(known, _)| known == name)?;
                    Some(parameters.swap_remove(at).1)
                };
                Some(Self::Bearer { realm: take("realm")?, service: take("service") })
            }
            _ => None,
        }
    }
}

/// `name="value"` pairs, parted by commas; a comma or a quoted quote may be in a value.
fn parse_parameters(text: &str) -> Vec<(String, String)> {
    let mut parameters = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',', '\t']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, after) = after.split_once(',').unwrap_or((after, ""));
                (value.trim().to_owned(), after)
            }
        };
        parameters.push((name, value));
        rest = after;
    }
    parameters
}

fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(letters.next().map(|(_, letter)| letter)),
            letter => value.push(letter),
        }
    }
    (value, "")
}

/// The header for a name and a password. Nothing where they cannot be in one.
pub(super) fn basic_header(user: &str, password: &str) -> Option<HeaderValue> {
    let pair = STANDARD.encode(format!("{user}:{password}"));
    secret_header(&format!("Basic {pair}"))
}

fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// What a session does with its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepositoryAccess {
    /// Reads it.
    Pull,
    /// Reads and writes it.
    Push,
}

impl RepositoryAccess {
    /// The actions that a token's scope names.
    fn actions(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "pull,push",
        }
    }
}

/// How a token is asked for.
#[derive(Debug)]
pub(super) struct TokenRequest {
    /// Appended to the realm, or sent as a form.
    pub query: String,
    /// Sent as a form, by `POST`.
    pub is_form: bool,
    pub authorization: Option<HeaderValue>,
}

/// The request for a token that lets one repository be read, or written by a push, and nothing else, whatever
/// the challenge names.
pub(super) fn token_request(
    service: Option<&str>,
    (repository, access): (&str, RepositoryAccess),
    credentials: Option<&Credentials>,
) -> TokenRequest {
    let scope = format!("repository:{repository}:{}", access.actions());
    let mut query = format!("scope={}", encode_query(&scope));
    if let Some(service) = service {
        query = format!("service={}&{query}", encode_query(service));
    }
    match credentials {
        Some(Credentials::IdentityToken(token)) => TokenRequest {
            query: format!(
                "grant_type=refresh_token&client_id=stockade&refresh_token={}&{query}",
                encode_query(token)
            ),
            is_form: true,
            authorization: None,
        },
        Some(Credentials::Password { user, password }) => {
            TokenRequest { query, is_form: false, authorization: basic_header(user, password) }
        }
        None => TokenRequest { query, is_form: false, authorization: None },
    }
}

fn encode_query(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

/// The header for the token of an answer. Nothing where it has none.
pub(super) fn bearer_header(answer: &[u8]) -> Option<HeaderValue> {
    let answer: TokenAnswer = serde_json::from_slice(answer).ok()?;
    let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty())?;
    secret_header(&format!("Bearer {token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_in_any_order_with_commas_in_quotes() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
        };
        for (header, challenge) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            ("Bearer realm=\"https://a/t\",service=\"s\"", bearer("https://a/t", Some("s"))),
            ("Bearer scope=\"a:b:c,d\", realm=\"https://a/t\"", bearer("https://a/t", None)),
            ("bearer realm=https://a/t", bearer("https://a/t", None)),
            ("Bearer realm=\"a\\\"b\"", bearer("a\"b", None)),
            ("Bearer service=\"s\"", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), challenge, "{header}");
        }
    }

    #[test]
    fn a_token_is_asked_for_one_repository_and_for_writing_only_by_a_push() {
        let request = token_request(Some("a b&c"), ("team/x", RepositoryAccess::Pull), None);
        assert_eq!(request.query, "service=a%20b%26c&scope=repository:team/x:pull");
        let request = token_request(None, ("team/x", RepositoryAccess::Push), None);
        assert_eq!(request.query, "scope=repository:team/x:pull%2Cpush");
        let identity = Credentials::IdentityToken("s=1".to_owned());
        let request = token_request(None, ("x", RepositoryAccess::Pull), Some(&identity));
        assert!(request.is_form && request.query.contains("refresh_token=s%3D1&"));
    }

    #[test]
    fn a_token_that_would_break_a_header_is_none() {
        assert!(bearer_header(br#"{"token":"abc"}"#).is_some_and(|header| header.is_sensitive()));
        assert!(bearer_header(br#"{"access_token":"abc"}"#).is_some());
        assert_eq!(bearer_header(br#"{"token":"a\nb: c"}"#), None);
        assert_eq!(bearer_header(b"{}"), None);
    }
}
