//! Runs a test of the same binary once more as an ordinary user, where the one who runs it is root.

use std::process::Command;

/// A user and group without a name: nobody's, and so without any right that was not given to all.
const NOBODY: &str = "50123";

/// Runs this test as an ordinary user. Where the tests already run as one, that has been done.
pub fn repeat(test: &str) {
    if !rustix::process::geteuid().is_root() {
        println!("run by an ordinary user: `{test}` itself is the proof");
        return;
    }
    let home = tempfile::Builder::new().prefix("stockade-ordinary-").tempdir().unwrap();
    let owner: u32 = NOBODY.parse().unwrap();
    std::os::unix::fs::chown(home.path(), Some(owner), Some(owner)).unwrap();
    let run = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&run.stdout));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    let ran = String::from_utf8_lossy(&run.stdout).contains("1 passed");
    assert!(ran, "no test of that name ran as an ordinary user");
}
