//! The conformance kit by the command, on machines with the root that they have where no other is named:
//! this host's own tree. The kit's own tests judge every case on a small root, which is started in seconds.

use std::fs;
use std::process::Command;

use crate::common::CliPlace;
use crate::machines;

/// Cases that depend on the root of a machine: its files, its private places, what is captured of them. Not
/// its memory: a snapshot of that holds the root as a whole, which takes long to store.
const ROOT_CASES: [&str; 7] = [
    "a snapshot of the files",
    "a sandbox made from a snapshot",
    "a snapshot in which a byte was changed",
    "the host's programs are there",
    "files of the host cannot be written",
    "temporary files of another sandbox",
    "a file that is written",
];

/// The command, with prepared machines kept where those of other tests are.
fn command(place: &CliPlace, args: &[&str]) -> Command {
    let config = place.path("home/.config/stockade/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, format!("[microvm]\ncache = {:?}\n", machines::store_directory())).unwrap();
    let mut command = place.command(args);
    command.env_remove("STOCKADE_BACKEND");
    command
}

fn run(place: &CliPlace, args: &[&str]) -> String {
    let done = command(place, args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{args:?}: {}\n{out}\n{err}", done.status);
    out.into_owned()
}

#[test]
fn machines_with_this_hosts_own_tree_pass_the_cases_that_depend_on_it() {
    let place = CliPlace::new();
    // The first machine is prepared: no case has the time for it.
    run(&place, &["run", "--backend", "microvm", "--no-workspace", "--", "true"]);
    let mut args = vec!["tck", "--backend", "microvm", "--jobs", "2", "--json"];
    args.extend(ROOT_CASES.iter().flat_map(|text| ["--only", text]));
    let reports: serde_json::Value = serde_json::from_str(&run(&place, &args)).unwrap();
    assert!(reports[0]["counts"]["passed"].as_u64().unwrap() >= 9, "{reports}");
}
