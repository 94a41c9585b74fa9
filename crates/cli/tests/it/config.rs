//! Where settings come from: files, environment, flags, later ones over earlier ones, and never the
//! workspace.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{CliPlace, finish};

const TIMED_OUT: i32 = 124;

fn configure(dir: &Path, text: &str) {
    fs::create_dir_all(dir.join("stockade")).unwrap();
    fs::write(dir.join("stockade/config.toml"), text).unwrap();
}

/// A command that ends by the limit on its output, which the reason names.
fn limited(place: &CliPlace, prepare: impl Fn(&mut Command), flags: &[&str]) -> String {
    let args = [&["run"], flags, &["--", "echo", "some longer text"]].concat();
    let mut command = place.command(&args);
    prepare(&mut command);
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    done.stderr
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_users_file() {
    let place = CliPlace::new();
    let config = place.path("config");
    configure(&config, "[limits]\noutput = \"1b\"\n");
    let file = |command: &mut Command| {
        command.env("XDG_CONFIG_HOME", &config);
    };
    let both = |command: &mut Command| {
        command.env("XDG_CONFIG_HOME", &config).env("STOCKADE_MAX_OUTPUT", "2b");
    };
    assert!(limited(&place, file, &[]).contains("of 1b"));
    assert!(limited(&place, both, &[]).contains("of 2b"));
    assert!(limited(&place, both, &["--max-output", "3b"]).contains("of 3b"));
}

#[test]
fn config_show_says_where_each_value_comes_from() {
    let place = CliPlace::new();
    configure(&place.path("home/.config"), "tenant = \"a\"\n[limits]\nmemory = \"1g\"\n");
    let mut command = place.command(&["config", "show", "--json"]);
    command.env("STOCKADE_MEM", "2g");
    let done = finish(command);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let shown: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let of = |key: &str| {
        let all = shown["settings"].as_array().unwrap();
        let one = all.iter().find(|one| one["key"] == key).unwrap();
        (one["value"].as_str().unwrap().to_owned(), one["from"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("limits.memory"), ("\"2g\"".into(), "STOCKADE_MEM".into()));
    let file = place.path("home/.config/stockade/config.toml").display().to_string();
    assert_eq!(of("tenant"), ("\"a\"".into(), file.clone()));
    assert_eq!(shown["files"], serde_json::json!([file]));
}

#[test]
fn config_check_names_what_is_wrong_and_where() {
    let place = CliPlace::new();
    let check = || {
        let mut command = place.command(&["config", "check"]);
        command.env_remove("STOCKADE_BACKEND");
        finish(command)
    };
    let done = check();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert!(done.stdout.starts_with("valid: "), "{done:?}");
    configure(&place.path("home/.config"), "backend = \"natve\"\n");
    check().is_refused(&["config.toml", "natve", "native"]);
    configure(&place.path("home/.config"), "tenat = \"a\"\n");
    check().is_refused(&["config.toml", "line 1", "tenat"]);
    configure(&place.path("home/.config"), "backend = native\n");
    check().is_refused(&["config.toml", "line 1", "put text into quotes"]);
    configure(&place.path("home/.config"), "[limits]\nmemory = \"1\"\n");
    check().is_refused(&["limits: memory", "less than a sandbox needs"]);
}

#[test]
fn the_file_is_found_below_home_too() {
    let place = CliPlace::new();
    configure(&place.path("home/.config"), "[limits]\nwallTime = \"200ms\"\n");
    let done = place.stockade(&["run", "sleep", "100"]);
    assert_eq!(done.code, TIMED_OUT, "{done:?}");
}

#[test]
fn nothing_that_lies_in_the_workspace_is_read() {
    let place = CliPlace::new();
    for dir in ["", ".config", ".stockade", "etc"] {
        configure(&place.workspace().join(dir), "nonsense = true\n");
        fs::write(place.workspace().join(dir).join("stockade.toml"), "nonsense = true\n").unwrap();
    }
    place.stockade(&["run", "true"]).is(0, "", "");
}

#[test]
fn a_config_directory_inside_the_workspace_is_not_read_and_not_shown() {
    let place = CliPlace::new();
    let inside = place.workspace().join("config");
    configure(&inside, "nonsense = true\n");
    let link = place.path("link");
    std::os::unix::fs::symlink(&inside, &link).unwrap();
    for dir in [inside, link] {
        let mut command = place.command(&["run", "true"]);
        command.env("XDG_CONFIG_HOME", &dir);
        let done = finish(command);
        assert_eq!((done.code, done.stdout.as_str()), (125, ""));
        assert!(done.stderr.contains("is ignored: it lies in the workspace"), "{}", done.stderr);
        assert!(done.stderr.contains("holds the configuration"), "{}", done.stderr);
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_file_and_line() {
    let place = CliPlace::new();
    let config = place.path("config");
    configure(&config, "tenant = \"me\"\nbakcend = \"native\"\n");
    let mut command = place.command(&["run", "true"]);
    command.env("XDG_CONFIG_HOME", &config);
    finish(command).is_refused(&["stockade/config.toml` line 2", "bakcend", "remove"]);
}

#[test]
fn a_setting_of_the_environment_that_makes_no_sense_is_refused_by_its_name() {
    let place = CliPlace::new();
    let mut command = place.command(&["run", "true"]);
    command.env("STOCKADE_MEM", "lots");
    finish(command).is_refused(&["STOCKADE_MEM", "`lots` is not a size", "unset"]);
    let mut command = place.command(&["run", "true"]);
    command.env("STOCKADE_MEMORY", "1g");
    let note = "stockade: note: STOCKADE_MEMORY is no setting of stockade: ignored\n";
    finish(command).is(0, "", note);
    // The conformance kit's own, for the engines that it starts.
    let mut command = place.command(&["run", "true"]);
    command.env("STOCKADE_TCK_STATE", "x");
    finish(command).is(0, "", "");
}

#[test]
fn a_quota_holds() {
    let place = CliPlace::new();
    let config = place.path("config");
    configure(&config, "[quotas.small]\nsandboxes = 0\n");
    let mut command = place.command(&["run", "--tenant", "small", "true"]);
    command.env("XDG_CONFIG_HOME", &config);
    finish(command).is_refused(&["small"]);
}

#[test]
fn processor_time_that_is_used_up_is_refused_to_the_next_process_too() {
    let place = CliPlace::new();
    let config = place.path("config");
    configure(&config, "[quotas.busy]\ncpuSecondsPerHour = 1\n");
    let run = |tenant: &str, script: &str| {
        let flags = ["run", "--tenant", tenant, "--cpu-time", "1s", "--", "sh", "-c", script];
        let mut command = place.command(&flags);
        command.env("XDG_CONFIG_HOME", &config);
        finish(command)
    };
    // Ended for its own limit, which is as much as the tenant has.
    assert_ne!(run("busy", "while :; do :; done").code, 0);
    run("busy", "true").is_refused(&["busy", "of 1 CPU seconds"]);
    run("other", "true").is(0, "", "");
}

#[test]
fn a_profile_is_flags_under_a_name_and_the_command_line_wins() {
    let place = CliPlace::new();
    fs::create_dir(place.path("data")).unwrap();
    fs::write(place.path("data/file"), "shown").unwrap();
    let text = format!(
        "[limits]\noutput = \"1m\"\n[profile.build]\nenv = [\"A=profile\", \"B=profile\"]\n\
         mounts = [\"{}:/data\"]\nlimits = {{ output = \"6b\" }}\n",
        place.path("data").display()
    );
    configure(&place.path("home/.config"), &text);
    let script = "cat /data/file; echo -n $A $B";
    let run = |flags: &[&str]| {
        place.stockade(
            &[&["run"], flags, &["--profile", "build", "--", "sh", "-c", script]].concat(),
        )
    };
    let done = run(&[]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "shownp"), "{done:?}");
    run(&["--max-output", "1m", "--env", "B=flag"]).is(0, "shownprofile flag", "");
    place
        .stockade(&["run", "--profile", "bild", "--", "true"])
        .is_refused(&["bild", "there are: build"]);
}

#[test]
fn a_profile_that_makes_no_sense_is_named_by_its_key() {
    let place = CliPlace::new();
    for (line, key, why) in [
        ("mounts = [\"data:/data\"]", "mounts", "absolute"),
        ("image = \"dir:\"", "image", "is not an image"),
    ] {
        configure(&place.path("home/.config"), &format!("[profile.a]\n{line}\n"));
        let named = format!("profile.a.{key}");
        place.stockade(&["config", "check"]).is_refused(&[&named, why]);
        place.stockade(&["run", "--profile", "a", "--", "true"]).is_refused(&[&named, why]);
        // Who does not name it is not kept from working.
        place.stockade(&["run", "--", "true"]).is(0, "", "");
    }
    for (line, key, why) in [
        ("backend = \"natve\"", "backend", "there is no backend"),
        ("env = [\"=x\"]", "env", "name"),
        ("limits = { memory = \"1\" }", "limits", "less than a sandbox needs"),
        ("limits = { wallTime = \"0s\" }", "limits", "is zero"),
    ] {
        configure(&place.path("home/.config"), &format!("[profile.a]\n{line}\n"));
        let named = format!("profile.a.{key}");
        place.stockade(&["config", "check"]).is_refused(&[&named, why]);
    }
}
