//! Runs the program that makes a root, for a bounded time. It ends with its caller: dropped, at its deadline, or killed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use stockade_core::{Error, ErrorCode, Result};
use stockade_images::{LayerDraft, PackedLayer, compress_archive};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{OwnedRwLockReadGuard, mpsc, oneshot};

use super::STARTER_OPERATION;
use super::bootstrap::BootstrapCommand;
use crate::images::build::{BuildReport, create_layer};
use crate::images::lines::{clean_line, drain_lines};

/// Longer than any host takes that downloads at all.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How long a program may take to remove what it has made.
const END_GRACE_PERIOD: Duration = Duration::from_secs(20);
/// How long the rest of its group may take to end after it, and how often that is looked at.
const GROUP_END_TIMEOUT: Duration = Duration::from_secs(2);
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(2);
const ARCHIVE_FILE: &str = "archive";
/// Lines that wait to be shown.
const MAX_QUEUED_LINES: usize = 64;
const READ_CHUNK_BYTES: usize = 4096;

/// Runs the words after the signal in the background, and sends the signal to all of them when its own standard input
/// ends: with the process that holds the other end, however that ended.
const WATCHDOG_SCRIPT: &str = r#"signal=$1; shift
umask 022
exec 3<&0 </dev/null
trap : TERM
"$@" 3<&- &
child=$!
{ trap '' TERM; cat; kill -s "$signal" 0; } <&3 3<&- >/dev/null 2>&1 &
exec 3<&-
while :; do wait "$child"; status=$?; kill -0 "$child" 2>/dev/null || exit "$status"; done"#;

/// A program under way, in a process group of its own.
struct BootstrapProcess {
    child: Child,
    group: Option<Pid>,
    /// When it closes, the watchdog ends the group.
    watchdog: Option<ChildStdin>,
    program: &'static str,
}

/// Has the program make a root, shows what it says, and packs the root as a layer in the draft. `running` is held until
/// nothing of it is left, also where the caller has gone.
pub(super) async fn make_layer(
    command: BootstrapCommand,
    draft: LayerDraft,
    running: OwnedRwLockReadGuard<()>,
    report: &dyn BuildReport,
) -> Result<(LayerDraft, PackedLayer)> {
    let (lines, mut shown) = mpsc::channel(MAX_QUEUED_LINES);
    // Dropped with this future.
    let (_caller, caller_gone) = oneshot::channel::<()>();
    let task = tokio::spawn(make_unattended(running, command, draft, lines, caller_gone));
    while let Some(line) = shown.recv().await {
        report.output(&line);
    }
    task.await.unwrap_or_else(|error| Err(failed("the work was cut off").source(error)))
}

/// The same in a task of its own, which goes on to a clean end where the caller has gone. The first parameter is
/// dropped last, after the draft.
async fn make_unattended(
    _running: OwnedRwLockReadGuard<()>,
    command: BootstrapCommand,
    draft: LayerDraft,
    lines: mpsc::Sender<String>,
    caller_gone: oneshot::Receiver<()>,
) -> Result<(LayerDraft, PackedLayer)> {
    let archive = run_bootstrap(command, &draft, &lines, caller_gone).await?;
    let made = pack(draft, archive).await?;
    if lines.is_closed() { Err(failed("it was cancelled")) } else { Ok(made) }
}

async fn run_bootstrap(
    command: BootstrapCommand,
    draft: &LayerDraft,
    lines: &mpsc::Sender<String>,
    caller_gone: oneshot::Receiver<()>,
) -> Result<File> {
    let unwritable = |error| failed("the archive cannot be written").source(error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let archive = options.open(draft.path().join(ARCHIVE_FILE)).map_err(unwritable)?;
    let output = archive.try_clone().map_err(unwritable)?;
    let mut process = BootstrapProcess::start(command, output)?;
    let ended = tokio::select! {
        ended = process.wait(lines) => ended,
        _ = caller_gone => Err(failed("it was cancelled")),
        () = tokio::time::sleep(BOOTSTRAP_TIMEOUT) => {
            let minutes = BOOTSTRAP_TIMEOUT.as_secs() / 60;
            Err(failed(&format!("{} took longer than {minutes} minutes", process.program)))
        }
    };
    process.end().await;
    ended.map(|()| archive)
}

async fn pack(draft: LayerDraft, archive: File) -> Result<(LayerDraft, PackedLayer)> {
    let work = move || {
        let packed = compress_archive(archive, create_layer(&draft)?);
        let packed = packed.map_err(|error| failed("the root cannot be packed").source(error))?;
        Ok((draft, packed))
    };
    let packed = tokio::task::spawn_blocking(work).await;
    packed.unwrap_or_else(|error| Err(failed("the packing was cut off").source(error)))
}

impl BootstrapProcess {
    fn start(command: BootstrapCommand, output: File) -> Result<Self> {
        let BootstrapCommand { program, words, variables, end_signal } = command;
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCHDOG_SCRIPT, "sh", end_signal]).args(words).envs(variables);
        shell.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive").current_dir("/");
        // A signal of the terminal is for this process, which ends the group in its own way.
        shell.process_group(0).stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
        let unstartable =
            |error: io::Error| failed(&format!("{program} cannot be started")).source(error);
        let mut child = shell.spawn().map_err(unstartable)?;
        // Waiting for a child closes an input that it has.
        let watchdog = child.stdin.take();
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { child, group, watchdog, program })
    }

    /// Passes on what it says until it ends.
    async fn wait(&mut self, lines: &mpsc::Sender<String>) -> Result<()> {
        let mut last = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let (mut pending, mut chunk) = (Vec::new(), [0; READ_CHUNK_BYTES]);
            while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
                pending.extend_from_slice(&chunk[..count]);
                for line in drain_lines(&mut pending) {
                    last.clone_from(&line);
                    // A caller that has gone is seen elsewhere.
                    let _ = lines.send(line).await;
                }
            }
            if !pending.is_empty() {
                last = clean_line(&pending);
                let _ = lines.send(last.clone()).await;
            }
        }
        let status = self.child.wait().await;
        let status = status.map_err(|error| failed("it cannot be waited for").source(error))?;
        self.judge(status, &last)
    }

    fn judge(&self, status: ExitStatus, last: &str) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        let message = format!("{} failed ({status}): {last}", self.program);
        Err(failed(&message).remedy(
            "see what it said; the sources of packages have to be reachable, and an ordinary user needs a range in \
             /etc/subuid and /etc/subgid",
        ))
    }

    /// Ends it if it has not ended, and returns when it has, with everything that it started.
    async fn end(mut self) {
        drop(self.watchdog.take());
        if tokio::time::timeout(END_GRACE_PERIOD, self.child.wait()).await.is_err() {
            // It may have ended already.
            let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = self.child.wait().await;
        }
        if let Some(group) = self.group {
            // A process that is not reaped yet is still counted, so this has a bound.
            let _ = tokio::time::timeout(GROUP_END_TIMEOUT, wait_for_group(group)).await;
        }
    }
}

/// Returns when no process of the group is left.
async fn wait_for_group(group: Pid) {
    while test_kill_process_group(group).is_ok() {
        tokio::time::sleep(GROUP_POLL_INTERVAL).await;
    }
}

fn failed(message: &str) -> Error {
    Error::new(ErrorCode::System, STARTER_OPERATION, message)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use stockade_images::ImageStore;
    use tokio::sync::RwLock;

    use super::*;

    /// Keeps what is shown, and tells when there is a line.
    #[derive(Default)]
    struct Kept {
        lines: Mutex<Vec<String>>,
        said: tokio::sync::Notify,
    }

    impl BuildReport for Kept {
        fn step(&self, _line: &str) {}

        fn output(&self, line: &str) {
            self.lines.lock().unwrap().push(line.to_owned());
            self.said.notify_one();
        }
    }

    fn shell(script: &str, end_signal: &'static str) -> BootstrapCommand {
        let words = ["sh", "-c", script].map(Into::into).to_vec();
        BootstrapCommand { program: "mmdebstrap", words, variables: Vec::new(), end_signal }
    }

    /// Runs a script in place of the program.
    async fn make(script: &str, report: &Kept) -> Result<PackedLayer> {
        let dir = tempfile::tempdir().unwrap();
        let draft = ImageStore::open(dir.path()).unwrap().draft_layer().unwrap();
        let running = Arc::new(RwLock::new(())).read_owned().await;
        let (draft, packed) = make_layer(shell(script, "TERM"), draft, running, report).await?;
        assert_eq!(std::fs::metadata(draft.layer_path()).unwrap().len(), packed.size);
        Ok(packed)
    }

    #[tokio::test]
    async fn what_a_program_writes_becomes_a_layer_and_what_it_says_is_shown() {
        let report = Kept::default();
        let script = "cd /usr/bin && printf 'one\\ntwo\\033[1m' >&2 && tar -cf - env true";
        let packed = make(script, &report).await.unwrap();
        assert_eq!(packed.entries, 2);
        assert_eq!(*report.lines.lock().unwrap(), ["one", "two\u{fffd}[1m"]);
    }

    #[tokio::test]
    async fn a_program_that_fails_is_named_with_its_last_line() {
        let error = make("echo 'E: no mirror' >&2; exit 7", &Kept::default()).await.unwrap_err();
        assert!(error.message().contains("E: no mirror"), "{error}");
        assert!(error.message().starts_with("mmdebstrap failed"), "{error}");
    }

    #[tokio::test]
    async fn a_caller_that_goes_leaves_neither_program_nor_draft() {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path()).unwrap();
        let (running, report) = (Arc::new(RwLock::new(())), Kept::default());
        for (script, end_signal) in [
            ("echo $$ >&2; exec sleep 600", "KILL"),
            ("trap 'exit 1' TERM; echo $$ >&2; while :; do sleep 600 & wait $!; done", "TERM"),
        ] {
            let (draft, held) = (store.draft_layer().unwrap(), running.clone().read_owned().await);
            tokio::select! {
                made = make_layer(shell(script, end_signal), draft, held, &report) => {
                    panic!("it ended by itself: {made:?}");
                }
                () = report.said.notified() => {}
            }
            let _all_ended = running.write().await;
            let pid: i32 = report.lines.lock().unwrap().pop().unwrap().parse().unwrap();
            let is_there = rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_ok();
            assert!(!is_there || is_zombie(pid), "{script}");
            assert_eq!(std::fs::read_dir(dir.path().join("drafts")).unwrap().count(), 0);
        }
    }

    /// Whether a process has ended and only its parent has not looked.
    fn is_zombie(pid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }
}
