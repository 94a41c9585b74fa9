//! What people read: detect, explain, audit, completions. Plain when piped.

use crate::common::CliPlace;
use serde_json::Value;

fn json(place: &CliPlace, args: &[&str]) -> Value {
    let done = place.stockade(args);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn detect_shows_all_backends_and_features_on_one_screen() {
    let place = CliPlace::new();
    let done = place.stockade(&["detect"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(done.stdout.lines().count() <= 40, "{}", done.stdout);
    let head = done.stdout.lines().next().unwrap();
    assert!(head.split_whitespace().any(|name| name == "native"), "{head}");
    for row in ["boundary ", "typical start "] {
        assert!(done.stdout.contains(&format!("\n{row}")), "{}", done.stdout);
    }
    // Those that all backends have stand together below the table.
    assert!(done.stdout.contains("\nall have: filesystem-isolation, "), "{}", done.stdout);
    for feature in stockade_core::Feature::ALL {
        let words = done.stdout.split_whitespace().map(|word| word.trim_end_matches(','));
        assert!(words.into_iter().any(|word| word == feature.to_string()), "{feature}");
    }
    assert!(done.stdout.ends_with("stockade detect NAME\n"), "{}", done.stdout);
    assert!(!done.stdout.contains('\x1b'), "colour in a pipe");
}

#[test]
fn detect_with_a_name_shows_every_feature_with_mechanism_or_remedy() {
    let place = CliPlace::new();
    let done = place.stockade(&["detect", "native"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(
        done.stdout.starts_with("native: available, boundary shared-kernel\n"),
        "{}",
        done.stdout
    );
    assert!(!done.stdout.contains('\x1b'), "colour in a pipe");
    for feature in stockade_core::Feature::ALL {
        assert!(done.stdout.contains(&format!("\n{feature} ")), "{feature}");
    }
    let detected = json(&place, &["detect", "--json"]);
    assert_eq!(detected[0]["backend"], "native");
    assert!(detected[0]["features"]["complete-kill"]["by"].is_string());
    for args in [&["detect", "brick"][..], &["detect", "--backend", "brick"]] {
        place.stockade(args).is_refused(&["brick", "native"]);
    }
}

#[test]
fn explain_says_who_is_taken_and_why_not_and_runs_nothing() {
    let place = CliPlace::new().without_engine();
    let done = place.stockade(&["explain", "--backend", "auto", "--", "touch", "a"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert!(
        done.stdout.contains("the strongest boundary that can honour the spec"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("wall-time"), "{}", done.stdout);
    assert!(!place.workspace().join("a").exists());
    for (backend, network) in [
        ("native", "network: loopback (the default"),
        ("landlock", "network: none (landlock has no loopback of its own"),
    ] {
        let done = place.stockade(&["explain", "--backend", backend]);
        assert!(done.stdout.contains(network), "{}", done.stdout);
    }
    let done = place.stockade(&["explain", "--backend", "landlock", "--image", "oci:/etc"]);
    assert_eq!(done.code, 125);
    assert!(done.stdout.contains("oci-image: "), "{}", done.stdout);
    let done =
        place.stockade(&["explain", "--json", "--backend", "auto", "--boundary", "hardware"]);
    let explained: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        (&explained["chosen"], &explained["choices"][0]["taken"]),
        (&Value::Null, &false.into())
    );
    place.stockade(&["audit", "list"]).is(0, "", "stockade: nothing was run yet\n");
}

#[test]
fn audit_lists_and_shows_what_was_run() {
    let place = CliPlace::new();
    place.stockade(&["run", "--tenant", "a", "--label", "k=v", "--shell", "exit 3"]);
    place.stockade(&["run", "--tenant", "b", "true"]);
    let jobs = json(&place, &["audit", "list", "--json", "--tenant", "a"]);
    assert_eq!(jobs.as_array().unwrap().len(), 1);
    let job = jobs[0]["started"]["event"]["job"].as_str().unwrap().to_owned();
    let listed = place.stockade(&["audit", "list"]).stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("/bin/sh -c 'exit 3'"), "{listed}");
    let shown = place.stockade(&["audit", "show", &job]).stdout;
    for part in ["exit 3", "k=v", "native", "tenant"] {
        assert!(shown.contains(part), "{shown}");
    }
    place.stockade(&["audit", "show", "nosuchjob"]).is_refused(&["nosuchjob", "audit list"]);
}

#[test]
fn audit_verify_tells_a_clean_journal_from_a_broken_one() {
    let place = CliPlace::new();
    place.stockade(&["run", "true"]);
    let done = place.stockade(&["audit", "verify"]);
    assert!(done.code == 0 && done.stdout.starts_with("clean: "), "{done:?}");
    let file = place.state().join("journal/journal.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"true\"", "\"fake\"", 1)).unwrap();
    let done = place.stockade(&["audit", "verify"]);
    assert_eq!(done.code, 1);
    assert!(
        done.stdout.starts_with("broken: record ") && done.stdout.contains("was changed"),
        "{done:?}"
    );
    let json: Value =
        serde_json::from_str(&place.stockade(&["audit", "verify", "--json"]).stdout).unwrap();
    assert_eq!(json["verdict"], "broken");
}

#[test]
fn completions_are_there_for_the_usual_shells() {
    let place = CliPlace::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = place.stockade(&["completions", shell]);
        assert!(done.code == 0 && done.stdout.contains("env-file"), "{shell}");
    }
    place.stockade(&["completions", "tcl"]).is_refused(&["tcl", "bash"]);
}

#[test]
fn manual_pages_are_printed_one_by_one_or_written_for_all_commands() {
    let place = CliPlace::new();
    let done = place.stockade(&["man", "workspace", "apply"]);
    assert!(done.code == 0 && done.stdout.starts_with(".TH STOCKADE\\-WORKSPACE"), "{done:?}");
    let dir = place.path("man1");
    let done = place.stockade(&["man", "--dir", dir.to_str().unwrap()]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    for name in ["stockade.1", "stockade-run.1", "stockade-audit-prune.1"] {
        assert!(dir.join(name).is_file(), "{name}");
    }
    place.stockade(&["man", "xyzzy"]).is_refused(&["xyzzy", "--help"]);
    let taken = place.path("taken");
    std::fs::write(&taken, "").unwrap();
    place.stockade(&["man", "--dir", taken.to_str().unwrap()]).is_refused(&["--dir", "taken"]);
}
