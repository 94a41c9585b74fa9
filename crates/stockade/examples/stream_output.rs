//! Output as it comes, input while the program runs, and how it ended.
//!
//! `cargo run --example stream_output`

use stockade::{OutputEvent, Sandbox, StreamId};

const SCRIPT: &str = "while read -r word; do echo \"got $word\"; done; echo 'no more' >&2; exit 4";

#[tokio::main]
async fn main() -> stockade::Result<()> {
    let sandbox = Sandbox::builder().create().await?;
    let mut running = sandbox.shell(SCRIPT).stdin_stream().start().await?;
    for word in ["one", "two", "three"] {
        running.write_stdin(format!("{word}\n")).await?;
        // Read line by line, so that each answer is there before the next word is sent.
        print_line(&mut running).await;
    }
    running.close_stdin().await?;
    while let Some(event) = running.next().await {
        match event {
            OutputEvent::Output { stream: StreamId::Stdout, data, .. } => {
                print!("out: {}", String::from_utf8_lossy(&data));
            }
            OutputEvent::Output { stream: StreamId::Stderr, data, .. } => {
                print!("err: {}", String::from_utf8_lossy(&data));
            }
            OutputEvent::Gap { bytes, .. } => println!("({bytes} bytes were dropped)"),
            OutputEvent::End(outcome) => println!("end: {:?}", outcome.ending),
        }
    }
    sandbox.destroy().await
}

/// Prints output until a line is complete. Pieces come as the program wrote them, not line by line.
async fn print_line(running: &mut stockade::Running) {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        match running.next().await {
            Some(OutputEvent::Output { data, .. }) => line.extend_from_slice(&data),
            Some(OutputEvent::Gap { .. } | OutputEvent::End(_)) | None => return,
        }
    }
    print!("out: {}", String::from_utf8_lossy(&line));
}
