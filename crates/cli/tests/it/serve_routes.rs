//! Every operation of the OpenAPI document, one after the other: one that is added is tried here without a change. Whoever
//! has no token or not the right, comes from a page of another site, or names what belongs to others, gets nothing.

use serde_json::{Value, json};

use crate::common::CliPlace;
use crate::common::api::{ApiDaemon, HttpReply};
use crate::serve_tenants::{TenantThings, issue, make_things};

/// Operations that there were when this was written: a document that is read wrongly has fewer.
const MIN_OPERATIONS: usize = 40;
/// Patterns of ids in the document.
const SHORT_ID_PATTERN: &str = "^[a-z0-9]{1,32}$";
const SNAPSHOT_ID_PATTERN: &str = "^[a-z0-9]{1,64}$";

/// One method of one path of the document.
struct RouteOperation {
    method: String,
    path: String,
    document: Value,
}

fn list_operations(daemon: &ApiDaemon) -> Vec<RouteOperation> {
    let document = daemon.ask("GET", "/v1/openapi.json", b"").json();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, document) in methods.as_object().unwrap() {
            if method != "parameters" {
                let (method, document) = (method.to_uppercase(), document.clone());
                operations.push(RouteOperation { method, path: path.clone(), document });
            }
        }
    }
    assert!(operations.len() >= MIN_OPERATIONS);
    operations
}

impl RouteOperation {
    /// The right that the document says it needs; none where it is open to all.
    fn right(&self) -> Option<&str> {
        if self.document["security"] == json!([]) {
            return None;
        }
        let description = self.document["description"].as_str().unwrap_or_default();
        let named = description.split("Needs the right `").nth(1);
        let right = named.and_then(|rest| rest.split('`').next());
        assert!(right.is_some(), "{} {} names no right", self.method, self.path);
        right
    }

    /// A path that names nothing.
    fn empty_path(&self) -> String {
        self.path.replace("{id}", "none")
    }

    /// Its path and query with the ids of these things; none where it takes no id there.
    fn path_with(&self, things: &TenantThings) -> Option<String> {
        let in_path = self.path.contains("{id}");
        let path = if in_path { things.fill_path(&self.path) } else { self.path.clone() };
        let mut query = Vec::new();
        let mut in_query = false;
        let parameters = self.document["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|one| one["in"] == "query") {
            let id = match parameter["schema"]["pattern"].as_str() {
                Some(SHORT_ID_PATTERN) => Some(&things.sandbox),
                Some(SNAPSHOT_ID_PATTERN) => Some(&things.snapshot),
                Some(_) | None => None,
            };
            let name = parameter["name"].as_str().unwrap();
            in_query |= id.is_some();
            match id {
                Some(id) => query.push(format!("{name}={id}")),
                None if parameter["required"] == json!(true) => query.push(format!("{name}=x")),
                None => {}
            }
        }
        (in_path || in_query).then(|| format!("{path}?{}", query.join("&")))
    }
}

/// What an answer says, apart from the time and from the ids that were asked for.
fn describe_reply(reply: &HttpReply, things: &TenantThings) -> (String, String) {
    let lines = reply.head.lines().filter(|line| !line.starts_with("date:"));
    let head = lines.collect::<Vec<_>>().join("\n");
    let mut body = String::from_utf8_lossy(&reply.body).into_owned();
    for id in [&things.sandbox, &things.job, &things.snapshot] {
        body = body.replace(id.as_str(), "ID");
    }
    (head, body)
}

/// Ids of the same form, of things that never were.
fn invent_things(like: &TenantThings) -> TenantThings {
    let [sandbox, job, snapshot] =
        [&like.sandbox, &like.job, &like.snapshot].map(|id| id.chars().rev().collect::<String>());
    TenantThings { sandbox, job, snapshot }
}

#[test]
fn things_of_another_tenant_are_answered_like_things_that_never_were() {
    let place = CliPlace::new();
    let one = issue(&place, &["one", "--rights", "admin"]);
    let other = issue(&place, &["other", "--rights", "admin"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let things = make_things(&daemon, &one);
    let invented = invent_things(&things);
    let answer = |method: &str, path: &str, body: &str, things: &TenantThings| {
        describe_reply(&daemon.ask_as(&other, method, path, body.as_bytes()), things)
    };
    for operation in list_operations(&daemon) {
        let paths = (operation.path_with(&things), operation.path_with(&invented));
        let (Some(real), Some(unreal)) = paths else { continue };
        for body in ["", "{}", "[]"] {
            let foreign = answer(&operation.method, &real, body, &things);
            let nothing = answer(&operation.method, &unreal, body, &invented);
            assert_eq!(foreign, nothing, "{} {real}", operation.method);
        }
    }
    // Ids in bodies.
    let own = daemon.ask_as(&other, "POST", "/v1/sandboxes", b"{}").id(201);
    let restore = format!("/v1/sandboxes/{own}/restore");
    for (path, field) in [("/v1/sandboxes", "from"), (restore.as_str(), "snapshot")] {
        let [foreign, nothing] = [&things, &invented].map(|things| {
            answer("POST", path, &json!({ field: things.snapshot }).to_string(), things)
        });
        assert_eq!(foreign, nothing, "{path}");
    }
    // Nothing of it was changed.
    let path = format!("/v1/executions/{}", things.job);
    assert_eq!(daemon.ask_as(&one, "GET", &path, b"").json()["state"], "running");
    let path = format!("/v1/snapshots/{}", things.snapshot);
    assert_eq!(daemon.ask_as(&one, "GET", &path, b"").status, 200);
}

#[test]
fn each_operation_asks_for_the_right_that_the_document_names() {
    let place = CliPlace::new();
    let tokens = ["read", "run"].map(|right| (right, issue(&place, &[right, "--rights", right])));
    let admin = issue(&place, &["all", "--rights", "admin"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    for operation in list_operations(&daemon) {
        let (method, path) = (&operation.method, operation.empty_path());
        // A body that no operation takes: nothing is made.
        let ask = |token: &str| daemon.ask_as(token, method, &path, b"[]");
        for (right, token) in &tokens {
            match operation.right() {
                Some(needed) if needed != *right => ask(token).is_error(403, "denied"),
                Some(_) | None => assert_ne!(ask(token).status, 403, "{right}: {method} {path}"),
            }
        }
        assert_ne!(ask(&admin).status, 403, "{method} {path}");
    }
}

#[test]
fn no_operation_is_open_to_strangers_or_to_pages_of_other_sites() {
    let place = CliPlace::new();
    let token = issue(&place, &["a", "--rights", "admin"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let (host, key) = (daemon.host(), format!("Authorization: Bearer {token}"));
    for operation in list_operations(&daemon) {
        let path = operation.empty_path();
        let ask = |headers: &[&str]| daemon.ask_tcp(&operation.method, &path, headers);
        match operation.right() {
            Some(_) => ask(&[&host]).is_error(401, "unauthorized"),
            None => assert_eq!(ask(&[&host]).status, 200, "{path}"),
        }
        for wrong in ["Authorization: Bearer x", "Authorization: Basic YTpi", "Authorization: "] {
            ask(&[&host, wrong]).is_error(401, "unauthorized");
        }
        for foreign in ["Host: evil.example", "Host: 127.0.0.1.evil.example:80"] {
            ask(&[foreign, &key]).is_error(403, "denied");
        }
        for foreign in ["Origin: http://evil.example", "Origin: null"] {
            ask(&[&host, &key, foreign]).is_error(403, "denied");
        }
    }
}

#[test]
fn pages_without_a_token_are_refused_on_the_socket_too() {
    let daemon = ApiDaemon::start();
    let ask = |headers: &[&str]| daemon.ask_with("GET", "/v1/sandboxes", headers, b"");
    // A page of this machine may be that of a guest's server, by `stockade port`.
    for origin in ["http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:80"] {
        ask(&[&format!("Origin: {origin}")]).is_error(403, "denied");
    }
    // A name that was made to resolve to this machine; pages read their own site without an origin.
    for host in ["evil.example", "evil.example:80", "169.254.1.1"] {
        daemon.ask_by_name(host, "/v1/sandboxes").is_error(403, "denied");
    }
    for host in ["localhost", "stockade", "127.0.0.1:80", "[::1]:80"] {
        assert_eq!(daemon.ask_by_name(host, "/v1/sandboxes").status, 200, "{host}");
    }
}

#[test]
fn ids_that_could_be_paths_name_nothing_on_any_route() {
    let daemon = ApiDaemon::start();
    let sandbox = daemon.create("{}");
    let state = format!("/v1/sandboxes/{sandbox}");
    let mut tricks: Vec<_> =
        ["..", ".", "", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "%ff", "%20", "A", "*"]
            .map(str::to_owned)
            .to_vec();
    let endings = ["%00", "%2f", "%2f..", "%20", "%0a", "%3fx", ".", "%2e"];
    tricks.extend(endings.map(|ending| format!("{sandbox}{ending}")));
    tricks.push(sandbox.to_uppercase());
    tricks.push("a".repeat(4096));
    for operation in list_operations(&daemon) {
        if !operation.path.contains("{id}") {
            continue;
        }
        for trick in &tricks {
            let path = operation.path.replace("{id}", trick);
            daemon.ask(&operation.method, &path, b"").is_error(404, "not-found");
        }
    }
    assert_eq!(daemon.ask("GET", &state, b"").json()["state"], "running");
}

mod needs_root {
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn another_user_gets_no_answer_on_the_socket() {
        let daemon = ApiDaemon::start_in(CliPlace::of_an_ordinary_user(), &[]);
        let dir = std::fs::metadata(daemon.socket.parent().unwrap()).unwrap();
        assert_eq!(dir.mode() & 0o077, 0);
        // Root passes the modes of directory and socket, and is another user all the same.
        let mut stream = daemon.connect();
        let _ = stream.write_all(b"GET /v1/health HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
}
