//! One call of the program that answers and ends: `capabilities`, `list`, `destroy`.

use std::process::Stdio;
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::{ExecWalls, NAME};

/// How long a call may take.
const VERB_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest answer.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// What the program prints for these words. It has ended then, with success.
pub(super) async fn run_verb(walls: &ExecWalls, words: &[&str]) -> Result<Vec<u8>> {
    let verb = words.first().copied().unwrap_or_default();
    match tokio::time::timeout(VERB_TIMEOUT, call_program(walls, words)).await {
        Ok(answer) => answer,
        Err(_) => {
            let message = format!("`{verb}` takes longer than {} s", VERB_TIMEOUT.as_secs());
            Err(Error::new(ErrorCode::TooSlow, "call the program", message).backend(NAME))
        }
    }
}

async fn call_program(walls: &ExecWalls, words: &[&str]) -> Result<Vec<u8>> {
    let verb = words.first().copied().unwrap_or_default();
    let failed = |message: String| {
        Error::new(ErrorCode::Unavailable, "call the program", message).backend(NAME)
    };
    let mut command = Command::new(&walls.program);
    command.args(&walls.arguments).args(words).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let cannot = || format!("`{}` cannot be run", walls.program.display());
    let mut child = command.spawn().map_err(|error| failed(cannot()).source(error))?;
    let mut answer = Vec::new();
    if let Some(output) = child.stdout.take() {
        let read = output.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut answer).await;
        read.map_err(|error| failed(cannot()).source(error))?;
    }
    if answer.len() as u64 > MAX_ANSWER_BYTES {
        return Err(failed(format!("`{verb}` prints more than {MAX_ANSWER_BYTES} bytes")));
    }
    let status = child.wait().await.map_err(|error| failed(cannot()).source(error))?;
    match status.success() {
        true => Ok(answer),
        false => Err(failed(format!("`{verb}` failed: {status}"))),
    }
}
