//! How long sandboxes of the daemon live: they end when they are idle or their lifetime is over, this is told before and
//! after, and the holder of a token gives none more than it may.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::common::CliPlace;
use crate::common::api::ApiDaemon;
use crate::common::lasting::eventually;
use crate::serve_tenants::issue;

/// The events of a sandbox's life up to the last, as their names and data.
fn read_life(daemon: &ApiDaemon, sandbox: &str) -> impl Iterator<Item = (String, Value)> + use<> {
    let mut stream = daemon.connect();
    write!(stream, "GET /v1/sandboxes/{sandbox}/events HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let status = lines.next().unwrap();
    assert!(status.contains(" 200 "), "{status}");
    let mut kind = String::new();
    std::iter::from_fn(move || {
        for line in lines.by_ref() {
            match line.split_once(": ") {
                Some(("event", name)) => kind = name.to_owned(),
                Some(("data", data)) => {
                    return Some((kind.clone(), serde_json::from_str(data).unwrap()));
                }
                Some(_) | None => {}
            }
        }
        None
    })
}

fn create(daemon: &ApiDaemon, body: &Value) -> Value {
    let made = daemon.ask("POST", "/v1/sandboxes", body.to_string().as_bytes());
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

#[test]
fn a_sandbox_whose_lifetime_is_over_ends_and_says_so_before_and_after() {
    let daemon = ApiDaemon::start();
    let made = create(&daemon, &json!({ "lifetime": "2s" }));
    assert!(made["expires"].is_string() && made["idle"].is_null(), "{made}");
    let id = made["id"].as_str().unwrap();
    // What runs in it does not keep it.
    let job = daemon.exec(id, r#"{"run": {"program": ["sleep", "1000"]}}"#);
    let told: Vec<_> = read_life(&daemon, id).collect();
    let kinds: Vec<_> = told.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(kinds, ["sandbox", "ending", "ended"], "{told:?}");
    assert_eq!((&told[1].1["reason"], &told[1].1["at"]), (&json!("lifetime"), &made["expires"]));
    assert_eq!(told[2].1["reason"], "lifetime");
    assert_eq!(daemon.events(&job, &[]).last().unwrap().kind, "exit");
    let path = format!("/v1/sandboxes/{id}");
    let found = daemon.ask("GET", &path, b"").json();
    assert_eq!((&found["state"], &found["ended"]), (&json!("ended"), &told[2].1));
    let listed = daemon.ask("GET", "/v1/sandboxes?state=ended", b"").json();
    assert_eq!(listed["sandboxes"][0]["ended"]["reason"], "lifetime");
    for (method, path, body) in [
        ("POST", format!("{path}/executions"), r#"{"run": {"program": ["true"]}}"#),
        ("POST", format!("{path}/extend"), r#"{"lifetime": "1h"}"#),
        ("POST", format!("{path}/pause"), ""),
        ("POST", format!("{path}/fork"), ""),
        ("POST", format!("{path}/snapshots"), ""),
        ("GET", format!("{path}/files/list?path=."), ""),
    ] {
        let gone = daemon.ask(method, &path, body.as_bytes());
        gone.is_error(410, "gone");
        assert!(gone.json()["error"]["message"].as_str().unwrap().contains("lifetime"), "{path}");
    }
    // Its end is told to those who come later too.
    let late: Vec<_> = read_life(&daemon, id).map(|(kind, _)| kind).collect();
    assert_eq!(late, ["sandbox", "ended"]);
    assert_eq!(daemon.ask("DELETE", &path, b"").status, 204);
    daemon.ask("GET", &path, b"").is_error(404, "not-found");
    let (place, done) = daemon.end();
    done.code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_sandbox_that_is_not_used_ends_and_one_with_a_program_does_not() {
    let daemon = ApiDaemon::start();
    let [idle, used] = [(); 2].map(|()| create(&daemon, &json!({ "idle": "1s" })));
    let [idle, used] = [&idle, &used].map(|made| made["id"].as_str().unwrap());
    let command = r#"{"run": {"shell": "echo on; read line"}, "stdin": "stream"}"#;
    let job = daemon.exec(used, command);
    let (kind, told) = read_life(&daemon, idle).last().unwrap();
    assert_eq!((&*kind, &told["reason"]), ("ended", &json!("idle")));
    let found = daemon.ask("GET", &format!("/v1/sandboxes/{used}"), b"").json();
    assert_eq!((&found["state"], &found["idleExpires"]), (&json!("running"), &Value::Null));
    assert_eq!(
        daemon.ask("POST", &format!("/v1/executions/{job}/input?end=true"), b"").status,
        204
    );
    // Looking at it keeps nothing alive.
    eventually("it has ended too", || {
        let found = daemon.ask("GET", &format!("/v1/sandboxes/{used}"), b"").json();
        found["ended"]["reason"] == "idle"
    });
    let metrics = String::from_utf8(daemon.ask("GET", "/v1/metrics", b"").body).unwrap();
    assert!(metrics.contains("\nstockade_sandboxes 0\n"), "{metrics}");
}

#[test]
fn an_end_is_moved_and_a_copy_has_the_same() {
    let daemon = ApiDaemon::start();
    let made = create(&daemon, &json!({ "lifetime": "1h", "idle": "30m" }));
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let extend =
        |body: &Value| daemon.ask("POST", &format!("{path}/extend"), body.to_string().as_bytes());
    let kept = extend(&json!({})).json();
    assert_eq!((&kept["expires"], &kept["idle"]), (&made["expires"], &json!("30m")));
    assert!(kept["idleExpires"].as_str() >= made["idleExpires"].as_str(), "{kept}");
    let later = extend(&json!({ "lifetime": "2h" })).json();
    assert!(later["expires"].as_str() > made["expires"].as_str(), "{later}");
    assert_eq!(later["idle"], "30m");
    for wrong in [json!({ "lifetime": "0s" }), json!({ "idle": "5" }), json!({ "idle": "9999d" })] {
        extend(&wrong).is_error(400, "invalid");
    }
    extend(&json!({ "forever": true })).is_error(400, "invalid");
    let copies = daemon.ask("POST", &format!("{path}/fork"), b"").json();
    assert_eq!(
        copies["sandboxes"][0]["expires"].as_str().unwrap()[..19],
        later["expires"].as_str().unwrap()[..19]
    );
    let sooner = extend(&json!({ "lifetime": "1s" }));
    assert_eq!(sooner.status, 200);
    let id = made["id"].as_str().unwrap();
    assert_eq!(read_life(&daemon, id).last().unwrap().1["reason"], "lifetime");
}

#[test]
fn why_a_sandbox_has_ended_is_told() {
    let daemon = ApiDaemon::start();
    let [killed, deleted, stopped] = [(); 3].map(|()| daemon.create("{}"));
    let mut lives = [&killed, &deleted, &stopped].map(|id| read_life(&daemon, id));
    lives.iter_mut().for_each(|life| assert_eq!(life.next().unwrap().0, "sandbox"));
    daemon.place.stockade(&["kill", &killed]).code_is(0);
    assert_eq!(daemon.ask("DELETE", &format!("/v1/sandboxes/{deleted}"), b"").status, 204);
    let [by_kill, by_request, by_end] = &mut lives;
    assert_eq!(by_kill.last().unwrap().1["reason"], "killed");
    assert_eq!(by_request.last().unwrap().1["reason"], "deleted");
    let found = daemon.ask("GET", &format!("/v1/sandboxes/{killed}"), b"").json();
    assert_eq!(found["ended"]["reason"], "killed");
    daemon.ask_to_end();
    assert_eq!(by_end.last().unwrap().1["reason"], "stopped");
    daemon.wait_for_end().1.code_is(0);
}

#[test]
fn the_holder_of_a_token_gives_no_sandbox_more_than_it_may_have() {
    let place = CliPlace::new();
    let token = issue(&place, &["team"]);
    let reader = issue(&place, &["reader", "--tenant", "team", "--rights", "read"]);
    let flags = ["--listen", "127.0.0.1:0", "--max-lifetime", "1h"];
    let daemon = ApiDaemon::start_in(place, &flags);
    let ask = |path: &str, body: &str| daemon.ask_as(&token, "POST", path, body.as_bytes());
    ask("/v1/sandboxes", r#"{"lifetime": "2h"}"#).is_error(403, "denied");
    let made = ask("/v1/sandboxes", "{}");
    assert!(made.json()["expires"].is_string(), "{made:?}");
    let path = format!("/v1/sandboxes/{}", made.id(201));
    ask(&format!("{path}/extend"), r#"{"lifetime": "2h"}"#).is_error(403, "denied");
    let body = br#"{"lifetime": "1m"}"#;
    daemon.ask_as(&reader, "POST", &format!("{path}/extend"), body).is_error(403, "denied");
    let sooner = ask(&format!("{path}/extend"), r#"{"lifetime": "30m"}"#);
    assert!(sooner.json()["expires"].as_str() < made.json()["expires"].as_str(), "{sooner:?}");
    // What the socket's own user makes lives as long as it likes.
    assert!(create(&daemon, &json!({}))["expires"].is_null());
    assert_eq!(create(&daemon, &json!({ "lifetime": "2h" }))["state"], "running");
    let place = CliPlace::new();
    place.stockade(&["serve", "--max-lifetime", "0s"]).is_refused(&["--max-lifetime"]);
}
