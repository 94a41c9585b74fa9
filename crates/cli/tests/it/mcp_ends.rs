//! How `stockade mcp` begins and ends, byte for byte on its streams: nothing but the protocol on standard
//! output, and nothing left behind, however it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::common;
use crate::common::lasting::eventually;
use crate::common::{CliDone, CliPlace, command_lines, finish, pids_of, signal, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A client that speaks the protocol by hand.
pub struct Conversation {
    server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    asked: u64,
}

impl Conversation {
    pub fn begin(place: &CliPlace, flags: &[&str]) -> Self {
        let mut command = place.command(&[&["mcp"], flags].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let input = server.stdin.take();
        let output = BufReader::new(server.stdout.take().unwrap());
        let mut conversation = Self { server, input, output, asked: 0 };
        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" },
        });
        let answer = conversation.ask("initialize", hello);
        assert_eq!(answer["protocolVersion"], "2025-06-18");
        conversation.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        conversation
    }

    fn say(&mut self, message: Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.asked += 1;
        let id = self.asked;
        self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let answer = self.hear();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].clone()
    }

    /// The next line, which is a message.
    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Calls a tool by its name.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    pub fn bash(&mut self, line: &str) -> Value {
        let params = json!({ "name": "bash", "arguments": { "command": line } });
        self.ask("tools/call", params)["structuredContent"].clone()
    }

    /// What is left to say after the last answer, and how the server ends.
    pub fn end(self) -> CliDone {
        drop(self.input);
        let Self { mut server, output, .. } = self;
        server.stdout = Some(output.into_inner());
        wait(server)
    }
}

#[test]
fn it_ends_with_its_input_and_leaves_nothing() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &[]);
    assert_eq!(conversation.bash("echo $$; id -u >&2")["exitCode"], 0);
    conversation.end().is(0, "", "");
    place.assert_nothing_is_left();
}

#[test]
fn a_call_that_still_runs_when_input_ends_is_killed() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &[]);
    let call = json!({ "name": "bash", "arguments": { "command": "touch began; sleep 98765" } });
    conversation.send("tools/call", call);
    eventually("the command runs", || place.workspace().join("began").exists());
    conversation.end().code_is(0);
    place.assert_nothing_is_left();
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    for (sent, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let place = CliPlace::new();
        let mut conversation = Conversation::begin(&place, &[]);
        let call =
            json!({ "name": "bash", "arguments": { "command": "touch began; sleep 98765" } });
        conversation.send("tools/call", call);
        eventually("the command runs", || place.workspace().join("began").exists());
        signal(&conversation.server, sent);
        conversation.server.stdin = conversation.input.take();
        let Conversation { server, .. } = conversation;
        wait(server).code_is(code);
        place.assert_nothing_is_left();
    }
}

#[test]
fn an_ordinary_user_can_serve() {
    let place = CliPlace::of_an_ordinary_user();
    let mut conversation = Conversation::begin(&place, &[]);
    assert_eq!(conversation.bash("echo hello")["stdout"], "hello\n");
    conversation.end().is(0, "", "");
    place.assert_nothing_is_left();
}

#[test]
fn the_spec_of_the_bound_sandbox_is_what_flags_say() {
    let place = CliPlace::new();
    let flags = ["--read-only", "--env", "GREETING=hi", "--timeout", "1s"];
    let mut conversation = Conversation::begin(&place, &flags);
    assert_eq!(conversation.bash("echo $GREETING")["stdout"], "hi\n");
    assert_ne!(conversation.bash("touch x")["exitCode"], 0);
    assert_eq!(conversation.bash("sleep 98765")["timedOut"], true);
    conversation.end().is(0, "", "");
    assert!(!place.workspace().join("x").exists());
}

#[test]
fn changes_that_nobody_applied_are_named_at_the_end() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &["--overlay"]);
    assert_eq!(conversation.bash("echo hello > new")["exitCode"], 0);
    let done = conversation.end();
    assert!(done.stderr.starts_with("stockade: changes are kept apart in workspace "), "{done:?}");
    done.is(0, "", &done.stderr);
    assert!(!place.workspace().join("new").exists());
    let mut idle = Conversation::begin(&place, &["--overlay"]);
    assert_eq!(idle.bash("true")["exitCode"], 0);
    idle.end().is(0, "", "");
    place.assert_nothing_is_left();
}

#[test]
fn nothing_is_built_until_it_is_needed() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &[]);
    let tools = conversation.ask("tools/list", json!({}));
    assert!(tools["tools"].as_array().unwrap().len() > 10);
    let leases = std::fs::read_dir(place.state().join("leases")).unwrap();
    assert_eq!(leases.flatten().filter(|entry| entry.file_name() != "lock").count(), 0);
    conversation.end().is(0, "", "");
}

/// Has the user's file say this.
fn configure(place: &CliPlace, text: &str) {
    let dir = place.path("home/.config/stockade");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), text).unwrap();
}

/// The sandboxes that `ps` says are so.
fn those(place: &CliPlace, state: &str) -> Vec<String> {
    let listed = place.stockade(&["ps", "--json"]).stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let rows = listed["sandboxes"].as_array().unwrap().iter();
    let are_so = rows.filter(|row| row["state"] == state);
    are_so.map(|row| row["sandbox"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_kept_ready_is_taken_and_nothing_of_it_is_left() {
    let place = CliPlace::new();
    configure(&place, "[[pool]]\nminimum = 2\n");
    let mut conversation = Conversation::begin(&place, &[]);
    eventually("two are ready", || those(&place, "ready").len() == 2);
    let ready = those(&place, "ready");
    assert_eq!(conversation.bash("echo hello")["stdout"], "hello\n");
    let [bound] = &those(&place, "alive")[..] else { panic!("it has one sandbox") };
    assert!(ready.contains(bound), "it was made anew");
    eventually("another is made", || those(&place, "ready").len() == 2);
    let agents: Vec<_> = those(&place, "ready").iter().flat_map(|id| pids_of(id)).collect();
    assert!(!agents.is_empty());
    conversation.end().is(0, "", "");
    place.assert_nothing_is_left();
    let left = command_lines();
    assert!(!ready.iter().any(|id| left.iter().any(|line| line.contains(id.as_str()))));
}

#[test]
fn a_pool_that_cannot_be_is_refused_and_one_that_is_of_no_use_is_said_to_be() {
    let place = CliPlace::new();
    configure(&place, "[[pool]]\nminimum = 3\nmaximum = 2\n");
    place.stockade(&["mcp"]).is_refused(&["minimum 3", "maximum 2"]);
    configure(&place, "[[pool]]\nminimum = 1\n[[pool]]\nminimum = 1\n");
    place.stockade(&["mcp"]).is_refused(&["the same spec"]);
    place.assert_nothing_is_left();
    configure(&place, "[[pool]]\n");
    let done = Conversation::begin(&place, &["--overlay"]).end();
    assert!(done.stderr.contains("no sandbox is kept ready"), "{done:?}");
}

#[test]
fn a_message_that_is_none_does_not_end_the_conversation() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &[]);
    conversation.say(json!("no message"));
    writeln!(conversation.input.as_mut().unwrap(), "{{ not json").unwrap();
    let id = conversation.send("tools/list", json!({}));
    while conversation.hear()["id"] != id {}
    conversation.end().code_is(0);
}

#[test]
fn what_cannot_be_served_is_refused_before_anybody_connects() {
    let place = CliPlace::new();
    let refused = |args: &[&str], parts: &[&str]| place.stockade(args).is_refused(parts);
    refused(&["mcp", "--http", "0.0.0.0:0"], &["0.0.0.0", "--allow-remote"]);
    refused(&["mcp", "--local", "--no-workspace"], &["--local", "--workspace"]);
    refused(&["mcp", "--local", "--read-only"], &["read-only-workspace"]);
    refused(&["mcp", "--local", "--mem", "64m"], &["memory-limit"]);
    refused(&["mcp", "--local", "--net", "none"], &["--local", "--net"]);
    refused(&["mcp", "--local", "--net", "example.org"], &["--local", "--net"]);
    refused(&["mcp", "--local", "--user", "1:1"], &["chosen-user"]);
    refused(&["mcp", "--local", "--boundary", "hardware"], &["boundary none"]);
    refused(&["mcp", "--local", "--overlay"], &["--local", "--overlay"]);
    refused(&["mcp", "--workspace", "/nowhere"], &["/nowhere"]);
    refused(&["mcp", "--backend", "nonsense"], &["nonsense"]);
    let mut at_the_root = place.command(&["mcp"]);
    at_the_root.current_dir("/");
    finish(at_the_root).is_refused(&["`/`", "--workspace"]);
}

/// Its owner is this server, which takes no commands but an agent's.
#[test]
fn a_sandbox_of_an_agents_can_be_killed_and_the_next_call_has_another() {
    let place = CliPlace::new();
    let mut conversation = Conversation::begin(&place, &[]);
    assert_eq!(conversation.bash("echo x > /tmp/x")["exitCode"], 0);
    let [id] = &those(&place, "alive")[..] else { panic!("it has one sandbox") };
    place.stockade(&["kill", id]).is(0, &format!("{id}\n"), "");
    assert!(those(&place, "alive").is_empty());
    let ran = conversation.bash("echo hello");
    assert_eq!(ran["stdout"], "hello\n");
    let notice = ran["notice"].as_str().unwrap();
    assert!(notice.contains(id.as_str()) && notice.contains("ended on purpose"), "{notice}");
    assert!(!notice.contains("was lost ("), "{notice}");
    assert_eq!(conversation.bash("true")["notice"], Value::Null);
    conversation.end().is(0, "", "");
    place.assert_nothing_is_left();
}

/// What local execution can honour it does: the record says for whom it ran, and time runs out.
#[test]
fn local_execution_has_the_tenant_labels_and_limits_that_flags_say() {
    let place = CliPlace::new();
    configure(&place, "[[approval.rules]]\nverdict = \"allow\"\n");
    let flags = ["--local", "--tenant", "acme", "--label", "team=a", "--timeout", "1s"];
    let mut conversation = Conversation::begin(&place, &flags);
    let ran = conversation.bash("sleep 98765");
    assert_eq!(ran["timedOut"], true, "{ran}");
    let job = ran["jobId"].as_str().unwrap();
    let shown = place.stockade(&["audit", "show", job, "--json"]).stdout;
    assert!(shown.contains("acme") && shown.contains("team"), "{shown}");
    conversation.end().is(0, "", "");
    place.assert_nothing_is_left();
}

#[test]
fn a_token_that_others_can_read_or_guess_is_refused() {
    let place = CliPlace::new();
    let file = place.path("token");
    let name = file.to_str().unwrap();
    let args = ["mcp", "--http", "127.0.0.1:0", "--token-file", name];
    place.stockade(&args).is_refused(&["--token-file", name]);
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    place.stockade(&args).is_refused(&["others can read", "chmod 600"]);
    std::fs::write(&file, "short\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    place.stockade(&args).is_refused(&["fewer than 16"]);
}

#[test]
fn where_it_listens_is_printed_and_a_given_token_is_not() {
    let place = CliPlace::new();
    let file = place.path("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let args = ["mcp", "--http", "127.0.0.1:0", "--token-file", file.to_str().unwrap()];
    let (server, line) = common::start(place.command(&args));
    assert!(line.starts_with("url   http://127.0.0.1:") && line.ends_with("/mcp"), "{line}");
    signal(&server, Signal::TERM);
    wait(server).is(143, "", "");
}

#[test]
fn a_persistent_sandbox_is_served_and_goes_on() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let id = place.stockade(&["create", "--env", "GREETING=hi"]).stdout.trim().to_owned();
        let mut conversation = Conversation::begin(&place, &["--sandbox", &id[..6]]);
        assert_eq!(conversation.bash("echo $GREETING; echo x > /tmp/made")["stdout"], "hi\n");
        let listed = conversation.call("sandbox_list", json!({}));
        assert_eq!(listed["structuredContent"]["sandboxes"][0]["sandboxId"], id, "{listed}");
        let ended = conversation.call("sandbox_destroy", json!({ "sandbox_id": id }));
        assert_eq!(ended["isError"], true, "{ended}");
        let made = conversation.call("sandbox_create", json!({ "empty_workspace": true }));
        let other = made["structuredContent"]["sandboxId"].as_str().unwrap().to_owned();
        conversation.call("sandbox_use", json!({ "sandbox_id": other }));
        assert_ne!(conversation.bash("cat /tmp/made")["exitCode"], 0);
        conversation.call("sandbox_use", json!({ "sandbox_id": id }));
        assert_eq!(conversation.bash("cat /tmp/made")["stdout"], "x\n");
        let line = json!({ "action": "start", "command": "touch began; sleep 98765" });
        conversation.call("bash", line);
        eventually("the command runs", || place.workspace().join("began").exists());
        conversation.end().is(0, "", "");
        place.stockade(&["exec", &id, "--", "cat", "/tmp/made"]).is(0, "x\n", "");
        let left = place.stockade(&["exec", &id, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline"]);
        assert!(!left.stdout.contains("98765"), "{left:?}");
        let listed = place.stockade(&["ps", "-q"]).stdout;
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), [id.as_str()]);
        place.stockade(&["kill", &id]).code_is(0);
        place.assert_nothing_is_left();
    }
}

#[test]
fn a_sandbox_that_ends_under_its_agent_ends_the_server() {
    let place = CliPlace::new();
    let id = place.stockade(&["create"]).stdout.trim().to_owned();
    let mut conversation = Conversation::begin(&place, &["--sandbox", &id]);
    assert_eq!(conversation.bash("true")["exitCode"], 0);
    place.stockade(&["kill", &id]).code_is(0);
    let Conversation { server, input, .. } = conversation;
    let done = wait(server);
    drop(input);
    assert!(done.code == 125 && done.stderr.contains("has ended"), "{done:?}");
    place.assert_nothing_is_left();
    let nowhere = finish(place.command(&["mcp", "--sandbox", &id]));
    nowhere.is_refused(&[&id]);
    place.stockade(&["mcp", "--sandbox", &id, "--read-only"]).is_refused(&["--sandbox"]);
}
