//! Symbolic links, which the file operations of a sandbox neither make nor read: its own programs do,
//! recorded like every command. What comes back is a guest's word.

use stockade_core::{Bytes, Command, Result, SandboxId, Span, StreamId, WORKSPACE_ROOT};
use stockade_engine::OutputEvent;

use super::CP_OPERATION;
use crate::daemon::remote::Remote;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::terminal::stdio_loop::ProgramEvents;

/// Paths in one command, well below what an argument list may hold.
const MAX_BATCH_PATHS: usize = 16;
const PROGRAM_TIMEOUT: Span = Span::secs(30);
/// More than the targets of one batch of links take.
const MAX_OUTPUT: Bytes = Bytes(256 << 10);

/// Script that makes links, never into a directory that is there under a link's name.
const MAKE_LINK: &str = r#"while [ $# -gt 1 ]; do
    if [ -d "$2" ] && [ ! -L "$2" ]; then exit 1; fi
    ln -sfn -- "$1" "$2" || exit 1
    shift 2
done"#;
const READ_LINK: &str = r#"for link; do readlink -n -- "$link" || exit 1; printf '\0'; done"#;

/// The programs of one sandbox.
pub struct CopyPrograms<'a> {
    /// Where sandboxes are found.
    pub place: &'a SandboxDirectory,
    /// Which one.
    pub id: &'a SandboxId,
}

impl CopyPrograms<'_> {
    /// Makes symbolic links, each given as target and path; answers those for which that did not work.
    pub async fn make_links<'p>(&self, links: &'p [(String, String)]) -> Result<Vec<&'p String>> {
        let mut failed = Vec::new();
        for some in links.chunks(MAX_BATCH_PATHS) {
            let words = some.iter().flat_map(|(target, path)| [target.clone(), path.clone()]);
            if self.run_program(build_shell_argv(MAKE_LINK).chain(words)).await?.is_none() {
                failed.extend(some.iter().map(|(_, path)| path));
            }
        }
        Ok(failed)
    }

    /// Where symbolic links lead, in their order; nothing for those that cannot be read as text.
    pub async fn read_links(&self, paths: &[String]) -> Result<Vec<Option<String>>> {
        let mut targets = Vec::new();
        for some in paths.chunks(MAX_BATCH_PATHS) {
            let said =
                self.run_program(build_shell_argv(READ_LINK).chain(some.iter().cloned())).await?;
            let said = said.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
            let read: Vec<_> = said.split_terminator('\0').map(str::to_owned).collect();
            let whole = read.len() == some.len();
            targets.extend(
                some.iter().enumerate().map(|(at, _)| read.get(at).filter(|_| whole).cloned()),
            );
        }
        Ok(targets)
    }

    /// Runs a program; answers its output if it succeeded.
    async fn run_program(&self, argv: impl Iterator<Item = String>) -> Result<Option<Vec<u8>>> {
        let command = Command {
            dir: WORKSPACE_ROOT.parse().ok(),
            wall_time: Some(PROGRAM_TIMEOUT),
            output: Some(MAX_OUTPUT),
            ..Command::program(argv)
        };
        let connection = self.place.reach(self.id, CP_OPERATION).await?;
        let mut remote = Remote::exec(connection, command, false).await?;
        let mut output = Vec::new();
        while let Some(event) = remote.events.next().await? {
            match event {
                OutputEvent::Output { stream: StreamId::Stdout, data, .. } => output.extend(data),
                OutputEvent::Output { .. } | OutputEvent::Gap { .. } => {}
                OutputEvent::End(outcome) => return Ok(outcome.success().then_some(output)),
            }
        }
        Ok(None)
    }
}

/// A line of shell whose arguments follow.
fn build_shell_argv(line: &str) -> impl Iterator<Item = String> {
    ["sh", "-c", line, "sh"].map(str::to_owned).into_iter()
}
