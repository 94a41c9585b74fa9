//! Starts a supervisor: this program once more, in a session of its own, with no descriptor of the
//! caller. What it is to do goes in by its standard input; one line comes back.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use stockade_core::{Error, ErrorCode, Result};

use super::message::{LaunchStatus, SandboxReady, SupervisorOrder};
use super::{SUPERVISE_COMMAND, close_fds};
use crate::terminal::printer::Printer;

const CREATE_OPERATION: &str = "create";
/// The longest answer: an error with every refusal there could be.
const MAX_STATUS: u64 = 1 << 20;

/// Starts a supervisor and waits until its sandbox stands. If this process ends before, so does it.
pub async fn launch_supervisor(order: SupervisorOrder, printer: &Printer) -> Result<SandboxReady> {
    let launching = tokio::task::spawn_blocking(move || launch_now(&order));
    match printer.patiently("building the sandbox", launching).await {
        Ok(launched) => launched,
        Err(join) => Err(launch_error("its supervisor cannot be waited for").source(join)),
    }
}

/// The same for callers that launch several at once. Blocks.
pub fn launch_now(order: &SupervisorOrder) -> Result<SandboxReady> {
    let json = serde_json::to_vec(order)
        .map_err(|error| launch_error("the order cannot be written").source(error))?;
    let mut child = spawn_supervisor(order)
        .map_err(|error| launch_error("its supervisor cannot be started").source(error))?;
    // A supervisor that does not read has something else to say, or has ended.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&json));
    let line = read_supervisor_reply(&mut child)
        .map_err(|error| launch_error("its supervisor's status cannot be read").source(error))?;
    match serde_json::from_slice(&line) {
        Ok(LaunchStatus::Ready(ready)) => Ok(ready),
        Ok(LaunchStatus::Failed(error)) => {
            // Its last word: nothing may be left when the caller hears it.
            let _ = child.wait();
            Err(error.into_error(CREATE_OPERATION))
        }
        Err(_) => Err(no_status_error(child)),
    }
}

fn spawn_supervisor(order: &SupervisorOrder) -> io::Result<Child> {
    close_fds::set_cloexec_on_all()?;
    // Not by name: the file may have been replaced since this process was started.
    let mut command = Command::new("/proc/self/exe");
    for name in order.secrets.keys() {
        // Its environment can be read for as long as it lives; its memory cannot.
        command.env_remove(name.as_str());
    }
    command
        .arg0("stockade")
        .arg(SUPERVISE_COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn read_supervisor_reply(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout.take(MAX_STATUS)).read_until(b'\n', &mut line)?;
    }
    Ok(line)
}

fn no_status_error(mut child: Child) -> Error {
    let end = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    launch_error(&format!("its supervisor ended without reporting a status ({end})"))
        .remedy("see whether something ends processes here: the kernel's log names what it killed")
}

fn launch_error(message: &str) -> Error {
    Error::new(ErrorCode::System, CREATE_OPERATION, message)
}
