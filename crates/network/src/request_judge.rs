//! Requests to hosts of which rules name methods or paths: each is judged by the rules in force when it comes, over
//! TLS too, which ends here for that. What cannot be judged does not pass to such a host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, Request};
use stockade_core::{
    EgressDecision, EgressRule, RequestPath, RequestPathError, clean_foreign, decide_request,
    is_plain_method, judges_requests,
};
use tokio::sync::watch;

use crate::asking::add_grant;
use crate::policy::{Denial, Egress, EgressTarget};

/// The longest path that is shown, recorded or proposed. Its query never is: secrets stand there.
const MAX_SHOWN_PATH_CHARS: usize = 120;
/// The longest method that is shown.
const MAX_SHOWN_METHOD_CHARS: usize = 32;
/// Headers by which servers are told another method or another path than the request line has. `Destination` is the
/// second path of a WebDAV `COPY` or `MOVE`.
const OVERRIDE_HEADERS: [&str; 15] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
    "x-forwarded-method",
    "x-original-url",
    "x-original-uri",
    "x-original-path",
    "x-forwarded-uri",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-envoy-original-path",
    "x-rewrite-url",
    "x-rewrite-uri",
    "destination",
];
/// Parameters of a query by which servers are told another method.
const OVERRIDE_PARAMETERS: [&str; 4] =
    ["_method", "x_http_method_override", "x_http_method", "x_method_override"];

/// What a connection carries.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CarriedTraffic {
    /// Nothing was let through yet.
    Nothing,
    /// Bytes that are not looked into.
    Opaque,
    /// Requests; the last of them, where there was one.
    Requests(Option<AskedRequest>),
}

/// What a request asks for, as far as rules are about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AskedRequest {
    method: String,
    path: Result<RequestPath, RequestPathError>,
    /// The header or parameter by which it may name another request than its line does, in words.
    override_place: Option<String>,
    /// Method and path as they are shown and recorded: cut and cleaned.
    shown_method: String,
    shown_path: String,
}

/// Judges the requests of one connection.
pub struct RequestJudge {
    rules: watch::Receiver<Arc<[EgressRule]>>,
    /// What was granted to this connection alone.
    grant: Option<EgressRule>,
    target: EgressTarget,
    port: u16,
    carried: Mutex<CarriedTraffic>,
}

impl RequestJudge {
    /// For a connection to this host.
    pub fn new(
        egress: &Egress,
        target: &EgressTarget,
        port: u16,
        grant: Option<EgressRule>,
    ) -> Self {
        let carried = Mutex::new(CarriedTraffic::Nothing);
        Self { rules: egress.follow_rules(), grant, target: target.clone(), port, carried }
    }

    fn lock(&self) -> MutexGuard<'_, CarriedTraffic> {
        // Nothing panics half-way through a change.
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current_rules(&self) -> Arc<[EgressRule]> {
        add_grant(self.rules.borrow().clone(), self.grant.as_ref())
    }

    fn is_needed_by(&self, rules: &[EgressRule]) -> bool {
        match &self.target {
            EgressTarget::Name(name) => judges_requests(rules, name, self.port),
            EgressTarget::Address(_) => false,
        }
    }

    /// Whether requests to this host are judged by the rules in force, so that nothing else may pass.
    pub fn is_needed(&self) -> bool {
        self.is_needed_by(&self.current_rules())
    }

    /// Notes that the connection carries bytes that are not looked into.
    pub fn note_opaque(&self) {
        *self.lock() = CarriedTraffic::Opaque;
    }

    /// Notes that the connection carries requests, each of which is checked.
    pub fn begin_requests(&self) {
        *self.lock() = CarriedTraffic::Requests(None);
    }

    /// Whether a request may pass.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Denial> {
        let asked = AskedRequest::new(request);
        *self.lock() = CarriedTraffic::Requests(Some(asked.clone()));
        let rules = self.current_rules();
        if self.is_needed_by(&rules) { self.judge(&rules, &asked) } else { Ok(()) }
    }

    /// Whether what the connection carries may go on under other rules. Its last request counts also after it was
    /// answered: a connection that became a WebSocket carries nothing else.
    pub fn recheck(&self, rules: &[EgressRule]) -> Result<(), Denial> {
        if !self.is_needed_by(rules) {
            return Ok(());
        }
        match &*self.lock() {
            CarriedTraffic::Nothing | CarriedTraffic::Requests(None) => Ok(()),
            CarriedTraffic::Opaque => Err(describe_opaque(&self.target).into()),
            CarriedTraffic::Requests(Some(asked)) => self.judge(rules, asked),
        }
    }

    fn judge(&self, rules: &[EgressRule], asked: &AskedRequest) -> Result<(), Denial> {
        let EgressTarget::Name(name) = &self.target else { return Ok(()) };
        let shown = self.describe(asked);
        if let Some(place) = &asked.override_place {
            let reason = format!("`{shown}` has {place}, which may name another request");
            return Err(asked.deny(reason, None));
        }
        if !is_plain_method(&asked.method) {
            let reason = format!("the method of `{shown}` is not a word in capital letters");
            return Err(asked.deny(reason, None));
        }
        let path = match &asked.path {
            Ok(path) => path,
            Err(error) => {
                let reason = format!("the path of `{shown}` can be read in two ways: {error}");
                return Err(asked.deny(reason, None));
            }
        };
        match decide_request(rules, (name, self.port), &asked.method, path) {
            EgressDecision::Allowed(_) => Ok(()),
            EgressDecision::Denied(rule) => {
                Err(asked.deny(format!("`{shown}` is denied by `{rule}`"), None))
            }
            EgressDecision::NoRule => Err(self.propose_rule(asked, path)),
        }
    }

    fn propose_rule(&self, asked: &AskedRequest, path: &RequestPath) -> Denial {
        let shown = self.describe(asked);
        let host = self.target.rule_for(self.port);
        let rule = format!("{}@{host}{path}", asked.method).parse::<EgressRule>().ok();
        match rule.filter(|_| is_plain_to_paste(path.as_str())) {
            Some(rule) => {
                let reason = format!("no rule allows `{shown}`; `--net {rule}` would");
                asked.deny(reason, Some(rule.to_string()))
            }
            None => asked.deny(format!("no rule allows `{shown}`"), None),
        }
    }

    /// `GET a.org/v1`.
    fn describe(&self, asked: &AskedRequest) -> String {
        let host = self.target.rule_for(self.port);
        format!("{} {host}{}", asked.shown_method, asked.shown_path)
    }
}

impl AskedRequest {
    fn new<B>(request: &Request<B>) -> Self {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let parsed = RequestPath::parse(path);
        let shown_path = parsed.as_ref().map_or(path, RequestPath::as_str);
        Self {
            shown_method: cut_shown(method, MAX_SHOWN_METHOD_CHARS),
            shown_path: cut_shown(shown_path, MAX_SHOWN_PATH_CHARS),
            method: method.to_owned(),
            path: parsed,
            override_place: find_override(request),
        }
    }

    fn deny(&self, reason: String, missing_rule: Option<String>) -> Denial {
        let request = format!("{} {}", self.shown_method, self.shown_path);
        Denial { reason, missing_rule, request: Some(request) }
    }
}

/// Guest input in at most so many characters.
fn cut_shown(text: &str, max_chars: usize) -> String {
    let mut cut: String = text.chars().take(max_chars).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    clean_foreign(&cut)
}

/// Whether a path is one that may be proposed: short, and nothing in it that a shell would obey.
fn is_plain_to_paste(path: &str) -> bool {
    path.len() <= MAX_SHOWN_PATH_CHARS
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/%+=:@".contains(&byte))
}

fn find_override<B>(request: &Request<B>) -> Option<String> {
    if let Some(header) = find_override_header(request.headers()) {
        return Some(format!("the header `{header}`"));
    }
    let parameter = find_override_parameter(request.uri().query()?)?;
    Some(format!("the parameter `{parameter}`"))
}

fn find_override_header(headers: &HeaderMap) -> Option<&'static str> {
    // Many servers read `_` and `-` in a name as the same.
    let names = headers.keys().map(|name| name.as_str().replace('_', "-"));
    find_known(names, &OVERRIDE_HEADERS)
}

fn find_override_parameter(query: &str) -> Option<&'static str> {
    find_known(query.split(['&', ';']).map(fold_parameter_name), &OVERRIDE_PARAMETERS)
}

fn find_known(
    mut names: impl Iterator<Item = String>,
    known: &[&'static str],
) -> Option<&'static str> {
    names.find_map(|name| known.iter().copied().find(|known| *known == name))
}

/// The name of a parameter as the most lenient server reads it: decoded, in small letters, up to an index in brackets,
/// and with `_` for the characters that PHP replaces by it.
fn fold_parameter_name(parameter: &str) -> String {
    let name = parameter.split('=').next().unwrap_or_default().replace('+', " ");
    let decoded = decode_escapes(&name).to_ascii_lowercase();
    let name = decoded.split(['[', '\0']).next().unwrap_or_default();
    name.trim().replace(['-', '.', ' '], "_")
}

/// The text with every `%` and its two digits decoded, as far as they are digits.
fn decode_escapes(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = after.get(..2).filter(|_| *first == b'%');
        let digits = escape.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Why bytes that would not be looked into do not pass.
pub fn describe_opaque(target: &EgressTarget) -> String {
    format!("rules name methods or paths of `{target}`, so it is reached by HTTP and HTTPS only")
}

/// Why TLS that cannot be opened does not pass.
pub fn describe_unopened(target: &EgressTarget) -> String {
    format!(
        "rules name methods or paths of `{target}`, and this sandbox has no authority to open TLS with"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_name_another_method_are_found_in_every_spelling() {
        for query in [
            "_method=DELETE",
            "a=1&_method=DELETE",
            "a=1;_METHOD=delete",
            "_method",
            "%5fmethod=DELETE",
            "_%4dethod=DELETE",
            ".method=DELETE",
            "-method=DELETE",
            "+_method=DELETE",
            "%20_method%20=DELETE",
            "_method[]=DELETE",
            "_method%5B0%5D=DELETE",
            "_method%00x=DELETE",
            "X-HTTP-Method-Override=DELETE",
            "x_http_method=DELETE",
        ] {
            assert!(find_override_parameter(query).is_some(), "{query}");
        }
        for query in ["", "method=card", "payment_method=card", "a=_method", "a=%26_method=x", "%"]
        {
            assert_eq!(find_override_parameter(query), None, "{query}");
        }
    }
}
