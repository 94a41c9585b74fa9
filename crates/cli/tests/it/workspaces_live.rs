//! Changes that are kept apart by sandboxes that live on, or in a copy.

use std::fs;

use crate::common;
use crate::common::changes::{CHANGES_SCRIPT, assert_changed, assert_untouched, furnished, ids};
use crate::common::lasting::{Lasting, eventually};
use crate::common::{CliDone, CliPlace, finish};

#[test]
fn a_workspace_that_a_sandbox_has_is_left_alone_unless_forced() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let place = Lasting(furnished(place));
        let done = place.stockade(&["create", "--overlay"]);
        let (sandbox, id) = (done.stdout.trim_end().to_owned(), ids(&place).remove(0));
        let told = format!("stockade: changes are kept apart in workspace {id}\n");
        done.is(0, &format!("{sandbox}\n"), &told);
        place.shell(&sandbox, CHANGES_SCRIPT).is(0, "", "");
        assert_untouched(&place);
        let listed = place.json(&["workspace", "ls"])["workspaces"][0].take();
        assert_eq!((&listed["inUse"], &listed["changes"]), (&true.into(), &3.into()));
        assert_eq!(place.listed(&sandbox).unwrap()["workspace"], id.as_str());
        for verb in ["apply", "discard"] {
            let refused = place.stockade(&["workspace", verb, &id]);
            refused.is_refused(&["a sandbox has workspace", &id, "stockade kill", "--force"]);
        }
        let refused = place.stockade(&["run", "--resume", &id, "true"]);
        refused.is_refused(&["--resume", "a sandbox has workspace", &id]);
        place.stockade(&["workspace", "apply", "--force", &id]).code_is(0);
        assert_changed(&place);
        place.stockade(&["rm", &sandbox]).is(0, &format!("{sandbox}\n"), "");
        place.assert_all_is_gone();
        assert_eq!(ids(&place), Vec::<String>::new());
    }
}

#[test]
fn the_workspace_of_a_lasting_sandbox_outlives_it_only_for_its_changes() {
    let place = Lasting(furnished(CliPlace::new()));
    let make = || place.json(&["create", "--overlay"])["sandbox"].as_str().unwrap().to_owned();
    place.stockade(&["kill", &make()]).code_is(0);
    assert_eq!(ids(&place), Vec::<String>::new());
    let sandbox = make();
    place.shell(&sandbox, CHANGES_SCRIPT).code_is(0);
    place.stockade(&["kill", &sandbox]).code_is(0);
    let id = ids(&place).remove(0);
    let listed = place.json(&["workspace", "ls"])["workspaces"][0].take();
    assert_eq!((&listed["inUse"], &listed["changes"]), (&false.into(), &3.into()));
    place.stockade(&["workspace", "apply", &id]).code_is(0);
    assert_changed(&place);
}

#[test]
fn a_supervisor_that_is_killed_leaves_the_changes_to_be_applied() {
    let place = Lasting(furnished(CliPlace::new()));
    let sandbox = place.json(&["create", "--overlay"])["sandbox"].as_str().unwrap().to_owned();
    place.shell(&sandbox, CHANGES_SCRIPT).code_is(0);
    place.slay_owner(&sandbox);
    let id = ids(&place).remove(0);
    place.stockade(&["workspace", "apply", &id]).code_is(0);
    assert_changed(&place);
    assert_eq!(ids(&place), Vec::<String>::new());
}

#[test]
fn a_detached_command_keeps_its_changes_apart_too() {
    let place = Lasting(furnished(CliPlace::new()));
    let told = place.json(&["run", "--overlay", "--detach", "--shell", CHANGES_SCRIPT]);
    let (sandbox, id) = (told["sandbox"].as_str().unwrap(), told["workspace"].as_str().unwrap());
    common::lasting::eventually("it ends", || place.listed(sandbox).is_none());
    assert_untouched(&place);
    place.stockade(&["workspace", "apply", id]).code_is(0);
    assert_changed(&place);
}

#[test]
fn where_no_overlay_can_be_had_the_workspace_is_copied() {
    for place in [CliPlace::new(), CliPlace::of_an_ordinary_user()] {
        let place = furnished(place);
        let args = ["run", "--backend", "landlock", "--overlay", "--shell", CHANGES_SCRIPT];
        place.stockade(&args).code_is(0);
        assert_untouched(&place);
        let id = ids(&place).remove(0);
        place.stockade(&["workspace", "diff", &id]).is(0, "M a\nA b\nD gone\n", "");
        place.stockade(&["workspace", "apply", &id]).code_is(0);
        assert_changed(&place);
    }
}

#[test]
fn a_copy_that_a_sandbox_has_is_left_alone_as_well() {
    let place = Lasting(furnished(CliPlace::new()));
    let args = ["create", "--backend", "landlock", "--overlay"];
    let sandbox = place.json(&args)["sandbox"].as_str().unwrap().to_owned();
    place.shell(&sandbox, CHANGES_SCRIPT).code_is(0);
    let id = ids(&place).remove(0);
    place.stockade(&["workspace", "discard", &id]).is_refused(&["a sandbox has workspace", &id]);
    place.stockade(&["kill", &sandbox]).code_is(0);
    place.stockade(&["workspace", "discard", &id]).is(0, "", "");
    assert_untouched(&place);
}

#[test]
fn no_setting_is_read_from_what_a_view_shows() {
    let place = Lasting(furnished(CliPlace::new()));
    let config = place.workspace().join("stockade");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("config.toml"), "backend = \"brick\"").unwrap();
    let with = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("XDG_CONFIG_HOME", place.workspace()).env_remove("STOCKADE_BACKEND");
        finish(command)
    };
    assert_eq!(with(&["run", "--no-workspace", "true"]).code, 125);
    // It is not read, and then the view that would show it is refused (C-06).
    let refused = |done: CliDone| {
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.stderr.contains("is ignored: it lies in the workspace"), "{done:?}");
        assert!(done.stderr.contains("holds the configuration"), "{done:?}");
    };
    refused(with(&["run", "--overlay", "--shell", CHANGES_SCRIPT]));
    place.stockade(&["run", "--overlay", "--shell", CHANGES_SCRIPT]).code_is(0);
    let id = ids(&place).remove(0);
    refused(with(&["run", "--resume", &id, "true"]));
    refused(with(&["create", "--overlay"]));
    assert_eq!(ids(&place), [id], "a view that is refused leaves nothing");
}

#[test]
fn a_command_that_is_killed_leaves_no_workspace_unless_it_changed_something() {
    for (line, left) in [("touch /tmp/begun", 0), ("touch begun", 1)] {
        let place = Lasting(furnished(CliPlace::new()));
        let args = ["run", "--overlay", "--shell", &format!("{line}; echo begun; sleep 98765")];
        let (mut child, said) = common::start(place.command(&args));
        assert_eq!(said, "begun");
        child.kill().unwrap();
        child.wait().unwrap();
        // Its sandbox ends a moment later.
        eventually("it is let go of", || {
            let listed = place.json(&["workspace", "ls"])["workspaces"].take();
            let listed = listed.as_array().unwrap();
            listed.len() == left && listed.iter().all(|one| one["inUse"] == false)
        });
    }
}
