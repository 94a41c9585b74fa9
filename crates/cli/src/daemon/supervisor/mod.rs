//! The supervisor: the small process that owns one persistent sandbox. It ends when the sandbox is ended,
//! when it was not used for its idle timeout, or when its lifetime is over; the sandbox ends with it,
//! and if it is killed, the walls fall by themselves (C-31).

mod attach;
mod files;
mod host;
mod jobs;
mod keeper;
mod network;
mod replay;
mod session;
mod states;
mod tools;

use std::fs::File;
use std::io::{Read, Write};

use stockade_backends::native::Native;
use stockade_core::{Error, ErrorCode, Result};

use super::message::{LaunchStatus, SupervisorOrder};
use super::wire_error::WireError;
use crate::config::Settings;
use crate::terminal::printer::Printer;
use keeper::SandboxKeeper;

/// The longest order: room for every argument and variable a program can be given.
const MAX_ORDER: u64 = 8 << 20;

/// Builds what standard input orders, says so on standard output, and looks after it to its end.
pub async fn supervise(native: Native, printer: &Printer) -> Result<i32> {
    leave_the_caller();
    match build_keeper(native, printer).await {
        Ok(keeper) => {
            // A caller that is gone does not know the id: the sandbox could never be used (C-32).
            let heard = write_status(&LaunchStatus::Ready(keeper.ready())).is_ok();
            if heard && be_silent().is_ok() {
                keeper.keep().await;
            }
            keeper.end().await;
        }
        Err(error) => drop(write_status(&LaunchStatus::Failed(WireError::from(&error)))),
    }
    Ok(0)
}

/// A session of its own, so that nothing the caller's terminal does arrives here.
fn leave_the_caller() {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"stockade");
}

async fn build_keeper(native: Native, printer: &Printer) -> Result<SandboxKeeper> {
    let order = read_order()?;
    let mut settings = Settings::load(Some(&order.origin), printer)?;
    settings.use_daemon(order.daemon.as_deref());
    // The state directory is absolute by now, and the caller's working directory must not be kept busy.
    let _ = rustix::process::chdir("/");
    SandboxKeeper::build(order, native, &settings).await
}

fn read_order() -> Result<SupervisorOrder> {
    let wrong = |message: &str| Error::new(ErrorCode::Invalid, "supervise", message);
    let remedy = "use `stockade create`: this command is not for people";
    let mut json = Vec::new();
    let read = std::io::stdin().take(MAX_ORDER + 1).read_to_end(&mut json);
    read.map_err(|error| wrong("the order cannot be read").source(error))?;
    if json.len() as u64 > MAX_ORDER {
        return Err(Error::new(ErrorCode::TooLarge, "supervise", "the order is too long"));
    }
    serde_json::from_slice(&json)
        .map_err(|error| wrong("the order cannot be understood").remedy(remedy).source(error))
}

fn write_status(status: &LaunchStatus) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(status)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// The caller waits for the end of its pipe.
fn be_silent() -> std::io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok(())
}
