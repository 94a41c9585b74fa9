//! An execution that was read to its end, with everything it wrote.

use serde_json::Value;
use stockade_core::{Ending, Outcome, StreamId};
use stockade_engine::{OutputEvent, Subscription};

use crate::case::same;
use crate::{Stop, Verdict};

/// Captured output of a program, at most.
const MAX_CAPTURED_BYTES: usize = 256 << 20;

/// An execution that was read to its end.
#[derive(Debug, Clone)]
pub struct Ran {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    /// Each piece in the order it came: its stream and its size.
    pub pieces: Vec<(StreamId, usize)>,
}

impl Ran {
    /// Stops the case unless it exited with this code.
    pub fn exited(self, code: i32) -> Verdict<Self> {
        self.ended(&Ending::Exited(code))
    }

    /// Stops the case unless it ended like this.
    pub fn ended(self, ending: &Ending) -> Verdict<Self> {
        if self.outcome.ending == *ending {
            return Ok(self);
        }
        let said = String::from_utf8_lossy(&self.stderr);
        let seen = &self.outcome.ending;
        Err(Stop::Failed(format!("ending: expected {ending:?}, saw {seen:?} (stderr: {said:?})")))
    }

    /// The facts an attempt printed.
    pub fn facts(self) -> Verdict<Value> {
        let ran = self.exited(0)?;
        serde_json::from_slice(&ran.stdout).map_err(|error| {
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            Stop::Failed(format!("expected the probe's facts, saw {said:?}: {error}"))
        })
    }
}

/// Reads to the end. Stops the case if an event is missing, doubled or out of order (C-13).
pub(crate) async fn collect_output(mut from: Subscription) -> Verdict<Ran> {
    let (mut stdout, mut stderr, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match from.next().await {
            Some(OutputEvent::Output { seq, stream, data }) => {
                same!("the number of the next event", seq, pieces.len() as u64);
                pieces.push((stream, data.len()));
                let whole = match stream {
                    StreamId::Stdout => &mut stdout,
                    StreamId::Stderr => &mut stderr,
                };
                whole.extend_from_slice(&data);
                if whole.len() > MAX_CAPTURED_BYTES {
                    return Err(Stop::failed("the program wrote more than the kit takes"));
                }
            }
            Some(OutputEvent::Gap { events, bytes }) => {
                let message = format!("expected every event, missed {events} with {bytes} bytes");
                return Err(Stop::Failed(message));
            }
            Some(OutputEvent::End(outcome)) => return Ok(Ran { outcome, stdout, stderr, pieces }),
            None => return Err(Stop::failed("the events ended without an outcome")),
        }
    }
}

/// Reads until the program has said this on standard output.
pub(crate) async fn wait_for_output(from: &mut Subscription, wanted: &str) -> Verdict {
    let mut said = Vec::new();
    loop {
        match from.next().await {
            Some(OutputEvent::Output { stream: StreamId::Stdout, data, .. }) => {
                said.extend_from_slice(&data);
            }
            Some(OutputEvent::Output { .. } | OutputEvent::Gap { .. }) => {}
            Some(OutputEvent::End(_)) | None => {
                let said = String::from_utf8_lossy(&said);
                return Err(Stop::Failed(format!("expected to hear {wanted:?}, heard {said:?}")));
            }
        }
        if said.windows(wanted.len()).any(|part| part == wanted.as_bytes()) {
            return Ok(());
        }
    }
}
