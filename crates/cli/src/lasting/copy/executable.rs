//! Makes files in a sandbox executable: by the sandbox's own `chmod`, recorded like every command.

use stockade_core::{Command, Result, Span, WORKSPACE_ROOT};
use stockade_engine::OutputEvent;

use crate::attend::Events;
use crate::lasting::client::Connection;
use crate::lasting::remote::Remote;

/// Paths in one command, well below what an argument list may hold.
pub const BATCH: usize = 16;

const TIME: Span = Span::secs(30);

/// Makes these executable; answers whether that worked.
pub async fn make(connection: Connection, paths: &[String]) -> Result<bool> {
    let argv = ["chmod", "+x", "--"].map(str::to_owned).into_iter().chain(paths.iter().cloned());
    let command = Command {
        dir: WORKSPACE_ROOT.parse().ok(),
        wall_time: Some(TIME),
        ..Command::program(argv)
    };
    let mut remote = Remote::exec(connection, command, false).await?;
    while let Some(event) = remote.events.next().await? {
        if let OutputEvent::End(outcome) = event {
            return Ok(outcome.success());
        }
    }
    Ok(false)
}
