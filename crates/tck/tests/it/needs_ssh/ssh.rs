//! The whole kit on the ssh backend, by way of a server of its own on loopback: real walls behind a real
//! connection, for the user who runs the test.

use std::process::Command;
use std::sync::Arc;

use crate::sshd::Sshd;
use stockade_backends::ssh::Ssh;
use stockade_tck::{KitOptions, OnHost, Status, run};

/// The variable that names the server's configuration to an engine of its own.
const SSH_CONFIG: &str = "STOCKADE_TCK_SSH_CONFIG";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_ssh_backend_passes_every_case_it_declares_the_features_for() {
    let sshd = Sshd::start();
    let engine = "/usr/bin/env".into();
    let arguments = vec![
        format!("{SSH_CONFIG}={}", sshd.config().display()),
        env!("CARGO_BIN_EXE_stockade-tck-engine").into(),
        "ssh".into(),
    ];
    let subject = OnHost::new(Arc::new(Ssh::new(vec![sshd.host()])))
        .leaving_nothing_in(sshd.cache())
        .with_engine_process(engine, arguments);
    let report = run(Arc::new(subject), &KitOptions::default()).await;
    println!("{}", report.table());
    for case in &report.cases {
        if let Status::Failed(reason) = &case.status {
            println!("{}: {reason}", case.name);
        }
    }
    assert_eq!(report.failures(), Vec::<&str>::new());
    let passed = report.cases.iter().filter(|case| case.status == Status::Passed).count();
    assert!(passed > 80, "only {passed} cases ran");
}

/// User and group id that no account has.
const UNPRIVILEGED_ID: u32 = 50123;

#[test]
fn the_ssh_backend_passes_for_an_ordinary_user_too() {
    let home = tempfile::Builder::new().prefix("stockade-ordinary-").tempdir().unwrap();
    let mut command = match rustix::process::geteuid().is_root() {
        true => becoming_ordinary(home.path()),
        false => Command::new(std::env::current_exe().unwrap()),
    };
    let test = "needs_ssh::ssh::the_ssh_backend_passes_every_case_it_declares_the_features_for";
    command.args(["--exact", test, "--nocapture"]);
    command.env("HOME", home.path()).env("TMPDIR", home.path()).env_remove("XDG_RUNTIME_DIR");
    let run = command.output().unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    print!("{told}");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    assert!(told.contains("1 passed"), "no test of that name ran as an ordinary user");
}

/// This program as a user whom `ssh` and its server can look up, because a bind mount over `/etc/passwd`
/// says so, which no other process sees.
fn becoming_ordinary(home: &std::path::Path) -> Command {
    std::os::unix::fs::chown(home, Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID)).unwrap();
    let users = home.join("passwd");
    let known = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = format!(
        "stockade-test:x:{UNPRIVILEGED_ID}:{UNPRIVILEGED_ID}::{}:/bin/sh\n",
        home.display()
    );
    std::fs::write(&users, known + &line).unwrap();
    let script = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(users);
    let id = UNPRIVILEGED_ID.to_string();
    command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
    command.arg(std::env::current_exe().unwrap());
    command
}
