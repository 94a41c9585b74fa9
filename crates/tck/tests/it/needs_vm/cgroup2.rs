//! Limits under a pure cgroup v2 hierarchy, in a virtual machine with a kernel of its own. Where what
//! that takes is not installed, the test is reported as ignored; not so in CI, where it then fails.

use std::path::Path;
use std::process::Command;

#[test]
fn the_limit_cases_pass_under_cgroup_v2_as_root_and_as_an_ordinary_user() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cgroup2-vm");
    let run = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_stockade-tck-engine"))
        .env("STOCKADE_VM_SECONDS", "500")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
