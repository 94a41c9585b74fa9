//! The whole kit on the ssh backend, by way of a server of its own on loopback: real walls behind a real
//! connection, for whoever runs the test.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]

mod sshd;

use std::sync::Arc;

use sshd::Sshd;
use stockade_backends::ssh::Ssh;
use stockade_tck::{OnHost, Options, Status, run};

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
    let report = run(Arc::new(subject), &Options::default()).await;
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
