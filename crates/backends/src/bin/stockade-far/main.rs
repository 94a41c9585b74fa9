//! The program that is carried to another host: runs the native backend there for an engine that speaks to it
//! over its standard streams. It ends by itself, with everything it has built, when the engine no longer
//! speaks to it.
//!
//! It never runs anything outside walls.

mod agent;
mod base;
mod guest;
mod identity;
mod measure;
mod serve;
mod session;
mod streams;
mod vmm;
mod vsock;
mod watch;

use std::io::{Read, Write};
use std::process::ExitCode;

use stockade_backends::native::Native;
use stockade_backends::peer::protocol::{HELLO_LINE, ProbeReply};
use stockade_core::{Backend, Error, ErrorCode, Result, SandboxId};
use stockade_launcher::make_private;

use base::FarBase;
use serve::PeerLiveness;
use tokio::io::AsyncWriteExt;

/// The longest sandbox id with its newline.
const MAX_ID_BYTES: u64 = 64;

fn main() -> ExitCode {
    if guest::is_first() {
        guest::run_first_process();
        return ExitCode::FAILURE;
    }
    make_private();
    let asked = std::env::args().nth(1);
    if let (Some("vmm"), Some(socket)) = (asked.as_deref(), std::env::args().nth(2)) {
        let error = vmm::become_vmm(&socket);
        let _ = writeln!(std::io::stderr(), "{error}");
        return ExitCode::FAILURE;
    }
    let inside = guest::is_second(asked.as_deref());
    let serves = inside || asked.as_deref() == Some("serve");
    // A copy of this process becomes the launcher, while there is only one thread to copy.
    let native = if serves { Native::ahead() } else { Native::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    if serves {
        let served = runtime.block_on(async {
            match inside {
                true => guest::run_second_process(native).await,
                false => serve_stdio(native).await,
            }
        });
        // Threads that still wait for input are not waited for.
        runtime.shutdown_background();
        return if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let base = FarBase::from_current_exe();
    let answer =
        runtime.block_on(answer_request(asked.as_deref().unwrap_or_default(), &native, base));
    let said = answer.unwrap_or_else(|error| ProbeReply::Failed((&error).into()));
    let Ok(text) = serde_json::to_string(&said) else { return ExitCode::FAILURE };
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn serve_stdio(native: Native) -> std::io::Result<()> {
    let (input, mut output) = (streams::open_stdin()?, streams::open_stdout()?);
    output.write_all(HELLO_LINE).await?;
    let heard = PeerLiveness::Within(serve::PEER_TIMEOUT);
    serve::serve_connection(native, FarBase::from_current_exe(), (input, output), heard).await
}

/// One thing and no sandbox.
async fn answer_request(asked: &str, native: &Native, base: Result<FarBase>) -> Result<ProbeReply> {
    let base = base?;
    match asked {
        "probe" => {
            base.reap_dead_sandboxes(native).await?;
            base.remove_stale_versions();
            Ok(ProbeReply::Measured(Box::new(measure::measure_anew(native, &base).await)))
        }
        "list" => Ok(ProbeReply::Listed(base.list_ids())),
        "destroy" => {
            let found = base.destroy_sandbox(&read_id_from_stdin()?, native).await?;
            base.reap_dead_sandboxes(native).await?;
            Ok(ProbeReply::Gone { found })
        }
        other => Err(Error::new(ErrorCode::Invalid, "start", format!("`{other}` is no request"))),
    }
}

/// Ids never stand in a command line: the connection's own processes would carry them on.
fn read_id_from_stdin() -> Result<SandboxId> {
    let mut text = String::new();
    let read = std::io::stdin().take(MAX_ID_BYTES).read_to_string(&mut text);
    let wrong = || Error::new(ErrorCode::Invalid, "destroy", "no sandbox is named");
    read.map_err(|error| wrong().source(error))?;
    text.trim().parse().map_err(|error| wrong().source(error))
}

/// Keeps the backend's trait in scope for who asks it to destroy.
async fn destroy_sandbox(native: &Native, id: &SandboxId) -> Result<()> {
    native.destroy(id).await
}
