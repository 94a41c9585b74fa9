//! Runs a test of the same binary once more, as an ordinary user.

use std::process::Command;

/// User and group id that no account has, and so without any right that not everyone has.
const UNPRIVILEGED_ID: &str = "50123";

/// A program that becomes such a user.
fn becoming_nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        UNPRIVILEGED_ID,
        "--regid",
        UNPRIVILEGED_ID,
        "--clear-groups",
        "--no-new-privs",
        "--",
    ]);
    command.arg(std::env::current_exe().unwrap());
    command
}

/// Runs this test as an ordinary user; as oneself, where one is an ordinary user already.
pub fn run_as_ordinary_user(module: &str, test: &str) {
    // A test is named from the crate on, without its name.
    let module = module.split_once("::").map_or("", |(_, below)| below);
    let test = &format!("{module}::{test}");
    let root = rustix::process::geteuid().is_root();
    let home = tempfile::Builder::new().prefix("stockade-ordinary-").tempdir().unwrap();
    let mut command = if root {
        let owner: u32 = UNPRIVILEGED_ID.parse().unwrap();
        std::os::unix::fs::chown(home.path(), Some(owner), Some(owner)).unwrap();
        becoming_nobody()
    } else {
        Command::new(std::env::current_exe().unwrap())
    };
    command.args(["--exact", test, "--nocapture"]);
    let run = command.env("HOME", home.path()).env("TMPDIR", home.path()).output().unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    print!("{told}");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    assert!(told.contains("1 passed"), "no test of that name ran as an ordinary user");
}
