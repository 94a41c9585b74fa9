//! Output of a program, replayed for later requests. A replay slows neither the program nor a reader (C-13).

use stockade_core::{Error, ErrorCode, JobId};
use stockade_engine::{OutputEvent, Subscription};
use tokio::net::unix::OwnedReadHalf;

use super::attach;
use super::session::ClientSession;
use crate::daemon::frame::{self, SupervisorFrameError};
use crate::daemon::message::{SupervisorReply, SupervisorRequest};

/// Sends the output of a program: what there is, or all there will be.
pub async fn serve_logs(
    mut session: ClientSession,
    job: Option<JobId>,
    from: u64,
    follow: bool,
) -> Result<(), SupervisorFrameError> {
    let found = session.host.jobs().find(job.as_ref());
    let watcher = match found {
        Ok(Some(watcher)) => watcher,
        Ok(None) => return session.fail(&missing_job_error(job.as_ref())).await,
        Err(error) => return session.fail(&error).await,
    };
    session.reply(&attach::started_reply(&watcher)).await?;
    let mut output = watcher.subscribe();
    let ClientSession { reader, writer, .. } = &mut session;
    tokio::select! {
        result = async {
            while let Some(event) = next_event(&mut output, follow).await {
                if !is_before(&event, from) {
                    attach::send_event(writer, event).await?;
                }
            }
            frame::send_frame(writer, &SupervisorReply::SoFar, &[]).await
        } => result,
        () = wait_for_hangup(reader) => Ok(()),
    }
}

async fn next_event(output: &mut Subscription, follow: bool) -> Option<OutputEvent> {
    if follow { output.next().await } else { output.try_next() }
}

fn is_before(event: &OutputEvent, from: u64) -> bool {
    match event {
        OutputEvent::Output { seq, .. } => *seq < from,
        OutputEvent::Gap { .. } | OutputEvent::End(_) => false,
    }
}

/// Returns when the reader of the logs has gone away, or says what a reader does not say.
async fn wait_for_hangup(reader: &mut OwnedReadHalf) {
    let _ = frame::receive_frame::<SupervisorRequest>(reader).await;
}

fn missing_job_error(job: Option<&JobId>) -> Error {
    let message = match job {
        Some(job) => format!("no program `{job}` has run here, or its output is gone"),
        None => "no program has run in this sandbox yet".to_owned(),
    };
    Error::new(ErrorCode::NotFound, "logs", message)
        .remedy("`stockade ps` shows what runs, `stockade audit list` what has run")
}
