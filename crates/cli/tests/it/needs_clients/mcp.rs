//! `stockade mcp` as agents meet it: driven by the official Python client over both transports and both
//! lives of the protocol (with a handshake, and without), and looked at by the inspector. A client that
//! is not there is a failure: `scripts/setup` puts it there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::common;
use crate::common::{CliDone, CliPlace, finish};
use crate::network::Internet;
use serde_json::Value;

/// Modes of the client: with a handshake (the revisions until 2025-11-25) or without (since 2026-07-28).
const HANDSHAKE_MODES: [&str; 2] = ["legacy", "auto"];

/// The clients that `scripts/setup` made.
fn clients() -> PathBuf {
    let clients = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/clients"));
    assert!(clients.join("made").exists(), "the clients are not there: run scripts/setup");
    clients
}

/// A command in the place's surroundings that runs another program.
fn in_place(place: &CliPlace, program: PathBuf) -> Command {
    let like = place.command(&[]);
    let mut command = Command::new(program);
    command.current_dir(like.get_current_dir().unwrap()).env_clear();
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

fn python(place: &CliPlace, scenario: &str, transport: &str, life: &str) -> CliDone {
    finish(python_command(place, scenario, transport, life))
}

fn python_command(place: &CliPlace, scenario: &str, transport: &str, life: &str) -> Command {
    let mut command = in_place(place, clients().join("python/bin/python"));
    // Bytecode would be written beside the sources.
    command.arg("-B").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mcp/client.py"));
    command.args([scenario, env!("CARGO_BIN_EXE_stockade"), transport, life]);
    command
}

/// Runs a scenario, after which nothing may be left.
#[track_caller]
fn plays(place: &CliPlace, scenario: &str, transport: &str, life: &str) {
    let done = python(place, scenario, transport, life);
    assert_eq!(
        done.code, 0,
        "{scenario} over {transport}, {life}:\n{}{}",
        done.stdout, done.stderr
    );
    place.assert_nothing_is_left();
}

#[track_caller]
fn plays_everywhere(scenario: &str) {
    for transport in ["stdio", "http"] {
        for life in HANDSHAKE_MODES {
            plays(&CliPlace::new(), scenario, transport, life);
        }
    }
}

#[test]
fn an_agent_builds_edits_and_follows_a_program() {
    plays_everywhere("everyday");
}

#[test]
fn a_call_that_is_given_up_is_killed() {
    plays_everywhere("cancelled");
}

#[test]
fn a_person_is_asked_and_only_a_yes_is_a_yes() {
    plays_everywhere("asked");
}

/// Runs a scenario with a site on this host's loopback; answers how often that was visited.
#[track_caller]
fn plays_with_site(scenario: &str, transport: &str, life: &str, settings: &str) -> usize {
    let (place, internet) = (CliPlace::new(), Internet::start());
    internet.configure_with(&place, settings);
    let mut command = python_command(&place, scenario, transport, life);
    command.env("STOCKADE_TEST_SITE", internet.port.to_string());
    let done = finish(command);
    assert_eq!(
        done.code, 0,
        "{scenario} over {transport}, {life}:\n{}{}",
        done.stdout, done.stderr
    );
    place.assert_nothing_is_left();
    internet.visits()
}

#[test]
fn a_person_is_asked_about_a_host_while_the_program_waits() {
    for transport in ["stdio", "http"] {
        assert_eq!(plays_with_site("hosts", transport, "legacy", ""), 3);
        // Without a handshake a question would be an answer to the call, whose command runs.
        assert_eq!(plays_with_site("unasked_hosts", transport, "auto", ""), 0);
    }
}

#[test]
fn an_address_of_a_sandbox_is_dead_in_the_next_one_of_a_pool() {
    plays_with_site("pooled", "stdio", "legacy", "[[pool]]\nminimum = 2\n");
}

#[test]
fn a_rule_of_the_users_spares_the_question() {
    let place = CliPlace::new();
    let config = place.path("home/.config/stockade");
    std::fs::create_dir_all(&config).unwrap();
    let rule = "[[approval.rules]]\nverdict = \"allow\"\nmatch = { programs = [\"echo\"] }\n";
    std::fs::write(config.join("config.toml"), rule).unwrap();
    plays(&place, "allowed", "stdio", "auto");
}

#[test]
fn who_wants_to_know_is_told_how_a_command_goes() {
    plays(&CliPlace::new(), "told", "stdio", "legacy");
    plays(&CliPlace::new(), "told", "http", "auto");
}

#[test]
fn sessions_share_nothing() {
    for life in HANDSHAKE_MODES {
        plays(&CliPlace::new(), "apart", "http", life);
    }
}

#[test]
fn nobody_gets_in_without_the_token_or_from_elsewhere() {
    plays(&CliPlace::new(), "guarded", "http", "legacy");
}

#[test]
fn an_idle_session_ends_with_its_sandboxes() {
    for life in HANDSHAKE_MODES {
        plays(&CliPlace::new(), "idle", "http", life);
    }
}

#[test]
fn changes_reach_the_users_files_when_they_are_applied() {
    for transport in ["stdio", "http"] {
        plays(&CliPlace::new(), "transaction", transport, "auto");
    }
}

#[test]
fn five_sandboxes_at_once_have_changes_of_their_own() {
    plays(&CliPlace::new(), "five", "stdio", "legacy");
    plays(&CliPlace::new(), "five", "http", "auto");
}

/// The tools that the inspector lists.
fn inspected(place: &CliPlace, target: &[&str]) -> BTreeSet<String> {
    let modules = clients().join("node_modules");
    let runtime =
        format!("node-linux-{}", if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" });
    let mut command = in_place(place, modules.join(runtime).join("bin/node"));
    command.arg(modules.join(".bin/mcp-inspector")).arg("--cli").args(target);
    command.args(["--method", "tools/list"]);
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    let listed: Value = serde_json::from_str(&done.stdout).unwrap();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    listed["tools"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn the_inspector_lists_the_same_tools_over_both_transports() {
    let place = CliPlace::new();
    let here = inspected(&place, &[env!("CARGO_BIN_EXE_stockade"), "mcp"]);
    assert!(here.contains("bash") && here.len() > 10, "{here:?}");
    let (server, door) = common::start(place.command(&["--json", "mcp", "--http"]));
    let door: Value = serde_json::from_str(&door).unwrap();
    let header = format!("Authorization: Bearer {}", door["token"].as_str().unwrap());
    let url = door["url"].as_str().unwrap();
    let there = inspected(&place, &[url, "--transport", "http", "--header", &header]);
    common::signal(&server, rustix::process::Signal::TERM);
    common::wait(server).code_is(143);
    assert_eq!(here, there);
}

mod needs_browser {
    use super::*;

    #[test]
    fn a_page_of_the_sandbox_is_seen() {
        for transport in ["stdio", "http"] {
            plays(&CliPlace::new(), "picture", transport, "auto");
        }
    }

    #[test]
    fn a_page_of_the_sandbox_is_used() {
        plays(&CliPlace::new(), "page", "stdio", "auto");
    }
}
