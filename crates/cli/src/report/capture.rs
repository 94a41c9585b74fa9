//! The JSON form of one run: everything it said and how it ended, in one object.

use serde::Serialize;
use stockade_core::{
    BackendName, Boundary, Command, Error, ErrorCode, Feature, JobId, LimitKind, Outcome, Result,
    SandboxId, SandboxSpec, StreamId,
};
use stockade_engine::Watcher;

use crate::daemon::Remote;
use crate::workspace::WorkspaceSummary;

/// Output that is held until the end.
#[derive(Debug, Default)]
pub struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// One run, whole.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaptureReport {
    job: JobId,
    sandbox: SandboxId,
    backend: BackendName,
    boundary: Boundary,
    /// Absent while it runs.
    outcome: Option<Outcome>,
    stdout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// The workspace in which changes are kept apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceSummary>,
    /// Output that is no longer there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_bytes: Option<u64>,
}

/// Refuses what one object at the end cannot serve: a terminal, and output without a bound.
pub fn check_capturable(spec: &SandboxSpec, command: &Command) -> Result<()> {
    let refuse = |message: &str, remedy: &str| {
        Err(Error::new(ErrorCode::Invalid, "run", message).remedy(remedy))
    };
    if command.terminal.is_some() {
        return refuse("--json and -t exclude each other", "leave one of them out");
    }
    let unbounded =
        spec.without.contains(&Feature::OutputLimit) && !spec.limits.asks_for(LimitKind::Output);
    if unbounded {
        return refuse(
            "--json holds the output in memory, so it needs a bound",
            "give --max-output SIZE, or leave --without output-limit out",
        );
    }
    Ok(())
}

impl Captured {
    /// Takes a piece in.
    pub fn take(&mut self, stream: StreamId, data: &[u8]) {
        match stream {
            StreamId::Stdout => self.stdout.extend_from_slice(data),
            StreamId::Stderr => self.stderr.extend_from_slice(data),
        }
    }

    /// The object.
    pub fn report(self, run: &Watcher, outcome: Outcome) -> CaptureReport {
        let walls = (run.backend().clone(), run.boundary());
        self.about(run.job().clone(), run.sandbox(), walls, Some(outcome))
    }

    /// The same for a program of a sandbox that was there before.
    pub fn report_of(self, run: &Remote, outcome: Option<Outcome>) -> CaptureReport {
        self.about(run.job.clone(), &run.sandbox, (run.backend.clone(), run.boundary), outcome)
    }

    /// The object about a program that is known by its record.
    pub fn about(
        self,
        job: JobId,
        sandbox: &SandboxId,
        (backend, boundary): (BackendName, Boundary),
        outcome: Option<Outcome>,
    ) -> CaptureReport {
        let (stdout, stdout_base64) = encode_output(self.stdout);
        let (stderr, stderr_base64) = encode_output(self.stderr);
        CaptureReport {
            job,
            sandbox: sandbox.clone(),
            backend,
            boundary,
            outcome,
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            workspace: None,
            missing_bytes: None,
        }
    }
}

/// Text as text; what is not, as far as it goes, with the exact bytes beside it.
fn encode_output(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let bytes = error.as_bytes();
            (String::from_utf8_lossy(bytes).into_owned(), Some(encode_base64(bytes)))
        }
    }
}

const BASE64_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = BASE64_ALPHABET[(word >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode_base64;

    #[test]
    fn bytes_are_written_as_everybody_reads_them() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
        assert_eq!(encode_base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
