//! Which requests of HTTP a rule is about: methods, and the beginning of a path.
//!
//! Paths are compared in one form. A path that two servers could read in two ways has no such form: it is refused,
//! never guessed.

use std::fmt;
use std::fmt::Write as _;

use crate::lookalike::is_lookalike;

/// The longest path that is judged.
const MAX_PATH_BYTES: usize = 8 * 1024;
/// The longest method.
const MAX_METHOD_BYTES: usize = 32;
/// The most methods of one rule.
const MAX_METHODS: usize = 16;
/// What a rule's path may end in, to say what it says anyway: everything below.
const BELOW_SUFFIX: char = '*';
/// The method of proxies, which no server gets.
const CONNECT_METHOD: &str = "CONNECT";

/// The path of a request, without its query, in the form that rules are compared with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestPath {
    /// Unreserved characters as they are, all others as they came, escapes in capitals.
    canonical: String,
    /// Decoded, without regard to case, and without the spaces and dots that a lenient server drops at the ends of
    /// segments. Rules that deny are compared with this.
    folded: String,
}

/// Why a path has no form that all servers agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestPathError {
    /// It is `*`, or nothing.
    #[error("it does not begin with `/`")]
    NotAbsolute,
    /// It is longer than what is judged.
    #[error("it is longer than 8192 bytes")]
    TooLong,
    /// `.` or `..` is a segment, also where it is encoded, or is one for servers that drop spaces.
    #[error("a part of it is `.` or `..`, or nothing but dots and spaces")]
    DotSegment,
    /// Some servers read `//` as `/`, and a segment of spaces as none.
    #[error("a part of it is empty, as in `//`")]
    EmptySegment,
    /// A backslash, `;`, a control character or another one that is not a path's.
    #[error("a character in it is not read alike by all servers")]
    Character,
    /// An encoded slash, backslash, `;`, `?`, `#`, `%` or control character.
    #[error("a character is encoded in it that is not read alike by all servers")]
    Encoded,
    /// A fullwidth dot, an invisible character or the like.
    #[error("a character in it is taken for another one, or left out, by some servers")]
    Lookalike,
    /// `%` without two digits, or bytes that are no text.
    #[error("its encoding is wrong")]
    Malformed,
}

impl RequestPath {
    /// Reads the path of a request.
    pub fn parse(path: &str) -> Result<Self, RequestPathError> {
        if path.len() > MAX_PATH_BYTES {
            return Err(RequestPathError::TooLong);
        }
        if !path.starts_with('/') {
            return Err(RequestPathError::NotAbsolute);
        }
        let (canonical, decoded) = decode_path(path)?;
        if decoded.chars().any(is_lookalike) {
            return Err(RequestPathError::Lookalike);
        }
        check_segments(&decoded)?;
        Ok(Self { canonical, folded: fold_path(&decoded) })
    }

    /// The path in its canonical form.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }
}

impl fmt::Display for RequestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical)
    }
}

/// The canonical form, and the text with every escape decoded.
fn decode_path(path: &str) -> Result<(String, String), RequestPathError> {
    let mut canonical = String::with_capacity(path.len());
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let byte;
        (byte, rest) = match first {
            b'%' => read_escape(after, &mut canonical)?,
            plain if is_plain(*plain) => {
                canonical.push(char::from(*plain));
                (*plain, after)
            }
            _ => return Err(RequestPathError::Character),
        };
        decoded.push(byte);
    }
    let decoded = String::from_utf8(decoded).map_err(|_| RequestPathError::Malformed)?;
    Ok((canonical, decoded))
}

/// Reads what follows a `%`: the byte, and what comes after it.
fn read_escape<'a>(
    after: &'a [u8],
    canonical: &mut String,
) -> Result<(u8, &'a [u8]), RequestPathError> {
    let Some(([high, low], rest)) = after.split_first_chunk() else {
        return Err(RequestPathError::Malformed);
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
        return Err(RequestPathError::Malformed);
    };
    let byte = high << 4 | low;
    if byte.is_ascii_control() || b"/\\;%?#".contains(&byte) {
        return Err(RequestPathError::Encoded);
    }
    if is_unreserved(byte) {
        canonical.push(char::from(byte));
    } else {
        // Writing to a string does not fail.
        let _ = write!(canonical, "%{byte:02X}");
    }
    Ok((byte, rest))
}

/// Characters that mean the same encoded and as they are.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Characters that stand in a path as they are. `;` would too, but servers cut a path at it, or do not.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,=:@/".contains(&byte)
}

/// Some servers drop spaces at the ends of a segment, so that `.. ` is `..`, and some read `+` as a space.
fn check_segments(decoded: &str) -> Result<(), RequestPathError> {
    let is_dotted = |segment: &str| {
        segment.contains('.') && segment.chars().all(|sign| matches!(sign, '.' | ' ' | '+'))
    };
    let is_blank = |segment: &str| !segment.is_empty() && segment.trim_matches(' ').is_empty();
    if decoded.split('/').any(is_dotted) {
        return Err(RequestPathError::DotSegment);
    }
    if decoded.contains("//") || decoded.split('/').any(is_blank) {
        return Err(RequestPathError::EmptySegment);
    }
    Ok(())
}

/// The path as the most lenient server takes it. By way of capitals, so that `ß` is `ss` and a dotless `ı` is `i`.
fn fold_path(decoded: &str) -> String {
    let fold = |segment: &str| {
        segment.trim_start_matches(' ').trim_end_matches([' ', '.']).to_uppercase().to_lowercase()
    };
    decoded.split('/').map(fold).collect::<Vec<_>>().join("/")
}

/// Whether a method is written as rules write methods: a few capitals. Servers may take others for one of those.
pub fn is_plain_method(method: &str) -> bool {
    (1..=MAX_METHOD_BYTES).contains(&method.len())
        && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
}

/// The requests that a rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestScope {
    /// In order, each once. None: every method.
    methods: Vec<String>,
    /// None: every path.
    path: Option<RequestPath>,
}

/// What is wrong with the methods or the path of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestScopeError {
    #[error("methods are given in capitals, with `+` between them: `GET+HEAD@host`")]
    Methods,
    #[error("its path can be read in two ways: {0}")]
    Path(#[from] RequestPathError),
    #[error("a path covers what is below it, and holds no `,` and no `*` but in `/*` at its end")]
    Sign,
}

impl RequestScope {
    /// Reads methods as in `GET+HEAD`, and a path as in `/v1/*`.
    pub fn parse(methods: Option<&str>, path: Option<&str>) -> Result<Self, RequestScopeError> {
        let methods = methods.map(parse_methods).transpose()?.unwrap_or_default();
        let path = path.map(parse_prefix).transpose()?.flatten();
        Ok(Self { methods, path })
    }

    /// Whether it is about every request.
    pub fn is_everything(&self) -> bool {
        self.methods.is_empty() && self.path.is_none()
    }

    /// Whether a rule that allows these requests allows this one.
    pub fn allows(&self, method: &str, path: &RequestPath) -> bool {
        let is_below = |prefix: &RequestPath| is_at_or_below(&path.canonical, &prefix.canonical);
        self.has_method(method) && self.path.as_ref().is_none_or(is_below)
    }

    /// Whether a rule that denies these requests denies this one: also if only some servers take it for one of them.
    pub fn denies(&self, method: &str, path: &RequestPath) -> bool {
        let is_below = |prefix: &RequestPath| {
            is_at_or_below(&path.folded, prefix.folded.strip_suffix('/').unwrap_or(&prefix.folded))
        };
        self.has_method(method) && self.path.as_ref().is_none_or(is_below)
    }

    fn has_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|known| known == method)
    }

    /// What stands before the host: `GET+HEAD@`.
    pub fn write_methods(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.methods.is_empty() {
            return Ok(());
        }
        write!(f, "{}@", self.methods.join("+"))
    }

    /// What stands behind the host: `/v1/`.
    pub fn write_path(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.as_ref().map_or(Ok(()), |path| write!(f, "{path}"))
    }
}

/// `/a` has `/a`, `/a/` and `/a/b` below it, and not `/ab`; `/a/` has `/a/b`, and not `/a`.
fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/'))
}

fn parse_methods(given: &str) -> Result<Vec<String>, RequestScopeError> {
    let mut methods: Vec<_> = given.split('+').map(str::to_owned).collect();
    let is_named = |method: &String| is_plain_method(method) && method != CONNECT_METHOD;
    if methods.len() > MAX_METHODS || !methods.iter().all(is_named) {
        return Err(RequestScopeError::Methods);
    }
    methods.sort_unstable();
    methods.dedup();
    Ok(methods)
}

/// Nothing for `/`, which every path is below.
fn parse_prefix(given: &str) -> Result<Option<RequestPath>, RequestScopeError> {
    let below = given.strip_suffix(BELOW_SUFFIX).filter(|rest| rest.ends_with('/'));
    let prefix = below.unwrap_or(given);
    // A list of rules is cut at commas.
    if prefix.contains([BELOW_SUFFIX, ',']) {
        return Err(RequestScopeError::Sign);
    }
    let path = RequestPath::parse(prefix)?;
    Ok((path.canonical != "/").then_some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form() {
        for (given, canonical) in [
            ("/", "/"),
            ("/v1/users", "/v1/users"),
            ("/v1/", "/v1/"),
            ("/%7euser/%41%2d", "/~user/A-"),
            ("/a%20b/%c3%a9%2B", "/a%20b/%C3%A9%2B"),
            ("/@scope/a+b,c=d:e!$&'()*", "/@scope/a+b,c=d:e!$&'()*"),
            ("/.hidden/a..b", "/.hidden/a..b"),
            ("/a./b..", "/a./b.."),
            ("/+/a%20", "/+/a%20"),
        ] {
            assert_eq!(RequestPath::parse(given).unwrap().as_str(), canonical, "{given}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        use RequestPathError::*;
        for (given, error) in [
            ("", NotAbsolute),
            ("*", NotAbsolute),
            ("v1", NotAbsolute),
            ("/v1/../admin", DotSegment),
            ("/v1/..", DotSegment),
            ("/./v1", DotSegment),
            ("/v1/%2e%2E/admin", DotSegment),
            ("/v1/.%2e/admin", DotSegment),
            ("/v1/..%20/admin", DotSegment),
            ("/v1/%20../admin", DotSegment),
            ("/v1/.%20./admin", DotSegment),
            ("/v1/..+/admin", DotSegment),
            ("/v1/.../admin", DotSegment),
            ("/v1/%20/admin", EmptySegment),
            ("/v1/%ef%bc%8e%ef%bc%8e/admin", Lookalike),
            ("/v1/%e2%80%a5/admin", Lookalike),
            ("/v1/..%ef%bc%8fadmin", Lookalike),
            ("/v1/..%e2%88%95admin", Lookalike),
            ("/v1/..%cd%be/admin", Lookalike),
            ("/v1/.%e2%80%8b./admin", Lookalike),
            ("/v1/..%c2%a0/admin", Lookalike),
            ("/%ef%bd%81dmin", Lookalike),
            ("/ad%c2%admin", Lookalike),
            ("/v1/%u002e%u002e/admin", Malformed),
            ("//admin", EmptySegment),
            ("/v1//admin", EmptySegment),
            ("/v1%2fadmin", Encoded),
            ("/v1%2Fadmin", Encoded),
            ("/v1%5cadmin", Encoded),
            ("/v1%00", Encoded),
            ("/v1%0d%0a", Encoded),
            ("/v1%7f", Encoded),
            ("/v1%3badmin", Encoded),
            ("/v1%3f", Encoded),
            ("/v1%23", Encoded),
            ("/v1/%252e%252e", Encoded),
            ("/v1/..;/admin", Character),
            ("/v1;x=1", Character),
            ("/v1\\admin", Character),
            ("/v1?x", Character),
            ("/v1#x", Character),
            ("/v 1", Character),
            ("/v1\0", Character),
            ("/é", Character),
            ("/%c0%ae%c0%ae", Malformed),
            ("/%ff", Malformed),
            ("/%", Malformed),
            ("/%4", Malformed),
            ("/%zz", Malformed),
            ("/%+1", Malformed),
        ] {
            assert_eq!(RequestPath::parse(given), Err(error), "{given:?}");
        }
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        assert_eq!(RequestPath::parse(&long), Err(TooLong));
    }

    fn scope(methods: Option<&str>, path: Option<&str>) -> RequestScope {
        RequestScope::parse(methods, path).unwrap()
    }

    #[test]
    fn a_path_covers_itself_and_what_is_below() {
        let path = |given: &str| RequestPath::parse(given).unwrap();
        for (prefix, given, allowed, denied) in [
            ("/v1", "/v1", true, true),
            ("/v1", "/v1/", true, true),
            ("/v1", "/v1/a", true, true),
            ("/v1", "/v1a", false, false),
            ("/v1", "/V1/a", false, true),
            ("/v1", "/v1%20/a", false, true),
            ("/v1", "/%20v1./a", false, true),
            ("/v1.", "/v1", false, true),
            ("/kiss", "/K%C4%B1%C3%9F", false, true),
            ("/%C3%A9", "/%C3%89/a", false, true),
            ("/v1/", "/v1/a", true, true),
            ("/v1/", "/v1", false, true),
            ("/v1/*", "/v1/", true, true),
            ("/v1/*", "/v2/", false, false),
            ("/%7ea", "/~a/b", true, true),
            ("/a+b", "/a%2bb", false, true),
            ("/a%2bb", "/a+b", false, true),
            ("/", "/anything", true, true),
            ("/*", "/anything", true, true),
        ] {
            let scope = scope(None, Some(prefix));
            assert_eq!(scope.allows("GET", &path(given)), allowed, "{prefix} allows {given}");
            assert_eq!(scope.denies("GET", &path(given)), denied, "{prefix} denies {given}");
        }
    }

    #[test]
    fn methods_are_capitals_in_one_order() {
        let reading = scope(Some("HEAD+GET+HEAD"), None);
        assert_eq!(reading, scope(Some("GET+HEAD"), None));
        let root = RequestPath::parse("/").unwrap();
        assert!(reading.allows("GET", &root) && !reading.allows("POST", &root));
        assert!(!reading.allows("get", &root) && !is_plain_method("get"));
        for wrong in ["", "get", "GET+", "+GET", "GET POST", "CONNECT", "G\0"] {
            assert!(RequestScope::parse(Some(wrong), None).is_err(), "{wrong:?}");
        }
        let many = vec!["GET"; MAX_METHODS + 1].join("+");
        assert!(RequestScope::parse(Some(&many), None).is_err());
    }

    #[test]
    fn a_rule_has_no_pattern_within_its_path() {
        for wrong in ["/*/a", "/v*", "/a*b/", "/a,b", "/**", "/v1/../x", "/v1?x"] {
            assert!(RequestScope::parse(None, Some(wrong)).is_err(), "{wrong}");
        }
        assert!(scope(None, Some("/")).is_everything());
        assert!(scope(None, Some("/*")).is_everything());
    }
}
