//! Which requests of HTTP a rule is about: methods, and the beginning of a path.

use std::fmt;

use crate::request_path::{RequestPath, RequestPathError};

/// The longest method.
const MAX_METHOD_BYTES: usize = 32;
/// The most methods of one rule.
const MAX_METHODS: usize = 16;
/// An optional last character of a rule's path: `/v1/*` means the same as `/v1/`.
const BELOW_SUFFIX: char = '*';
/// The method of proxies, which no server gets.
const CONNECT_METHOD: &str = "CONNECT";

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
