//! Rules against facts.

use super::*;

fn facts(line: &str, boundary: Boundary) -> Facts {
    Facts {
        tool: "bash".into(),
        programs: Programs::of_line(line),
        paths: Vec::new(),
        network: NetworkFact::None,
        backend: None,
        boundary,
        widens: false,
        person_only: false,
        details: Vec::new(),
    }
}

fn rules(toml: serde_json::Value) -> ApprovalConfig {
    serde_json::from_value(serde_json::json!({ "rules": toml })).unwrap()
}

fn verdict(config: &ApprovalConfig, line: &str) -> RuleVerdict {
    config.judge(&facts(line, Boundary::None)).verdict
}

#[test]
fn without_rules_local_execution_asks_and_walls_allow() {
    let config = ApprovalConfig::default();
    assert_eq!(config.judge(&facts("ls", Boundary::None)).verdict, RuleVerdict::Ask);
    assert_eq!(config.judge(&facts("ls", Boundary::SharedKernel)).verdict, RuleVerdict::Allow);
    let widening = Facts { widens: true, ..facts("ls", Boundary::SharedKernel) };
    assert_eq!(config.judge(&widening).verdict, RuleVerdict::Ask);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let config = rules(serde_json::json!([
        { "verdict": "deny", "match": { "programs": ["git"], "arguments": ["push", "..."] } },
        { "verdict": "allow", "match": { "programs": ["git"] } },
    ]));
    assert_eq!(verdict(&config, "git status"), RuleVerdict::Allow);
    assert_eq!(verdict(&config, "git push -f"), RuleVerdict::Deny);
    assert_eq!(verdict(&config, "ls"), RuleVerdict::Ask);
    let ruling = config.judge(&facts("git push", Boundary::None));
    assert_eq!(ruling.rule, "rule 1");
}

#[test]
fn the_strictest_verdict_holds_for_a_list() {
    let config = rules(serde_json::json!([
        { "verdict": "allow", "match": { "programs": ["ls", "head"] } },
        { "verdict": "deny", "match": { "programs": ["curl"] } },
    ]));
    assert_eq!(verdict(&config, "ls | head"), RuleVerdict::Allow);
    assert_eq!(verdict(&config, "ls; make"), RuleVerdict::Ask);
    assert_eq!(verdict(&config, "ls && curl x"), RuleVerdict::Deny);
}

#[test]
fn an_opaque_line_matches_no_allow_rule_about_programs() {
    let config = rules(serde_json::json!([
        { "verdict": "allow", "match": { "programs": ["ls"] } },
        { "verdict": "allow", "match": { "arguments": ["..."] } },
    ]));
    assert_eq!(verdict(&config, "ls $(rm -rf x)"), RuleVerdict::Ask);
    assert_eq!(verdict(&config, "ls > x"), RuleVerdict::Ask);
}

#[test]
fn what_could_be_a_denied_program_is_asked_about() {
    let config = rules(serde_json::json!([
        { "verdict": "deny", "match": { "programs": ["curl"] } },
        { "verdict": "allow" },
    ]));
    assert_eq!(verdict(&config, "$X"), RuleVerdict::Ask);
    assert_eq!(verdict(&config, "sh -c curl"), RuleVerdict::Ask);
    assert_eq!(verdict(&config, "/usr/bin/curl x"), RuleVerdict::Deny);
    assert_eq!(verdict(&config, "ls"), RuleVerdict::Allow);
}

#[test]
fn an_allowed_name_is_not_a_path_to_something_of_that_name() {
    let config = rules(serde_json::json!([
        { "verdict": "allow", "match": { "programs": ["git"] } },
    ]));
    assert_eq!(verdict(&config, "./git status"), RuleVerdict::Ask);
}

#[test]
fn paths_are_all_allowed_or_one_denied() {
    let config = rules(serde_json::json!([
        { "verdict": "deny", "match": { "paths": ["**/.env"] } },
        { "verdict": "allow", "match": { "paths": ["src/**"] } },
    ]));
    let on = |paths: &[&str]| {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let facts = Facts { programs: Programs::NONE, paths, ..facts("", Boundary::None) };
        config.judge(&facts).verdict
    };
    assert_eq!(on(&["src/a", "src/b/c"]), RuleVerdict::Allow);
    assert_eq!(on(&["src/a", "other"]), RuleVerdict::Ask);
    assert_eq!(on(&["src/a", "x/.env"]), RuleVerdict::Deny);
    assert_eq!(on(&[".env"]), RuleVerdict::Deny);
}

#[test]
fn an_unknown_condition_is_refused_by_name() {
    let json = r#"{"rules": [{"verdict": "allow", "match": {"program": "git"}}]}"#;
    let error = serde_json::from_str::<ApprovalConfig>(json).unwrap_err();
    assert!(error.to_string().contains("program"), "{error}");
}

#[test]
fn what_may_start_a_denied_program_is_asked_about() {
    let config = rules(serde_json::json!([
        { "verdict": "deny", "match": { "programs": ["rm"] } },
        { "verdict": "allow" },
    ]));
    for line in [
        "python3.11 -c x",
        "perl5.36 -e x",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
        "jobs -x rm x",
        "prlimit rm x",
        "toybox rm x",
    ] {
        assert_eq!(verdict(&config, line), RuleVerdict::Ask, "{line}");
    }
    assert_eq!(verdict(&config, "git status"), RuleVerdict::Allow);
}
