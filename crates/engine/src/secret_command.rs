//! Commands of the host's user that print the value of a secret, for as long as sandboxes need it. What is printed is
//! read here and nowhere else, and is in no error (C-41).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};
use stockade_core::SecretValue;
use stockade_fs::Timestamp;
use stockade_network::{IssuedSecret, SecretIssuer};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The most that a command prints: more than the longest value, in JSON.
const MAX_PRINTED_BYTES: u64 = 64 << 10;
/// How long a command may take while a person waits for it, who may have to type a password.
const ATTENDED_TIMEOUT: Duration = Duration::from_secs(300);
/// How often it is looked whether a command has ended that has closed its output.
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs a line in the background, and ends all that it has started when the standard input ends before: with the process
/// that holds the other end, however that ended.
const WATCHDOG_SCRIPT: &str = r#"exec 3<&0 </dev/null
sh -c "$1" 3<&- &
child=$!
{ read -r end <&3; kill -s KILL 0; } >/dev/null 2>&1 &
watchdog=$!
exec 3<&-
wait "$child"
status=$?
kill -s KILL "$watchdog"
wait "$watchdog"
exit "$status""#;

/// A line of shell that prints the value of a secret. It is never shown: it may hold what is as secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretCommand {
    line: String,
    dir: PathBuf,
}

/// What a command prints that knows when its value expires.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrintedSecret {
    value: String,
    #[serde(default)]
    expires: Option<String>,
}

impl SecretCommand {
    /// A line for `sh`, run in this directory with the environment of this process.
    pub fn new(line: String, dir: PathBuf) -> Self {
        Self { line, dir }
    }

    /// Asks for the first value, while the caller waits at its terminal: the command speaks there, and ends with Ctrl-C.
    pub async fn ask_attended(&self) -> Result<IssuedSecret, String> {
        let mut command = self.command(&self.line);
        let mut child = command.stdin(Stdio::null()).spawn().map_err(describe_unstarted)?;
        let asking = async {
            let printed = read_output(&mut child).await?;
            check_output(printed, child.wait().await)
        };
        match timeout(ATTENDED_TIMEOUT, asking).await {
            Ok(printed) => parse_printed(&printed?),
            Err(_) => {
                Err(format!("its command did not end within {} s", ATTENDED_TIMEOUT.as_secs()))
            }
        }
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(&self.dir).stdout(Stdio::piped());
        command.kill_on_drop(true);
        command
    }
}

#[async_trait]
impl SecretIssuer for SecretCommand {
    async fn issue(&self) -> Result<IssuedSecret, String> {
        let mut command = self.command(WATCHDOG_SCRIPT);
        command.args(["sh", &self.line]).process_group(0);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(describe_unstarted)?;
        // Waiting for a child closes an input that it has.
        let _watchdog = child.stdin.take();
        let group = CommandGroup::of(&child);
        let printed = read_output(&mut child).await?;
        group.wait_for_leader().await.map_err(describe_unwaited)?;
        drop(group);
        parse_printed(&check_output(printed, child.wait().await)?)
    }
}

/// The processes of a command, killed when this is dropped: what it has started in the background does not outlive it,
/// whether it succeeds, fails or is given up. To be dropped before the command is reaped: then its number may be
/// another's.
struct CommandGroup(Option<Pid>);

impl CommandGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Waits until the command itself has ended, without reaping it.
    async fn wait_for_leader(&self) -> io::Result<()> {
        let Some(leader) = self.0 else { return Ok(()) };
        let unreaped = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(leader), unreaped)?.is_none() {
            tokio::time::sleep(END_POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl Drop for CommandGroup {
    fn drop(&mut self) {
        // There may be none left.
        let _ = self.0.map(|group| kill_process_group(group, Signal::KILL));
    }
}

impl fmt::Debug for SecretCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn describe_unstarted(error: io::Error) -> String {
    format!("its command cannot be run: {error}")
}

fn describe_unwaited(error: io::Error) -> String {
    format!("its command cannot be waited for: {error}")
}

async fn read_output(child: &mut Child) -> Result<Vec<u8>, String> {
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(MAX_PRINTED_BYTES + 1).read_to_end(&mut printed).await;
        read.map_err(|error| format!("what its command prints cannot be read: {error}"))?;
    }
    if printed.len() as u64 > MAX_PRINTED_BYTES {
        return Err("its command prints more than 64 KiB".to_owned());
    }
    Ok(printed)
}

fn check_output(printed: Vec<u8>, ended: io::Result<ExitStatus>) -> Result<String, String> {
    let status = ended.map_err(describe_unwaited)?;
    if !status.success() {
        return Err(format!("its command failed: {status}"));
    }
    String::from_utf8(printed).map_err(|_| "its command prints what is not UTF-8".to_owned())
}

/// The value alone, on one line; or a JSON object with `value`, and with `expires` where the command knows it.
fn parse_printed(printed: &str) -> Result<IssuedSecret, String> {
    let (value, expires) = if printed.trim_start().starts_with('{') {
        // Its own words may quote what was printed.
        let parsed = serde_json::from_str::<PrintedSecret>(printed).map_err(|_| {
            "its command prints a JSON object that is not \
             {\"value\": \"…\", \"expires\": \"2026-01-31T12:00:00Z\"}, of which `expires` may be left out"
        })?;
        (parsed.value, parsed.expires)
    } else {
        let line = printed.strip_suffix('\n').unwrap_or(printed);
        (line.strip_suffix('\r').unwrap_or(line).to_owned(), None)
    };
    let expires = expires.as_deref().map(parse_expiry).transpose()?;
    let value = SecretValue::try_from(value)?;
    Ok(IssuedSecret { value, expires })
}

fn parse_expiry(text: &str) -> Result<SystemTime, String> {
    let expires = parse_instant(text).ok_or(
        "its command gives an `expires` that is no time of RFC 3339, such as 2026-01-31T12:00:00Z",
    )?;
    if expires <= SystemTime::now() {
        return Err("its command gives a value that has expired already".to_owned());
    }
    Ok(expires)
}

/// An instant in UTC, or with the offset of another time zone behind it.
fn parse_instant(text: &str) -> Option<SystemTime> {
    let behind = text.len().checked_sub("+00:00".len()).and_then(|at| text.split_at_checked(at));
    let Some((local, offset)) = behind.filter(|(_, offset)| offset.starts_with(['+', '-'])) else {
        return Timestamp::try_from(text.to_owned()).ok().map(SystemTime::from);
    };
    let instant = SystemTime::from(Timestamp::try_from(format!("{local}Z")).ok()?);
    let (hours, minutes) = offset[1..].split_once(':')?;
    let (hours, minutes) = (parse_two_digits(hours)?, parse_two_digits(minutes)?);
    let ahead = Duration::from_secs((hours * 60 + minutes) * 60);
    if offset.starts_with('+') { instant.checked_sub(ahead) } else { instant.checked_add(ahead) }
}

fn parse_two_digits(text: &str) -> Option<u64> {
    let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const VALUE: &str = "correct horse";

    async fn ask(line: &str) -> Result<IssuedSecret, String> {
        let command = SecretCommand::new(line.to_owned(), "/".into());
        let attended = command.ask_attended().await;
        assert_eq!(command.issue().await, attended, "{line}");
        attended
    }

    fn issued(expires: Option<SystemTime>) -> Result<IssuedSecret, String> {
        Ok(IssuedSecret { value: SecretValue::try_from(VALUE.to_owned()).unwrap(), expires })
    }

    #[tokio::test]
    async fn a_command_prints_a_value_alone_or_with_its_expiry() {
        assert_eq!(ask("echo correct horse").await, issued(None));
        assert_eq!(ask("printf 'correct horse\\r\\n'").await, issued(None));
        assert_eq!(ask(r#"echo '{ "value": "correct horse" }'"#).await, issued(None));
        // In the year 2100.
        let late = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800));
        for time in
            ["2100-01-01T00:00:00Z", "2100-01-01T02:30:00+02:30", "2099-12-31T23:00:00.000-01:00"]
        {
            let line = format!(r#"echo '{{"value":"correct horse","expires":"{time}"}}'"#);
            assert_eq!(ask(&line).await, issued(late), "{time}");
        }
    }

    #[tokio::test]
    async fn what_is_no_value_is_refused_without_showing_it() {
        for line in [
            "echo correct horse; exit 3",
            "echo correct horse; kill -9 $$",
            "yes correct horse",
            "/nowhere correct",
            "echo correct; echo horse",
            "printf 'correct \\377 horse'",
            r#"echo '{"value":"correct horse"'"#,
            r#"echo '{"correct":"horse"}'"#,
            r#"echo '{"value":"correct horse","correct":1}'"#,
            r#"echo '{"value":"correct horse","expires":17}'"#,
            r#"echo '{"value":"correct horse","expires":"correct horse"}'"#,
            r#"echo '{"value":"correct horse","expires":"2100-01-01T00:00:00"}'"#,
            r#"echo '{"value":"correct horse","expires":"2100-01-01T00:00:00+1:00"}'"#,
            r#"echo '{"value":"correct horse","expires":"2001-01-01T00:00:00Z"}'"#,
        ] {
            for asked in [parse_attended(line).await, parse_unattended(line).await] {
                let error = asked.expect_err(line);
                assert!(!error.contains("correct") && !error.contains("horse"), "{line}: {error}");
            }
        }
    }

    async fn parse_attended(line: &str) -> Result<IssuedSecret, String> {
        SecretCommand::new(line.to_owned(), "/".into()).ask_attended().await
    }

    async fn parse_unattended(line: &str) -> Result<IssuedSecret, String> {
        SecretCommand::new(line.to_owned(), "/".into()).issue().await
    }

    #[tokio::test]
    async fn a_command_runs_where_its_caller_was() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), "correct horse\n").unwrap();
        let command = SecretCommand::new("cat key".to_owned(), dir.path().to_owned());
        assert_eq!(command.issue().await, issued(None));
        assert_eq!(format!("{command:?}"), "***");
        drop(dir);
        assert!(command.issue().await.unwrap_err().contains("cannot be run"));
    }

    /// A question that is given up ends the command, with all that it has started.
    #[tokio::test]
    async fn a_command_that_is_given_up_is_ended_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("child");
        // The second one has ended itself, and its child holds its output open.
        for end in ["wait", "exit"] {
            let line = format!("sleep 1000 & echo $! > child.new; mv child.new child; {end}");
            let command = SecretCommand::new(line, dir.path().to_owned());
            tokio::select! {
                issued = command.issue() => panic!("it ended: {issued:?}"),
                () = wait_until(|| path.exists()) => {}
            }
            let child = std::fs::read_to_string(&path).unwrap();
            let stat = format!("/proc/{}/stat", child.trim_end());
            wait_until(|| !is_alive(Path::new(&stat))).await;
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// Background processes that do not hold its output open end with a command as well.
    #[tokio::test]
    async fn what_a_command_leaves_in_the_background_is_ended_with_it() {
        let dir = tempfile::tempdir().unwrap();
        for (end, is_issued) in [("echo correct horse", true), ("exit 3", false)] {
            let line = format!("sleep 1000 >/dev/null 2>&1 & echo $! > child; {end}");
            let command = SecretCommand::new(line, dir.path().to_owned());
            assert_eq!(command.issue().await.is_ok(), is_issued, "{end}");
            let child = std::fs::read_to_string(dir.path().join("child")).unwrap();
            let stat = format!("/proc/{}/stat", child.trim_end());
            wait_until(|| !is_alive(Path::new(&stat))).await;
        }
    }

    async fn wait_until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Where no process waits for orphans, they stay as zombies.
    fn is_alive(stat: &Path) -> bool {
        std::fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z "))
    }
}
