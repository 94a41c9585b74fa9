//! The program for the peer: which one it is, how it is started there, and how it gets there when it
//! is missing. It is checked by its sum before it is in its place, and found by it afterwards.

use std::process::Stdio;
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result, clean_foreign};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::host::{CONNECT_PERMITS, Host};
use super::ssh_error::{no_connection, no_ssh};
use crate::peer::far_program::{FAR_DIGEST, FAR_PROGRAM};
use crate::peer::protocol::ProbeReply;

/// Timeout of uploading the program over a slow line.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(100);
/// Timeout of one question, with the measuring of a host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// Most of `ssh`'s standard error that is kept.
const MAX_STDERR_BYTES: u64 = 16 * 1024;

/// Exit codes of a shell that does not find the program, or cannot execute it.
const NOT_FOUND_CODES: [i32; 2] = [127, 126];

/// A program that is carried, and where it lies there.
pub(super) struct Upload<'a> {
    /// The directory for all versions of it, below this project's own.
    pub place: &'a str,
    /// Its file's name.
    pub name: &'a str,
    /// Its SHA-256, by which a version is found.
    pub sum: &'a str,
}

/// The directory of this very program, which a teleport carries.
pub(super) const OWN_PLACE: &str = "own";

/// Age below which a carried program is not cleaned away: longer than carrying and starting it takes.
#[cfg(feature = "factory")]
const MIN_CARRIED_AGE: Duration = Duration::from_secs(3600);

const FAR_UPLOAD: Upload<'_> = Upload { place: "far", name: "stockade-far", sum: FAR_DIGEST };

impl Upload<'_> {
    /// Sets `p` to where it lies. It must belong to who runs it: a place that others can write to could
    /// hold anything.
    pub(super) fn find_script(&self) -> String {
        let Self { place, name, sum } = self;
        format!(
            "p=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/stockade/{place}/{sum}/{name}\"; \
             [ -O \"$p\" ] || exit 127"
        )
    }

    /// Puts what comes in on standard input where the program belongs, if it is the right one.
    fn carry_script(&self) -> String {
        let Self { place, name, sum } = self;
        format!(
            "set -eu; umask 077; b=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/stockade/{place}\"; \
             mkdir -p \"$b\"; [ -O \"$b\" ] || {{ echo \"$b belongs to another user\" >&2; exit 77; }}; \
             t=$(mktemp -d \"$b/new-XXXXXXXX\"); trap \"rm -rf \\\"$t\\\"\" EXIT; \
             trap \"exit 1\" HUP INT TERM PIPE; cat >\"$t/{name}\"; s=$(sha256sum \"$t/{name}\"); \
             [ \"${{s%% *}}\" = {sum} ] || {{ echo \"what arrived is not what was sent\" >&2; exit 65; }}; \
             chmod 700 \"$t/{name}\"; mkdir -p \"$b/{sum}\"; mv -f \"$t/{name}\" \"$b/{sum}/{name}\""
        )
    }
}

/// What other hosts have carried to this one, for `stockade clean`. What is missing is carried once more, and a
/// program that runs needs no name; one that has just arrived is about to be started.
#[cfg(feature = "factory")]
pub(super) fn cache_dirs() -> Vec<stockade_fs::CacheDir> {
    use std::path::PathBuf;

    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let Some(cache) = absolute("XDG_CACHE_HOME").or_else(home) else { return Vec::new() };
    let places = [FAR_UPLOAD.place, OWN_PLACE].into_iter();
    let cache_dir = |place| stockade_fs::CacheDir {
        kind: "programs for ssh",
        path: cache.join("stockade").join(place),
        is_entry: |_| true,
        used: std::collections::BTreeSet::new(),
        min_age: MIN_CARRIED_AGE,
        maker_lock: None,
    };
    places.map(cache_dir).collect()
}

/// Has the program do one thing there.
pub(super) fn start_script(verb: &str) -> String {
    format!("{}; exec \"$p\" {verb}", FAR_UPLOAD.find_script())
}

/// Whether a call ended because the program is not there.
pub(super) fn is_missing(status: std::process::ExitStatus) -> bool {
    status.code().is_some_and(|code| NOT_FOUND_CODES.contains(&code))
}

/// Brings the program for sandboxes there.
pub(super) async fn upload_far(host: &Host) -> Result<()> {
    upload_program(host, &FAR_UPLOAD, FAR_PROGRAM, UPLOAD_TIMEOUT).await
}

/// Brings a program there.
pub(super) async fn upload_program(
    host: &Host,
    upload: &Upload<'_>,
    program: &[u8],
    patience: Duration,
) -> Result<()> {
    let carried =
        timeout(patience, run_ssh(host, host.ssh_command(&upload.carry_script())?, program)).await;
    let (status, _, said) = carried.map_err(|_| too_slow(host, "sending the program there"))??;
    if status.success() {
        return Ok(());
    }
    if status.code() == Some(255) {
        return Err(no_connection(host, "connect", Some(status), &said));
    }
    let last = clean_foreign(said.lines().last().unwrap_or("no reason given"));
    let error =
        host.unavailable_error("connect", format!("the program cannot be installed there: {last}"));
    Err(error.remedy("see that `~/.cache/stockade` there is yours alone, and that there is room"))
}

/// Asks the program one thing, carrying it there first if it has to be.
pub(super) async fn ask_far(host: &Host, verb: &str, input: &[u8]) -> Result<ProbeReply> {
    let asked = async {
        let (status, answer, said) =
            run_ssh(host, host.ssh_command(&start_script(verb))?, input).await?;
        if !is_missing(status) {
            return parse_answer(host, status, &answer, &said);
        }
        upload_far(host).await?;
        let (status, answer, said) =
            run_ssh(host, host.ssh_command(&start_script(verb))?, input).await?;
        parse_answer(host, status, &answer, &said)
    };
    let limit = ANSWER_TIMEOUT + UPLOAD_TIMEOUT;
    timeout(limit, asked).await.unwrap_or_else(|_| Err(too_slow(host, "an answer")))
}

pub(super) fn too_slow(host: &Host, what: &str) -> Error {
    let message = format!("host `{}`: {what} took too long", host.name);
    Error::new(ErrorCode::TooSlow, "connect", message).backend(super::NAME)
}

fn parse_answer(
    host: &Host,
    status: std::process::ExitStatus,
    answer: &str,
    said: &str,
) -> Result<ProbeReply> {
    // Output of a login shell comes before the reply.
    let line = answer.lines().last().unwrap_or_default();
    match serde_json::from_str(line) {
        Ok(ProbeReply::Failed(failure)) => Err(failure.error("connect", &host.peer().called)),
        Ok(said) => Ok(said),
        Err(_) if is_missing(status) => {
            let remedy = "see whether programs may be run from `~/.cache` there";
            Err(host.unavailable_error("connect", "the program cannot be run there").remedy(remedy))
        }
        Err(_) => Err(no_connection(host, "connect", Some(status), said)),
    }
}

/// Runs a call to its end: its status, its output, and what `ssh` said.
async fn run_ssh(
    host: &Host,
    mut call: Command,
    input: &[u8],
) -> Result<(std::process::ExitStatus, String, String)> {
    // Never closed, so always given.
    let _one_of_few = CONNECT_PERMITS.acquire().await.ok();
    call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = call.spawn().map_err(|error| no_ssh(host, "connect", error))?;
    let (answer, told) = exchange_streams(&mut child, input).await;
    let status = child.wait().await.map_err(|error| no_ssh(host, "connect", error))?;
    Ok((status, answer, told))
}

async fn exchange_streams(child: &mut Child, input: &[u8]) -> (String, String) {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feeding = async {
        if let Some(mut stdin) = stdin {
            // A write error is ignored: a peer that does not read to the end reports the reason itself.
            let _ = stdin.write_all(input).await;
        }
    };
    let hearing = async {
        let mut answer = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await;
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    let ((), answer, told) = tokio::join!(feeding, hearing, read_stderr(stderr));
    (answer, told)
}

/// What `ssh` says, to its end or as far as it is kept.
pub(super) async fn read_stderr(stderr: Option<tokio::process::ChildStderr>) -> String {
    let mut told = Vec::new();
    if let Some(stderr) = stderr {
        let _ = stderr.take(MAX_STDERR_BYTES).read_to_end(&mut told).await;
    }
    String::from_utf8_lossy(&told).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_survive_any_login_shell() {
        for script in [FAR_UPLOAD.carry_script(), start_script("serve")] {
            assert!(!script.contains(['\'', '\n', '!']), "{script}");
            let parsed = std::process::Command::new("sh").args(["-n", "-c", &script]).status();
            assert!(parsed.unwrap().success(), "{script}");
        }
        assert_eq!(FAR_DIGEST.len(), 64);
    }
}
