//! A worker's process as the engine sees it: its output and input passed through, its end completed by
//! what it answered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes as Data;
use stockade_core::{Exit, ExitStatus, Process, ProcessControl, ProcessEvent};
use tokio::sync::mpsc::Receiver;

use super::process::ProcessInside;
use super::report::WorkerAnswer;

/// What is to be passed on.
pub(super) struct WorkerRelay {
    pub process: Process,
    /// What the worker is told before anything else.
    pub order: Data,
    pub inside: ProcessInside,
    /// Where the worker leaves its answer.
    pub answer: PathBuf,
}

/// Passes everything on until the worker's end.
pub(super) async fn relay_process(relay: WorkerRelay) {
    let WorkerRelay { process, order, inside, answer } = relay;
    let Process { mut events, control } = process;
    let ProcessInside { events: out, input, exit, mut killed, present } = inside;
    let feeding = tokio::spawn(feed_stdin(Arc::clone(&control), order, input));
    let ending = tokio::spawn({
        let control = Arc::clone(&control);
        async move {
            // An error means that no handle is left which could end it: then it must not go on either.
            let _ = killed.wait_for(|killed| *killed).await;
            let _ = control.kill().await;
        }
    });
    let ended = loop {
        match events.next().await {
            // A send error means that no reader is left: it is on its way to being ended.
            Some(event @ ProcessEvent::Output(..)) => drop(out.send(event).await),
            Some(ProcessEvent::Exit(exit)) => break exit,
            None => {
                break ExitStatus::Lost("the worker's events ended without an exit".into()).into();
            }
        }
    };
    feeding.abort();
    ending.abort();
    drop(out);
    let _ = exit.send(complete_exit(ended, &answer));
    drop(present);
}

fn complete_exit(seen: Exit, path: &Path) -> Exit {
    let answer = WorkerAnswer::read_file(path);
    let _ = std::fs::remove_file(path);
    match (answer, &seen.status) {
        (Some(answer), _) => answer.apply_to(seen),
        (None, ExitStatus::Exited(_)) => {
            ExitStatus::Lost("the worker ended without an answer".into()).into()
        }
        (
            None,
            ExitStatus::Signalled(_)
            | ExitStatus::StartFailed(_)
            | ExitStatus::LimitExceeded(_)
            | ExitStatus::Lost(_),
        ) => seen,
    }
}

async fn feed_stdin(control: Arc<dyn ProcessControl>, order: Data, input: Option<Receiver<Data>>) {
    let mut next = Some(order);
    let mut input = input;
    while let Some(data) = next {
        // A program that has ended reads nothing more.
        if control.write_stdin(data).await.is_err() {
            return;
        }
        next = match &mut input {
            Some(input) => input.recv().await,
            None => None,
        };
    }
    let _ = control.close_stdin().await;
}
