//! Bad input: one clear line with the remedy, exit code 125, nothing left behind.

use std::fs;
use std::process::Command;

use crate::common;
use crate::common::{CliPlace, finish};

#[test]
fn flags_that_nobody_knows_are_refused_with_the_nearest() {
    let place = CliPlace::new();
    place.stockade(&["run", "--memm", "1g", "true"]).is_refused(&["--memm", "'--mem')\n"]);
    place.stockade(&["run", "--frobnicate", "true"]).is_refused(&["--frobnicate", "--help"]);
    place.stockade(&["xyzzy"]).is_refused(&["xyzzy", "--help"]);
    place.stockade(&["run"]).is_refused(&["no command", "stockade run -- CMD"]);
}

#[test]
fn values_that_make_no_sense_are_refused_by_their_flag() {
    let place = CliPlace::new();
    for (flag, value, remedy) in [
        ("--mem", "lots", "such as `512m`"),
        ("--mem", "-5", "such as `512m`"),
        ("--disk", "1.5g", "such as `512m`"),
        ("--timeout", "30", "such as `30s`"),
        ("--cpu", "1.2345", "such as `1.5`"),
        ("--cpu", "5000", "`5000m`"),
        ("--pids", "many", "whole number"),
        ("--net", "a b", "is not a host"),
        ("--net", "host", "--net preset:python"),
        ("--user", "root", "in numbers"),
        ("--without", "mem", "memory-limit"),
        ("--boundary", "brick", "hardware"),
        ("--image", "./debian", "dir:PATH"),
        ("--mount", "/etc", "SRC:DST"),
        ("--mount", "/etc:etc", "absolute"),
        ("--label", "x", "KEY=VALUE"),
        ("--env", "1=2", "not a digit first"),
        ("--env", "NOT_SET", "--env NOT_SET="),
        ("--tenant", "../x", "tenant name"),
        ("--workdir", "../x", "leaves its root"),
        ("--backend", "brick", "native"),
        ("--env-file", "/nowhere", "cannot be read"),
    ] {
        let flag_and_value = ["run", flag, value, "--", "true"];
        place.stockade(&flag_and_value).is_refused(&[flag.trim_start_matches('-'), remedy]);
    }
}

#[test]
fn a_flag_that_docker_has_is_refused_with_the_command_that_does_it() {
    for flag in ["-p", "--publish"] {
        CliPlace::new()
            .stockade(&["run", flag, "8080:80", "true"])
            .is_refused(&[flag, "`stockade port ID 8080`"]);
    }
    CliPlace::new().stockade(&["create", "--rm"]).is_refused(&["--rm", "`stockade run`"]);
}

#[test]
fn zero_is_no_limit() {
    CliPlace::new()
        .stockade(&["run", "--timeout", "0s", "true"])
        .is_refused(&["limits.wall-time", "positive"]);
}

#[test]
fn workspaces_that_are_not_there_or_too_much_are_refused() {
    let place = CliPlace::new();
    place.write("file", "");
    place
        .stockade(&["run", "--workspace", "nowhere", "true"])
        .is_refused(&["`nowhere`", "No such file"]);
    place
        .stockade(&["run", "--workspace", "file", "true"])
        .is_refused(&["not a directory", "--mount"]);
    for (dir, what) in [("/", "whole file system"), ("/home", "everybody's home")] {
        let mut command = place.command(&["run", "true"]);
        command.current_dir(dir);
        finish(command).is_refused(&[what, "--no-workspace", &format!("--workspace {dir}")]);
    }
}

#[test]
fn a_home_is_refused_unless_it_is_named_outright() {
    let place = CliPlace::new();
    let home = place.workspace().canonicalize().unwrap();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("HOME", &home);
        finish(command)
    };
    run(&["run", "true"]).is_refused(&["whole home directory"]);
    run(&["run", "--workspace", ".", "true"]).is_refused(&["whole home directory"]);
    let named = ["run", "--workspace", home.to_str().unwrap(), "true"];
    // Configuration and caches lie in a home, and no guest is shown those (C-06).
    run(&named).is_refused(&["the configuration", "smaller directory"]);
    let mut apart = place.command(&named);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        apart.env(name, place.path("elsewhere"));
    }
    apart.env("HOME", &home);
    finish(apart).is(0, "", "");
}

#[test]
fn the_records_about_a_command_are_out_of_its_reach() {
    let place = CliPlace::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("STOCKADE_STATE_DIR", place.workspace().join("state"));
        finish(command)
    };
    run(&["run", "true"]).is_refused(&["state directory", "STOCKADE_STATE_DIR"]);
    let read_only = run(&["run", "--read-only", "true"]);
    read_only.is_refused(&["state directory", "STOCKADE_STATE_DIR"]);
    assert!(!read_only.stderr.contains("--read-only"), "{}", read_only.stderr);
}

#[test]
fn no_view_of_the_host_holds_what_is_stockades_own() {
    let place = CliPlace::new();
    let home = place.path("home");
    let refused = |dir: &std::path::Path, flags: &[&str], what: &str| {
        let dir = dir.to_str().unwrap();
        let mount = format!("{dir}:/shown");
        let image = format!("dir:{dir}");
        for view in [["--workspace", dir], ["--mount", &mount], ["--image", &image]] {
            for backend in ["native", "landlock"] {
                let args = [&["run", "--backend", backend], &view[..], flags, &["true"]].concat();
                place.stockade(&args).is_refused(&[what]);
            }
        }
    };
    for dir in [".config", ".config/stockade", ".cache"] {
        fs::create_dir_all(home.join(dir)).unwrap();
        for flags in [&[][..], &["--read-only"]] {
            let what = if dir == ".cache" { "the cache" } else { "the configuration" };
            refused(&home.join(dir), flags, what);
        }
    }
    fs::create_dir_all(place.state().join("run")).unwrap();
    refused(&place.path("").canonicalize().unwrap(), &["--read-only"], "the state directory");
    refused(&place.state().join("run"), &["--read-only"], "the state directory");
}

#[test]
fn what_other_processes_of_the_user_keep_in_the_home_is_not_shown_either() {
    let place = CliPlace::new();
    let home = place.path("home");
    let refused = |dir: &std::path::Path, flags: &[&str], what: &str| {
        let view = ["run", "--workspace", dir.to_str().unwrap()];
        let mut command = place.command(&[&view[..], flags, &["true"]].concat());
        for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            command.env(name, place.path("elsewhere"));
        }
        finish(command).is_refused(&[what]);
    };
    fs::create_dir_all(home.join(".local/state/stockade/run")).unwrap();
    for dir in [".config", ".cache"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    for flags in [&[][..], &["--read-only"]] {
        for dir in [".local", ".local/state", ".local/state/stockade/run"] {
            refused(&home.join(dir), flags, "a state directory");
        }
        refused(&home.join(".config"), flags, "a configuration");
        refused(&home.join(".cache"), flags, "a cache");
        // A whole home that is named outright, with something of ours in it.
        refused(&home, flags, "a state directory");
    }
}

#[test]
fn directories_that_the_hosts_programs_share_are_refused_as_a_whole() {
    let place = CliPlace::new();
    for dir in ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", "/var", "/proc", "/sys", "/dev"] {
        let mount = format!("{dir}:/shown");
        let mut here = place.command(&["run", "true"]);
        here.current_dir(dir);
        finish(here).is_refused(&[dir]);
        place.stockade(&["run", "--workspace", dir, "--read-only", "true"]).is_refused(&[dir]);
        place.stockade(&["run", "--mount", &mount, "true"]).is_refused(&[dir]);
        place.stockade(&["run", "--overlay", "--workspace", dir, "true"]).is_refused(&[dir]);
    }
    for name in ["TMPDIR", "XDG_RUNTIME_DIR"] {
        let mut command = place.command(&["run", "true"]);
        command.env(name, place.workspace());
        finish(command).is_refused(&["workspace: `", "remedy"]);
    }
}

#[test]
fn an_unreadable_workspace_is_refused_to_an_ordinary_user() {
    let place = CliPlace::of_an_ordinary_user();
    let dir = place.path("closed");
    common::make_unreadable(&dir);
    let done = place.stockade(&["run", "--workspace", dir.to_str().unwrap(), "true"]);
    done.is_refused(&["closed", "ermission denied"]);
}

#[test]
fn a_state_directory_that_cannot_be_written_stops_everything() {
    let place = CliPlace::of_an_ordinary_user();
    common::make_unreadable(&place.path("closed"));
    let mut command = place.command(&["run", "--shell", "echo ran > ran"]);
    command.env("STOCKADE_STATE_DIR", place.path("closed").join("state"));
    finish(command).is_refused(&["state", "remedy"]);
    assert!(!place.workspace().join("ran").exists());
}

#[test]
fn a_full_disk_for_the_state_stops_everything() {
    let place = CliPlace::new();
    let state = place.state();
    std::fs::create_dir(&state).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=16k,mode=700 none {0} && cat /dev/zero > {0}/filler 2> /dev/null; \
         exec {1} run --shell 'echo ran > ran'",
        state.display(),
        env!("CARGO_BIN_EXE_stockade")
    );
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", &script]).current_dir(place.workspace());
    command.env("STOCKADE_STATE_DIR", &state);
    finish(command).is_refused(&["No space left on device", "remedy"]);
    assert!(!place.workspace().join("ran").exists());
}

#[test]
fn without_any_place_for_state_the_remedy_is_told() {
    let place = CliPlace::new();
    let mut command = place.command(&["run", "true"]);
    command.env("HOME", "not/absolute").env_remove("STOCKADE_STATE_DIR");
    finish(command).is_refused(&["HOME", "STOCKADE_STATE_DIR"]);
}

#[test]
fn several_refusals_come_all_at_once() {
    let place = CliPlace::new();
    let line =
        ["run", "--backend", "landlock", "--image", "oci:/etc", "--net", "a.example", "true"];
    let done = place.stockade(&line);
    assert_eq!((done.code, done.stderr.lines().count()), (125, 2), "{}", done.stderr);
    for feature in ["oci-image", "egress-allowlist"] {
        assert!(
            done.stderr.contains(&format!("stockade: refused: {feature}: ")),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn one_cause_is_one_line_and_every_backends_with_verbose() {
    let place = CliPlace::new().without_engine();
    let asked = ["run", "--backend", "auto", "--image", "wasm:/etc", "--writable-root", "true"];
    place.stockade(&asked).is_refused(&["wasm-image: ", "remedy", "stockade explain"]);
    let done = place.stockade(&[&["--verbose"], &asked[..]].concat());
    assert_eq!(done.code, 125);
    for backend in ["native", "landlock"] {
        let line = format!("stockade: refused: {backend}: wasm-image: ");
        assert!(done.stderr.contains(&line), "{}", done.stderr);
    }
}

#[test]
fn the_name_of_a_program_that_a_backend_uses_leads_to_that_backend() {
    let place = CliPlace::new();
    for (name, hint) in [("firecracker", "[microvm.firecracker]"), ("podman", "--backend docker")] {
        place.stockade(&["run", "--backend", name, "true"]).is_refused(&[name, hint]);
    }
    place.stockade(&["run", "--backend", "brick", "true"]).is_refused(&["choose one of"]);
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let place = CliPlace::new();
    for (args, code) in [
        (&["run", "--json", "--mem", "lots", "true"][..], "invalid"),
        (&["run", "--json", "--image", "wasm:/etc", "true"], "refused"),
        (&["run", "--json", "--backend", "brick", "true"], "not-found"),
        (&["audit", "show", "--json", "nosuchjob"], "not-found"),
    ] {
        let done = place.stockade(args);
        assert_eq!((done.code, done.stderr.as_str()), (125, ""), "{args:?}");
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(json["error"]["code"], code, "{args:?}");
        assert!(json["error"]["message"].is_string());
    }
}

#[test]
fn explain_shows_no_name_of_a_directory_as_a_terminal_would_obey_it() {
    let place = CliPlace::new();
    let name = "a\u{1b}[31mb";
    fs::create_dir(place.workspace().join(name)).unwrap();
    let mut command = place.command(&["explain", "--workspace", name, "--cache", "auto"]);
    command.env("XDG_CACHE_HOME", place.path(name));
    let done = finish(command);
    done.code_is(0);
    assert!(!done.stdout.contains('\u{1b}'), "{done:?}");
    for head in ["WORKSPACE  ", "CACHE  "] {
        let line = done.stdout.lines().find(|line| line.starts_with(head)).unwrap();
        assert!(line.contains("a\\u{1b}[31mb"), "{line}");
    }
}

#[test]
fn a_terminal_needs_a_terminal() {
    let place = CliPlace::new();
    place.stockade(&["run", "-t", "true"]).is_refused(&["-t needs a terminal", "-i"]);
    place.stockade(&["audit", "list"]).is(0, "", "stockade: nothing was run yet\n");
}

#[test]
fn help_and_version_are_no_errors() {
    let place = CliPlace::new();
    for args in [
        &["--help"][..],
        &["help"],
        &["help", "run"],
        &["run", "--help"],
        &["audit", "-h"],
        &["--version"],
    ] {
        let done = place.stockade(args);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!done.stdout.contains('\x1b'));
    }
}

#[test]
fn a_host_is_refused_where_there_is_none_to_choose_and_where_it_is_not_configured() {
    let place = CliPlace::new();
    let run = |flags: &[&str]| place.stockade(&[&["run"][..], flags, &["--", "true"]].concat());
    run(&["--host", "alpha", "--backend", "native"]).is_refused(&[
        "--host",
        "native",
        "--backend ssh",
    ]);
    run(&["--host", "alpha", "--backend", "auto"]).is_refused(&["--host", "add --backend ssh"]);
    let far = ["--host", "gamma", "--backend", "ssh"];
    run(&far).is_refused(&["gamma", "[[ssh.hosts]]"]);
    let dir = place.path("home/.config/stockade");
    fs::create_dir_all(&dir).unwrap();
    let hosts = "[[ssh.hosts]]\nname = \"alpha\"\n[[ssh.hosts]]\nname = \"beta\"\n";
    fs::write(dir.join("config.toml"), hosts).unwrap();
    run(&far).is_refused(&["gamma", "choose one of: alpha, beta"]);
}
