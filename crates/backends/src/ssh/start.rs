//! Starts the program on the peer and waits for its first word. What it needs and what it said is
//! told apart from what a login shell prints.

use std::process::Stdio;
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::NAME;
use super::host::{CONNECT_PERMITS, Host};
use super::ssh_error::{no_connection, no_ssh};
use super::upload::{is_missing, read_stderr, start_script, upload_far};
use crate::peer::client::PeerConnection;
use crate::peer::protocol::HELLO_LINE;

/// How long connecting and the first word may take.
pub(super) const FIRST_WORD: Duration = Duration::from_secs(20);
/// How long the end of one that did not say it may take.
pub(super) const LAST_WORD: Duration = Duration::from_secs(5);
/// Most bytes that a login shell may print before the hello line.
const MAX_BANNER_BYTES: usize = 64 * 1024;

/// The `ssh` that carries a connection, which is killed when this is dropped, and who reads what it says
/// beside it.
struct SshCarrier(#[expect(dead_code, reason = "held for its end")] Child, AbortHandle);

impl Drop for SshCarrier {
    fn drop(&mut self) {
        self.1.abort();
    }
}

/// Connects, sending the program there first if it has to be.
pub(super) async fn start_far(host: &Host) -> Result<PeerConnection> {
    if let Some(started) = try_start(host).await? {
        return Ok(started);
    }
    upload_far(host).await?;
    let started = try_start(host).await?;
    started.ok_or_else(|| {
        let remedy = "see whether programs may be run from `~/.cache` there";
        host.unavailable_error("connect", "the program cannot be run there").remedy(remedy)
    })
}

/// Nothing if the program is not there.
async fn try_start(host: &Host) -> Result<Option<PeerConnection>> {
    // Never closed, so always given.
    let _one_of_few = CONNECT_PERMITS.acquire().await.ok();
    let mut call = host.ssh_command(&start_script("serve"))?;
    call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = call.spawn().map_err(|error| no_ssh(host, "connect", error))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(input), Some(output)) = (input, output) else {
        return Err(host.unavailable_error("connect", "its streams are missing"));
    };
    let mut output = BufReader::with_capacity(64 * 1024, output);
    let stderr = child.stderr.take();
    match timeout(FIRST_WORD, read_greeting(&mut output, HELLO_LINE)).await {
        Err(_) => {
            let message = format!("host `{}` did not answer within {FIRST_WORD:?}", host.name);
            Err(Error::new(ErrorCode::TooSlow, "connect", message).backend(NAME))
        }
        Ok(true) => {
            // Standard error is drained, so that no writer there blocks on a full pipe.
            let reading =
                tokio::spawn(async move { drop(read_stderr(stderr).await) }).abort_handle();
            Ok(Some(PeerConnection {
                input: Box::new(input),
                output: Box::new(output),
                carrier: Box::new(SshCarrier(child, reading)),
            }))
        }
        Ok(false) => {
            // The pipes are closed: a process that still reads or writes there is not waited for.
            drop((input, output));
            let ending = async { (read_stderr(stderr).await, child.wait().await.ok()) };
            let (told, status) = timeout(LAST_WORD, ending).await.unwrap_or_default();
            match status {
                Some(status) if is_missing(status) => Ok(None),
                status => Err(no_connection(host, "connect", status, &told)),
            }
        }
    }
}

/// Reads up to the first word; false if the stream ends or goes on for too long without it.
pub(super) async fn read_greeting(output: &mut (impl AsyncBufRead + Unpin), hello: &[u8]) -> bool {
    let (mut line, mut left) = (Vec::new(), MAX_BANNER_BYTES);
    while left > 0 {
        let Ok(piece) = output.fill_buf().await else { return false };
        if piece.is_empty() {
            return false;
        }
        let end = piece.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let taken = end.unwrap_or(piece.len()).min(left);
        line.extend_from_slice(&piece[..taken]);
        output.consume(taken);
        left -= taken;
        if line.ends_with(hello) {
            return true;
        }
        if end.is_some() {
            line.clear();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_login_shell_prints_is_passed_over_and_nothing_behind_the_first_word_is_lost() {
        let text = [b"welcome\nno newline: ", HELLO_LINE, b"\x02\0\0\0\0"].concat();
        let mut reader = &text[..];
        assert!(read_greeting(&mut reader, HELLO_LINE).await);
        assert_eq!(reader, b"\x02\0\0\0\0");
    }

    #[tokio::test]
    async fn a_flood_instead_of_the_first_word_is_not_read_for_ever() {
        let text = vec![b'x'; MAX_BANNER_BYTES * 2];
        assert!(!read_greeting(&mut &text[..], HELLO_LINE).await);
    }
}
