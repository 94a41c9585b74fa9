//! A command, then a sandbox with a limit and a file: what most programs need.
//!
//! `cargo run --example quickstart`

use std::time::Duration;

#[tokio::main]
async fn main() -> stockade::Result<()> {
    // A sandbox of its own, gone when this returns.
    let output = stockade::run("echo hi from $(pwd)").await?;
    print!("{}", output.stdout_utf8());

    let sandbox = stockade::Sandbox::builder()
        .memory("256m")
        .wall_time(Duration::from_secs(30))
        .create()
        .await?;
    sandbox.write_file("numbers.txt", "3\n1\n2\n").await?;
    let sorted = sandbox.exec(["sort", "numbers.txt"]).output().await?;
    print!("{}", sorted.stdout_utf8());

    // A program that fails is no error: the outcome says how it ended.
    let failed = sandbox.shell("echo no >&2; exit 3").output().await?;
    println!("{:?}, saying {:?}", failed.outcome.ending, failed.stderr_utf8());
    sandbox.destroy().await
}
