//! `stockade serve --listen`: who gets in, and that the holder of a token sees, names and changes only what belongs
//! to its tenant, on every route there is.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::common::CliPlace;
use crate::common::api::ApiDaemon;

pub fn issue(place: &CliPlace, args: &[&str]) -> String {
    let issued = place.stockade(&[&["token", "new"], args].concat());
    issued.code_is(0);
    issued.stdout.trim_end().to_owned()
}

#[test]
fn a_token_is_shown_once_listed_without_its_secret_and_revoked_at_once() {
    let place = CliPlace::new();
    let token = issue(&place, &["ci", "--tenant", "team-a", "--rights", "read"]);
    let listed = place.stockade(&["token", "ls"]);
    assert!(listed.stdout.contains("ci") && listed.stdout.contains("team-a"), "{listed:?}");
    assert!(!listed.stdout.contains(&token));
    place.stockade(&["token", "new", "ci"]).is_refused(&["ci", "token revoke"]);
    place.stockade(&["token", "new", "../x"]).is_refused(&["../x"]);
    place.stockade(&["token", "new", "x", "--rights", "fly"]).is_refused(&["fly", "admin"]);
    place.stockade(&["token", "revoke", "none"]).is_refused(&["none", "token ls"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    assert_eq!(daemon.ask_as(&token, "GET", "/v1/sandboxes", b"").status, 200);
    daemon.place.stockade(&["token", "revoke", "ci"]).code_is(0);
    daemon.ask_as(&token, "GET", "/v1/sandboxes", b"").is_error(401, "unauthorized");
}

#[test]
fn streams_of_a_revoked_token_end_and_those_of_others_go_on() {
    let place = CliPlace::new();
    let revoked = issue(&place, &["old", "--tenant", "team"]);
    let kept = issue(&place, &["new", "--tenant", "team"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let sandbox = daemon.ask_as(&revoked, "POST", "/v1/sandboxes", b"{}").id(201);
    let wait = br#"{"run": {"shell": "echo ready; read line; echo $line"}, "stdin": "stream"}"#;
    let path = format!("/v1/sandboxes/{sandbox}/executions");
    let job = daemon.ask_as(&revoked, "POST", &path, wait).id(201);
    let path = format!("/v1/executions/{job}");
    let [mut cut, mut whole] = [&revoked, &kept].map(|token| {
        let mut stream = daemon.connect_tcp();
        let host = daemon.host();
        write!(
            stream,
            "GET {path}/events HTTP/1.0\r\n{host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .unwrap();
        let mut begun = Vec::new();
        while !begun.ends_with(b"ready\\n\"}\n\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            begun.extend(byte);
        }
        stream
    });
    daemon.place.stockade(&["token", "revoke", "old"]).code_is(0);
    let mut rest = String::new();
    let _ = cut.read_to_string(&mut rest);
    assert!(!rest.contains("event: exit"), "{rest}");
    let input = daemon.ask_as(&kept, "POST", &format!("{path}/input?end=true"), b"end\n");
    assert_eq!(input.status, 204, "{input:?}");
    rest.clear();
    whole.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#"{"text":"end\n"}"#) && rest.contains("event: exit"), "{rest}");
}

#[test]
fn one_tenant_does_not_take_all_connections() {
    let place = CliPlace::new();
    let greedy = issue(&place, &["greedy"]);
    let other = issue(&place, &["other"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let host = daemon.host();
    let key = format!("Authorization: Bearer {greedy}");
    // Each has shown its token, and stays open for a next request.
    let crowd: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = daemon.connect_tcp();
            write!(stream, "GET /v1/health HTTP/1.1\r\n{host}\r\n{key}\r\n\r\n").unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            (stream, status)
        })
        .collect();
    assert!(crowd.iter().any(|(_, status)| status == b"HTTP/1.1 429"));
    assert_eq!(daemon.ask_as(&other, "GET", "/v1/sandboxes", b"").status, 200);
}

#[test]
fn nobody_gets_in_without_a_token_or_under_another_name() {
    let place = CliPlace::new();
    let token = issue(&place, &["a"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let (host, key) = (daemon.host(), format!("Authorization: Bearer {token}"));
    let ask = |headers: &[&str]| daemon.ask_tcp("GET", "/v1/sandboxes", headers);
    assert_eq!(ask(&[&host, &key]).status, 200);
    for headers in [&[&*host][..], &[&host, "Authorization: Bearer x"], &[&host, &key, &key]] {
        ask(headers).is_error(401, "unauthorized");
    }
    for other in ["Host: evil.example", "Host: localhost.evil.example:80"] {
        ask(&[other, &key]).is_error(403, "denied");
    }
    ask(&[&host, &key, "Origin: http://evil.example"]).is_error(403, "denied");
    ask(&[&host, &key, "Origin: null"]).is_error(403, "denied");
    assert_eq!(ask(&[&host, &key, "Origin: http://localhost:3000"]).status, 200);
    // That it works is all that anybody learns.
    assert_eq!(daemon.ask_tcp("GET", "/v1/health", &[&host]).status, 200);
    daemon.ask_tcp("GET", "/v1/openapi.json", &[&host]).is_error(401, "unauthorized");
    daemon.ask_tcp("GET", "/v1/nothing", &[&host]).is_error(401, "unauthorized");
    // On the socket too a token says who asks.
    let on_socket = daemon.ask_with("GET", "/v1/metrics", &[&key], b"");
    on_socket.is_error(403, "denied");
    assert_eq!(daemon.ask("GET", "/v1/metrics", b"").status, 200);
}

#[test]
fn connections_without_a_token_keep_no_holder_of_one_out() {
    let place = CliPlace::new();
    let token = issue(&place, &["a"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let crowd: Vec<_> = (0..400).map(|_| daemon.connect_tcp()).collect();
    assert_eq!(daemon.ask_as(&token, "GET", "/v1/sandboxes", b"").status, 200);
    // The oldest was turned out to make room.
    let mut first = &crowd[0];
    let _ = first.write_all(b"GET /v1/health HTTP/1.0\r\n\r\n");
    let mut answer = String::new();
    let _ = first.read_to_string(&mut answer);
    assert_eq!(answer, "");
}

/// What one tenant has.
pub struct TenantThings {
    pub sandbox: String,
    pub job: String,
    pub snapshot: String,
}

impl TenantThings {
    /// A path of the document with the id of one of these things.
    pub fn fill_path(&self, path: &str) -> String {
        let id = match path.split('/').nth(2) {
            Some("sandboxes") => &self.sandbox,
            Some("snapshots") => &self.snapshot,
            Some("executions" | "jobs") => &self.job,
            Some(_) | None => panic!("{path}"),
        };
        path.replace("{id}", id)
    }
}

pub fn make_things(daemon: &ApiDaemon, token: &str) -> TenantThings {
    let sandbox = daemon.ask_as(token, "POST", "/v1/sandboxes", b"{}").id(201);
    let path = format!("/v1/sandboxes/{sandbox}");
    let sleep = br#"{"run": {"program": ["sleep", "1000"]}}"#;
    let job = daemon.ask_as(token, "POST", &format!("{path}/executions"), sleep).id(201);
    let snapshot = daemon.ask_as(token, "POST", &format!("{path}/snapshots"), b"").id(201);
    TenantThings { sandbox, job, snapshot }
}

/// Every method and path of the document, with the ids of these things.
fn list_requests(daemon: &ApiDaemon, things: &TenantThings) -> Vec<(String, String)> {
    let document = daemon.ask("GET", "/v1/openapi.json", b"").json();
    let fill = |path: &str| {
        let query = if path.contains("/files") { "?path=x" } else { "" };
        format!("{}{query}", things.fill_path(path))
    };
    let paths = document["paths"].as_object().unwrap().iter();
    let named = paths.filter(|(path, _)| path.contains("{id}"));
    let requests = named.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        methods.map(move |method| (method.to_uppercase(), fill(path)))
    });
    requests.collect()
}

#[test]
fn what_belongs_to_another_tenant_is_not_there_on_any_route() {
    let place = CliPlace::new();
    let one = issue(&place, &["one", "--tenant", "one", "--rights", "admin"]);
    let other = issue(&place, &["other", "--tenant", "other", "--rights", "admin"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let things = make_things(&daemon, &one);
    let requests = list_requests(&daemon, &things);
    assert!(requests.len() > 20, "{requests:?}");
    for (method, path) in requests {
        let reply = daemon.ask_as(&other, &method, &path, b"");
        assert_eq!(reply.status, 404, "{method} {path}: {reply:?}");
        reply.is_error(404, "not-found");
    }
    for (path, key) in
        [("/v1/sandboxes", "sandboxes"), ("/v1/snapshots", "snapshots"), ("/v1/jobs", "jobs")]
    {
        let count = |token: &str| {
            let listed = daemon.ask_as(token, "GET", path, b"").json();
            listed[key].as_array().unwrap().len()
        };
        assert_eq!((count(&one), count(&other)), (1, 0), "{path}");
    }
    // What runs is counted when it has ended.
    let usage = daemon.ask_as(&other, "GET", "/v1/usage", b"").json();
    assert_eq!(usage["tenants"].as_array().unwrap().len(), 1, "{usage}");
    assert_eq!(
        (&usage["tenants"][0]["tenant"], &usage["complete"]),
        (&json!("other"), &json!(true))
    );
    let from = json!({ "from": things.snapshot }).to_string();
    daemon.ask_as(&other, "POST", "/v1/sandboxes", from.as_bytes()).is_error(404, "not-found");
    // Nothing of it was changed, and its own tenant and the daemon's user find it.
    let path = format!("/v1/executions/{}", things.job);
    assert_eq!(daemon.ask_as(&one, "GET", &path, b"").json()["state"], "running");
    assert_eq!(daemon.ask("GET", &path, b"").json()["state"], "running");
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_tenant_beyond_its_quota_is_told_when_to_come_again() {
    let place = CliPlace::new();
    let small = issue(&place, &["small"]);
    let other = issue(&place, &["other"]);
    let config = place.path("home/.config/stockade");
    std::fs::create_dir_all(&config).unwrap();
    let spent = issue(&place, &["spent"]);
    let quotas = "[quotas.small]\nexecutions = 1\nstartsPerMinute = 4\n\
                  [quotas.spent]\ncpuSecondsPerHour = 0\n";
    std::fs::write(config.join("config.toml"), quotas).unwrap();
    let daemon = ApiDaemon::start_on_tcp(place);
    let create = |token: &str| daemon.ask_as(token, "POST", "/v1/sandboxes", b"{}");
    let sandbox = create(&small).id(201);
    let path = format!("/v1/sandboxes/{sandbox}/executions");
    let sleep = br#"{"run": {"program": ["sleep", "1000"]}}"#;
    daemon.ask_as(&small, "POST", &path, sleep).id(201);
    let beyond = daemon.ask_as(&small, "POST", &path, sleep);
    beyond.is_error(429, "quota-exceeded");
    assert!(beyond.head.contains("retry-after: "), "{}", beyond.head);
    let beyond = (0..8).map(|_| create(&small)).find(|reply| reply.status != 201).unwrap();
    beyond.is_error(429, "quota-exceeded");
    assert!(beyond.head.contains("retry-after: "), "{}", beyond.head);
    create(&other).id(201);
    let path = format!("/v1/sandboxes/{}/executions", create(&spent).id(201));
    let beyond = daemon.ask_as(&spent, "POST", &path, sleep);
    beyond.is_error(429, "quota-exceeded");
    assert!(beyond.head.contains("retry-after: 3600"), "{}", beyond.head);
}

#[test]
fn what_the_limits_of_a_tenants_sandboxes_add_up_to_is_bounded_for_every_front_end() {
    let place = CliPlace::new();
    let small = issue(&place, &["small"]);
    let config = place.path("home/.config/stockade");
    std::fs::create_dir_all(&config).unwrap();
    let quotas = "[quotas.small]\nmemory = \"96m\"\n[quotas.shares]\ncpus = \"500m\"\n";
    std::fs::write(config.join("config.toml"), quotas).unwrap();
    let daemon = ApiDaemon::start_on_tcp(place);
    let spec = br#"{"spec": {"limits": {"memory": "64m"}}}"#;
    let sandbox = daemon.ask_as(&small, "POST", "/v1/sandboxes", spec).id(201);
    let beyond = daemon.ask_as(&small, "POST", "/v1/sandboxes", spec);
    beyond.is_error(429, "quota-exceeded");
    assert!(beyond.head.contains("retry-after: "), "{}", beyond.head);
    let run = ["run", "--tenant", "small", "--mem", "64m", "--", "true"];
    daemon.place.stockade(&run).is_refused(&["small", "64m of memory", "--mem"]);
    daemon.ask_as(&small, "DELETE", &format!("/v1/sandboxes/{sandbox}"), b"");
    daemon.ask_as(&small, "POST", "/v1/sandboxes", spec).id(201);
    let run = ["run", "--tenant", "shares", "--", "true"];
    daemon.place.stockade(&run).is_refused(&["quota", "--cpu"]);
}

#[test]
fn the_holder_of_a_token_names_nothing_of_the_host() {
    let place = CliPlace::new();
    let token = issue(&place, &["a", "--tenant", "team"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    let workspace = daemon.place.workspace();
    for spec in [
        json!({ "workspace": { "local": workspace } }),
        json!({ "mounts": [{ "source": workspace, "target": "/x" }] }),
        json!({ "image": { "directory": "/" } }),
        json!({ "network": { "egress": ["127.0.0.1"] } }),
        json!({ "without": ["memory-limit"] }),
        json!({ "tenant": "default" }),
    ] {
        let body = json!({ "spec": spec }).to_string();
        let reply = daemon.ask_as(&token, "POST", "/v1/sandboxes", body.as_bytes());
        reply.is_error(403, "denied");
        assert!(reply.json()["error"]["remedy"].is_string(), "{spec}");
    }
    let made = daemon.ask_as(&token, "POST", "/v1/sandboxes", br#"{"spec": {"tenant": "team"}}"#);
    assert_eq!((made.status, &made.json()["tenant"]), (201, &json!("team")));
}

#[test]
fn a_token_does_only_what_it_has_the_right_for() {
    let place = CliPlace::new();
    let read = issue(&place, &["read", "--tenant", "team", "--rights", "read"]);
    let run = issue(&place, &["run", "--tenant", "team", "--rights", "run"]);
    let daemon = ApiDaemon::start_on_tcp(place);
    // The events of its life are read to their end.
    let made = daemon.ask_as(&run, "POST", "/v1/sandboxes", br#"{"lifetime": "3s"}"#);
    let sandbox = made.id(201);
    daemon.ask_as(&run, "GET", "/v1/sandboxes", b"").is_error(403, "denied");
    let document: Value = daemon.ask_as(&read, "GET", "/v1/openapi.json", b"").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let (method, path) = (method.to_uppercase(), path.replace("{id}", &sandbox));
            let reply = daemon.ask_as(&read, &method, &path, b"");
            let refused = reply.status == 403;
            // What is typed into a terminal changes something too.
            let only_reads = method == "GET" && !path.ends_with("/terminal");
            assert_eq!(refused, !only_reads || path == "/v1/metrics", "{method} {path}");
        }
    }
    let listed = daemon.ask_as(&read, "GET", "/v1/sandboxes", b"").json();
    assert_eq!(listed["sandboxes"][0]["id"], json!(sandbox));
}
