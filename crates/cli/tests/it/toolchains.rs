//! Toolchains of the caller inside, and what of them never is.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::{CliDone, CliPlace, finish};
use serde_json::Value;

/// A place with a rust toolchain in its home: scripts, a registry, and credentials beside.
fn with_toolchain() -> CliPlace {
    let place = CliPlace::of_an_ordinary_user();
    let home = place.path("home");
    for dir in [".cargo/bin", ".cargo/registry/cache/example", ".rustup/toolchains/x/bin", "bin"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    for (file, text) in [
        (".cargo/bin/cargo", "#!/bin/sh\necho cargo of $RUSTUP_HOME; exec \"$@\"\n"),
        ("bin/own-tool", "#!/bin/sh\necho own\n"),
        (".cargo/credentials.toml", "secret"),
        (".cargo/config.toml", "secret"),
        (".cargo/registry/cache/example/a.crate", "a crate\n"),
        (".rustup/settings.toml", "version = \"12\"\n"),
        (".rustup/toolchains/x/credentials", "secret"),
        (".npmrc", "secret"),
    ] {
        fs::write(home.join(file), text).unwrap();
        fs::set_permissions(home.join(file), fs::Permissions::from_mode(0o755)).unwrap();
    }
    place
}

fn run(place: &CliPlace, args: &[&str]) -> CliDone {
    let home = place.path("home");
    let home = home.to_str().unwrap();
    let mut command = place.command(args);
    command.env("PATH", format!("{home}/.cargo/bin:{home}/bin:/usr/bin:/bin"));
    finish(command)
}

#[test]
fn a_toolchain_that_path_leads_to_runs_inside_and_its_credentials_are_not_there() {
    let place = with_toolchain();
    let home = place.path("home").display().to_string();
    let find = ["find", &home, "-type", "f"];
    let done = run(&place, &[&["run", "--", "cargo"][..], &find].concat());
    done.code_is(0);
    assert!(done.stdout.starts_with(&format!("cargo of {home}/.rustup\n")), "{done:?}");
    let mut files: Vec<_> = done.stdout.lines().skip(1).collect();
    files.sort_unstable();
    assert_eq!(
        files,
        [format!("{home}/.cargo/bin/cargo"), format!("{home}/.rustup/settings.toml")]
    );
    let written =
        run(&place, &["run", "--", "sh", "-c", &format!("echo > {home}/.cargo/bin/cargo")]);
    assert_ne!(written.code, 0, "{written:?}");
    place.assert_nothing_is_left();
}

#[test]
fn downloaded_crates_appear_where_cargo_looks_for_them() {
    let place = with_toolchain();
    let done = run(
        &place,
        &["run", "--shell", "cat ~/.cargo/registry/cache/example/a.crate && touch ~/.cargo/x"],
    );
    assert_eq!((done.code, done.stdout.as_str()), (0, "a crate\n"), "{done:?}");
}

#[test]
fn a_program_of_the_host_that_is_not_inside_is_an_error_that_names_the_flag() {
    let place = with_toolchain();
    let done = run(&place, &["run", "--toolchain", "none", "--", "cargo"]);
    assert_eq!(done.code, 127, "{done:?}");
    assert!(
        done.stderr.contains("--toolchain rust") && done.stderr.contains("/.cargo/bin/cargo"),
        "{done:?}"
    );
    let done = run(&place, &["run", "--", "own-tool"]);
    assert_eq!(done.code, 127, "{done:?}");
    let bin = place.path("home/bin").display().to_string();
    assert!(done.stderr.contains(&format!("--mount {bin}:{bin}")), "{done:?}");
    let done = run(&place, &["run", "--mount", &format!("{bin}:{bin}"), "--", "own-tool"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "own\n"), "{done:?}");
    let done = run(&place, &["run", "--", "nowhere-to-be-found"]);
    assert!(done.code == 127 && !done.stderr.contains("--mount"), "{done:?}");
}

#[test]
fn toolchains_are_listed_by_explain_and_in_the_record() {
    let place = with_toolchain();
    let home = place.path("home").display().to_string();
    let done = run(&place, &["--json", "explain"]);
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    let rust = &told["toolchains"][0];
    assert_eq!(rust["name"], "rust", "{told}");
    assert_eq!(rust["shown"][0], format!("{home}/.cargo/bin"), "{told}");
    assert_eq!(
        rust["leftOut"][0]["path"],
        format!("{home}/.rustup/toolchains/x/credentials"),
        "{told}"
    );
    run(&place, &["run", "--", "true"]).code_is(0);
    let listed: Value =
        serde_json::from_str(&run(&place, &["audit", "list", "--json"]).stdout).unwrap();
    assert_eq!(listed[0]["started"]["event"]["trees"][0], "rust", "{listed}");
}

#[test]
fn a_toolchain_that_is_not_there_or_not_known_is_refused_by_name() {
    let place = with_toolchain();
    run(&place, &["run", "--toolchain", "go", "--", "true"]).is_refused(&["--toolchain", "`go`"]);
    run(&place, &["run", "--toolchain", "cobol", "--", "true"]).is_refused(&["cobol", "rust"]);
    run(&place, &["run", "--toolchain", "rust", "--", "cargo", "true"]).code_is(0);
}

#[test]
fn nothing_behind_a_link_out_of_the_list_is_shown() {
    let place = with_toolchain();
    let home = place.path("home");
    fs::create_dir(home.join(".ssh")).unwrap();
    fs::write(home.join(".ssh/id"), "secret").unwrap();
    fs::remove_dir_all(home.join(".rustup")).unwrap();
    std::os::unix::fs::symlink(home.join(".ssh"), home.join(".rustup")).unwrap();
    let look = format!("ls -a {0}/.rustup {0}/.ssh; echo end", home.display());
    let done = run(&place, &["run", "--shell", &look]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "end\n"), "{done:?}");
}

#[test]
fn a_workspace_appears_at_the_path_that_was_chosen_and_at_its_usual_one() {
    let place = CliPlace::of_an_ordinary_user();
    place.write("given", "by the host\n");
    let line = "pwd; cat given /workspace/given; echo made > /srv/project/made";
    let done = place.stockade(&["run", "--workspace-at", "/srv/project", "--shell", line]);
    let said = "/srv/project\nby the host\nby the host\n";
    assert_eq!((done.code, done.stdout.as_str()), (0, said), "{done:?}");
    assert_eq!(fs::read_to_string(place.workspace().join("made")).unwrap(), "made\n");
    let read_only = ["run", "--read-only", "--workspace-at", "/srv/project", "--shell"];
    for path in ["/srv/project/x", "/workspace/x"] {
        let done = place.stockade(&[&read_only[..], &[&format!("echo > {path}")]].concat());
        assert!(done.code != 0 && done.stderr.contains("Read-only"), "{done:?}");
    }
    place.stockade(&["run", "--workspace-at", "/usr/x", "--", "true"]).is_refused(&["workspaceAt"]);
}

/// What `explain` says of one toolchain.
fn shown_of(
    place: &CliPlace,
    name: &str,
    variables: &[(&str, &str)],
    flags: &[&str],
) -> Vec<String> {
    let home = place.path("home").display().to_string();
    let mut command = place.command(&[&["explain", "--json"], flags].concat());
    command.env("PATH", format!("{home}/.local/bin:{home}/.go/bin:/usr/bin:/bin"));
    command.envs(variables.iter().copied());
    let done = finish(command);
    let told: Value = serde_json::from_str(&done.stdout).unwrap();
    let all = told["toolchains"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|found| found["name"] == name);
    let shown = found.and_then(|found| found["shown"].as_array().cloned()).unwrap_or_default();
    shown.iter().map(|path| path.as_str().unwrap().to_owned()).collect()
}

#[test]
fn nothing_is_looked_for_where_a_guest_may_write() {
    let place = with_toolchain();
    let home = place.path("home");
    for dir in [".local/bin", ".ssh", "cache/python/bin"] {
        fs::create_dir_all(home.join(dir)).unwrap();
    }
    fs::write(home.join(".local/bin/uv"), "").unwrap();
    let dir = home.join("cache/python").display().to_string();
    let named = [("UV_PYTHON_INSTALL_DIR", dir.as_str())];
    let mount = format!("{}:/cache:rw", home.join("cache").display());
    let all = shown_of(&place, "uv", &named, &[]);
    assert!(all.contains(&dir), "{all:?}");
    let all = shown_of(&place, "uv", &named, &["--mount", &mount]);
    assert!(!all.contains(&dir), "{all:?}");
    // What a guest could have done to it in an earlier run.
    fs::remove_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(home.join(".ssh"), &dir).unwrap();
    let all = shown_of(&place, "uv", &named, &["--mount", &mount]);
    assert!(!all.contains(&dir), "{all:?}");
}

#[test]
fn a_directory_of_modules_is_not_taken_for_go_itself() {
    let place = with_toolchain();
    let go = place.path("home/.go");
    for dir in ["bin", "src/corp", "pkg/mod/cache/vcs"] {
        fs::create_dir_all(go.join(dir)).unwrap();
    }
    let base = go.display().to_string();
    let named = [("GOROOT", base.as_str())];
    let shown = shown_of(&place, "go", &named, &[]);
    assert!(!shown.iter().any(|path| path.starts_with(&base)), "{shown:?}");
    for dir in ["pkg/tool", "src/runtime"] {
        fs::create_dir_all(go.join(dir)).unwrap();
    }
    fs::write(go.join("VERSION"), "go1.26").unwrap();
    let shown = shown_of(&place, "go", &named, &[]);
    for (inside, is_shown) in
        [("bin", true), ("pkg/tool", true), ("pkg/mod", false), ("pkg", false)]
    {
        assert_eq!(shown.contains(&format!("{base}/{inside}")), is_shown, "{inside}: {shown:?}");
    }
}
