//! This program itself at work on another host: the one that is installed there if it speaks the same, else
//! this very executable, which is carried there like the program for sandboxes.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use sha2::{Digest, Sha256};
use stockade_agent::client::{Deadline, Expired};
use stockade_core::{Error, ErrorCode, Result, clean_foreign};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use super::NAME;
use super::host::{CONNECT_PERMITS, Host};
use super::ssh_error::{no_connection, no_ssh};
use super::start::{FIRST_WORD, LAST_WORD, read_greeting};
use super::upload::{OWN_PLACE, Upload, read_stderr, too_slow, upload_program};
use crate::peer::blocking_io::{self, Drain};

/// Timeout of uploading the program over a slow line.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the peer may take to begin to read, and to read all of it however fast it is.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_SEND_TIME: Duration = Duration::from_secs(6 * 60 * 60);
/// Longest line of an answer.
const MAX_ANSWER_LINE_BYTES: u64 = 1 << 20;
/// Exit code of a shell that does not find the program.
const EXIT_NOT_FOUND: i32 = 127;
/// How `ssh` says that it failed itself.
const NO_CONNECTION: i32 = 255;

/// The program that answers there.
#[derive(Debug, Clone, Copy)]
pub struct RemoteProgram<'a> {
    /// The program to ask first. Absent: the `stockade` that a shell finds there.
    pub program: Option<&'a Path>,
    /// What it is told to do. With `--speaks VERSION` it only says whether it can.
    pub verb: &'static str,
    /// The version of what is spoken.
    pub version: &'static str,
    /// The first line that it says.
    pub hello: &'static [u8],
}

/// This program at work on another host. It learns that its caller is gone when this is dropped.
pub struct RemoteCommand {
    host: Host,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// What came of an attempt.
enum Began {
    Running(Box<RemoteCommand>),
    /// There is no such program.
    Missing,
    /// It did not say its first word, but this.
    Mute(String),
}

impl RemoteCommand {
    /// Connects, carrying this executable there first if it has to be.
    pub async fn begin(host: &Host, remote: RemoteProgram<'_>) -> Result<Self> {
        if let Began::Running(command) =
            try_begin(host, &installed_script(remote)?, remote.hello).await?
        {
            return Ok(*command);
        }
        // Read only now: it is large.
        let (program, sum) = read_this_program().await.map_err(|error| {
            host.unavailable_error("connect", "this program cannot be read").source(error)
        })?;
        let upload = Upload { place: OWN_PLACE, name: "stockade", sum: &sum };
        let script = carried_script(&upload, remote);
        if let Began::Running(command) = try_begin(host, &script, remote.hello).await? {
            return Ok(*command);
        }
        upload_program(host, &upload, &program, UPLOAD_TIMEOUT).await?;
        match try_begin(host, &script, remote.hello).await? {
            Began::Running(command) => Ok(*command),
            Began::Missing => {
                Err(cannot_run(host, "programs may not be run from `~/.cache` there"))
            }
            Began::Mute(said) => Err(cannot_run(host, &said)),
        }
    }

    /// Sends what `write` writes, which is called in a thread that may block. Answers whether the peer
    /// has taken all of it; one that reads too slowly is an error.
    pub async fn send(
        &mut self,
        write: impl FnOnce(&mut Drain) -> Result<()> + Send + 'static,
    ) -> Result<bool> {
        let Some(input) = &mut self.input else { return Ok(false) };
        let deadline = Deadline::after(SEND_TIMEOUT, MAX_SEND_TIME);
        match send_pieces(input, write, deadline).await? {
            Ok(taken) => Ok(taken),
            Err(Expired) => Err(too_slow(&self.host, "sending")),
        }
    }

    /// The next line that it says; nothing if it went away.
    pub async fn line(&mut self, patience: Duration) -> Result<Option<String>> {
        let mut line = String::new();
        let mut bounded = (&mut self.output).take(MAX_ANSWER_LINE_BYTES);
        let read = timeout(patience, bounded.read_line(&mut line)).await;
        // What is no text, or breaks off, is no answer.
        let read = read.map_err(|_| too_slow(&self.host, "an answer"))?;
        Ok(read.is_ok_and(|_| line.ends_with('\n')).then_some(line))
    }

    /// Why it went away without an answer.
    pub async fn trouble(mut self, operation: &'static str) -> Error {
        drop(self.input.take());
        let (told, status) = wait_for_end(self.child, self.stderr).await;
        no_connection(&self.host, operation, status, &told)
    }
}

async fn send_pieces(
    input: &mut (impl AsyncWrite + Unpin),
    write: impl FnOnce(&mut Drain) -> Result<()> + Send + 'static,
    mut deadline: Deadline,
) -> Result<Result<bool, Expired>> {
    let (mut drain, mut pieces) = blocking_io::drain();
    let writing = tokio::task::spawn_blocking(move || {
        let written = write(&mut drain);
        // A flush error means that the reader is gone, and needs no report.
        let _ = drain.flush();
        written
    });
    let mut waiting = Instant::now();
    while let Some(piece) = pieces.recv().await {
        deadline.excuse(waiting.elapsed());
        // Given up here, the thread's next write fails, and it ends.
        match deadline.within(input.write_all(&piece)).await {
            Err(Expired) => return Ok(Err(Expired)),
            Ok(Err(_)) => return Ok(Ok(false)),
            Ok(Ok(())) => deadline.transferred(piece.len()),
        }
        waiting = Instant::now();
    }
    let ended =
        |join| Error::new(ErrorCode::System, "connect", "the writer thread failed").source(join);
    writing.await.map_err(ended)??;
    Ok(deadline.within(input.flush()).await.map(|flushed| flushed.is_ok()))
}

/// The bytes of this executable, and their sum.
async fn read_this_program() -> std::io::Result<(Vec<u8>, String)> {
    let read = || {
        // Not by its name: the file may have been replaced since.
        let program = std::fs::read("/proc/self/exe")?;
        let sum = Sha256::digest(&program).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((program, sum))
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|join| Err(std::io::Error::other(join)))
}

/// Runs the one that is installed there, if it speaks the same.
fn installed_script(remote: RemoteProgram<'_>) -> Result<String> {
    let RemoteProgram { program, verb, version, .. } = remote;
    let found = match program {
        None => "p=$(command -v stockade)".to_owned(),
        Some(path) => format!("p=\"{}\"", check_plain_path(path)?),
    };
    Ok(format!(
        "{found} && \"$p\" {verb} --speaks {version} </dev/null >/dev/null 2>&1 || exit {EXIT_NOT_FOUND}; \
         exec \"$p\" {verb}"
    ))
}

/// Runs the one that was carried there. What has not been used for days goes.
fn carried_script(upload: &Upload<'_>, remote: RemoteProgram<'_>) -> String {
    format!(
        "{}; touch -c \"${{p%/*}}\"; \
         find \"${{p%/*/*}}\" -mindepth 1 -maxdepth 1 -mtime +2 -exec rm -rf {{}} +; exec \"$p\" {}",
        upload.find_script(),
        remote.verb
    )
}

/// A path that means the same to every shell.
fn check_plain_path(path: &Path) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    let given = path.to_str().filter(|path| path.starts_with('/') && path.chars().all(plain));
    given.ok_or_else(|| {
        let message = format!("`{}` cannot be the path of a program there", path.display());
        Error::new(ErrorCode::Invalid, "connect", message)
            .backend(NAME)
            .remedy("give an absolute path of letters, digits and `._+-`")
    })
}

async fn try_begin(host: &Host, script: &str, hello: &[u8]) -> Result<Began> {
    // Never closed, so always given.
    let _one_of_few = CONNECT_PERMITS.acquire().await.ok();
    let mut call = host.ssh_command(script)?;
    call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = call.spawn().map_err(|error| no_ssh(host, "connect", error))?;
    let input = child.stdin.take();
    let stderr = child.stderr.take();
    let Some(output) = child.stdout.take() else {
        return Err(host.unavailable_error("connect", "its streams are missing"));
    };
    let mut output = BufReader::new(output);
    match timeout(FIRST_WORD, read_greeting(&mut output, hello)).await {
        Err(_) => Err(too_slow(host, "its first answer")),
        Ok(true) => {
            let host = host.clone();
            Ok(Began::Running(Box::new(RemoteCommand { host, child, input, output, stderr })))
        }
        Ok(false) => {
            // The pipes are closed: a process that still reads or writes there is not waited for.
            drop((input, output));
            let (told, status) = wait_for_end(child, stderr).await;
            match status.and_then(|status| status.code()) {
                Some(EXIT_NOT_FOUND) => Ok(Began::Missing),
                Some(NO_CONNECTION) | None => Err(no_connection(host, "connect", status, &told)),
                Some(_) => Ok(Began::Mute(told)),
            }
        }
    }
}

async fn wait_for_end(
    mut child: Child,
    stderr: Option<ChildStderr>,
) -> (String, Option<std::process::ExitStatus>) {
    let ending = async { (read_stderr(stderr).await, child.wait().await.ok()) };
    timeout(LAST_WORD, ending).await.unwrap_or_default()
}

fn cannot_run(host: &Host, said: &str) -> Error {
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let last = clean_foreign(last.unwrap_or("no reason given"));
    host.unavailable_error("connect", format!("this program cannot be run there: {last}"))
        .remedy("install `stockade` of the same version there")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_PROGRAM: RemoteProgram<'_> =
        RemoteProgram { program: None, verb: "arrive", version: "1", hello: b"hello\n" };

    #[test]
    fn the_scripts_survive_any_login_shell() {
        let upload = Upload { place: "own", name: "stockade", sum: "0" };
        let program = Some(Path::new("/opt/stockade-1.2/bin/stockade"));
        let [found, named] =
            [None, program].map(|program| RemoteProgram { program, ..TEST_PROGRAM });
        let scripts = [
            installed_script(found).unwrap(),
            installed_script(named).unwrap(),
            carried_script(&upload, found),
        ];
        for script in scripts {
            assert!(!script.contains(['\'', '\n', '!']), "{script}");
            let parsed = std::process::Command::new("sh").args(["-n", "-c", &script]).status();
            assert!(parsed.unwrap().success(), "{script}");
        }
    }

    fn write_forever(drain: &mut Drain) -> Result<()> {
        while drain.write_all(&[7; 4096]).is_ok() {}
        Ok(())
    }

    #[tokio::test]
    async fn whoever_does_not_read_or_reads_forever_is_given_up() {
        let brief = Duration::from_millis(5);
        let (mut deaf, _held) = tokio::io::duplex(4096);
        let given_up = send_pieces(&mut deaf, write_forever, Deadline::fixed(brief)).await;
        assert_eq!(given_up.unwrap(), Err(Expired));
        // One that takes everything at once is never waited for, and has an end all the same.
        let mut sink = tokio::io::sink();
        let given_up =
            send_pieces(&mut sink, write_forever, Deadline::after(brief, 2 * brief)).await;
        assert_eq!(given_up.unwrap(), Err(Expired));
    }

    #[tokio::test]
    async fn all_that_is_written_is_sent() {
        let mut sent = Vec::new();
        let write = |drain: &mut Drain| {
            drain.write_all(&[7; 200_000]).map_err(|_| Error::new(ErrorCode::System, "t", "t"))
        };
        let taken = send_pieces(&mut sent, write, Deadline::fixed(SEND_TIMEOUT)).await;
        assert_eq!((taken.unwrap(), sent.len()), (Ok(true), 200_000));
    }

    #[test]
    fn a_program_whose_path_a_shell_would_read_differently_is_refused() {
        for path in ["stockade", "/a b", "/$(id)", "/a\"b", "/a\nb", "/a`b`", ""] {
            assert!(check_plain_path(Path::new(path)).is_err(), "{path:?}");
        }
    }
}
