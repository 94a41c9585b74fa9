//! `--git`: checkouts of a repository, each worked on apart.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::changes::{CHANGES_SCRIPT, furnished, ids, text};
use crate::common::{CliDone, CliPlace, finish, wait};
use serde_json::Value;

fn git(dir: &Path, args: &[&str]) -> CliDone {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c"]);
    command.args(["init.defaultBranch=main", "-C"]).arg(dir).args(args);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
    let done = finish(command);
    assert_eq!(done.code, 0, "{done:?}");
    done
}

#[test]
fn a_checkout_is_worked_on_apart_from_its_repository() {
    let place = furnished(CliPlace::new());
    let repository = place.workspace();
    git(&repository, &["init", "--quiet"]);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "-m", "first"]);
    git(&repository, &["tag", "v1"]);
    place.write("a", "later\n");
    git(&repository, &["commit", "--quiet", "-am", "second"]);
    let source = format!("{}@v1", repository.display());
    let line = format!("cat a; git log --oneline | wc -l; {CHANGES_SCRIPT}");
    let done = place.stockade(&["run", "--git", &source, "--shell", &line]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "one\n1\n"), "{done:?}");
    assert!(done.stderr.contains("--to DIR"), "{done:?}");
    let id = ids(&place).remove(0);
    let listed = place.stockade(&["workspace", "ls"]).stdout;
    assert!(listed.contains("git") && listed.contains("work@"), "{listed}");
    place.stockade(&["workspace", "apply", &id]).is_refused(&["--to DIR"]);
    let target = place.path("clone");
    git(&repository, &["clone", "--quiet", "--branch", "v1", ".", target.to_str().unwrap()]);
    place.stockade(&["workspace", "apply", &id, "--to", target.to_str().unwrap()]).code_is(0);
    assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "one\ntwo\n");
    assert_eq!(text(&place, "a").as_deref(), Some("later\n"));
    let nowhere = place.stockade(&["run", "--git", "/nowhere/at/all", "true"]);
    nowhere.is_refused(&["/nowhere/at/all"]);
}

#[test]
fn five_checkouts_are_worked_on_at_once_and_each_has_its_own_changes() {
    let place = furnished(CliPlace::new());
    let repository = place.workspace();
    git(&repository, &["init", "--quiet"]);
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "--quiet", "-m", "first"]);
    let source = repository.to_str().unwrap();
    let begin = |number: usize| {
        let line = format!("echo mine > own-{number}; echo {number} >> a; ls own-*");
        let mut command = place.command(&["--json", "run", "--git", source, "--shell", &line]);
        (number, command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let all: Vec<_> = (1..=5).map(begin).collect();
    for (number, child) in all {
        let done = wait(child);
        let told: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(told["stdout"], format!("own-{number}\n"), "{done:?}");
        let id = told["workspace"]["id"].as_str().unwrap();
        let own = format!("M a\nA own-{number}\n");
        place.stockade(&["workspace", "diff", id]).is(0, &own, "");
    }
    assert_eq!(ids(&place).len(), 5);
    let stores = fs::read_dir(place.state().join("git")).unwrap().flatten();
    assert_eq!(stores.filter(|entry| entry.path().is_dir()).count(), 1, "five cost one");
}
