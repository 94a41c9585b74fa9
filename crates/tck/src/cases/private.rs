//! What is made on the host for a sandbox, as other users of the host find it (C-07).

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use stockade_core::SandboxId;

use crate::case::{case, check, same};
use crate::kit::start_engine_process;
use crate::{Case, Kit, Verdict};

pub(super) const PRIVACY_CASES: &[Case] = &[case!(
    "what is made on the host is closed to other users, whatever the umask",
    "C-07",
    check_closed_to_others
)];

/// Under the umask of this process, which hosts set as they like, and under one that takes no right away.
async fn check_closed_to_others(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let running = room.start_ready(["sleep", "600000"]).await?;
    check_closed(&kit, room.id()).await?;
    running.close().await?;
    room.destroy().await?;
    check_closed_under_open_umask(&kit).await
}

/// The same of an engine in a process of its own, where the subject offers one.
async fn check_closed_under_open_umask(kit: &Kit) -> Verdict {
    let Some(process) = kit.engine_command() else { return Ok(()) };
    let (mut child, line) = start_engine_process(without_umask(&process)).await?;
    let id: Result<SandboxId, _> = line.parse();
    let closed = match id {
        Ok(id) => check_closed(kit, &id).await,
        Err(error) => Err(error.into()),
    };
    child.kill().await?;
    // Opening an engine reaps what the killed one has left.
    kit.another_engine(|_| ()).await?;
    closed
}

/// The same command, by a shell that sets a umask of zero first.
fn without_umask(command: &Command) -> Command {
    let mut open = Command::new("sh");
    open.args(["-c", "umask 000; exec \"$@\"", "sh"]);
    open.arg(command.get_program()).args(command.get_args());
    open.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    open
}

/// Stops the case if other users could read or change the state or anything of this sandbox.
async fn check_closed(kit: &Kit, id: &SandboxId) -> Verdict {
    let state = std::fs::symlink_metadata(kit.state())?;
    same!("the owner of the state directory", state.uid(), rustix::process::geteuid().as_raw());
    let mode = state.mode() & 0o7777;
    check!(mode & 0o077 == 0, "expected a private state directory, saw mode {mode:o}");
    let (observer, id) = (kit.subject().observer(), id.clone());
    let open = tokio::task::spawn_blocking(move || observer.exposed(&id)).await?;
    check!(open.is_empty(), "expected nothing that is open to other users, saw {open:?}");
    Ok(())
}
