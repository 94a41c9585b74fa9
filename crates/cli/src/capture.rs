//! The JSON form of one run: everything it said and how it ended, in one object.

use serde_json::{Map, Value, json};
use stockade_core::{
    Command, Error, ErrorCode, Feature, JobId, LimitKind, Outcome, Result, SandboxId, SandboxSpec,
    StreamId,
};
use stockade_engine::{Choice, Watcher};

/// Output that is held until the end.
#[derive(Debug, Default)]
pub struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Refuses what one object at the end cannot serve: a terminal, and output without a bound.
pub fn check(spec: &SandboxSpec, command: &Command) -> Result<()> {
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
    pub fn report(self, execution: &Watcher, choice: Option<Choice>, outcome: &Outcome) -> Value {
        let mut report = self.report_of(execution.job(), execution.sandbox(), Some(outcome));
        report.insert("backend".into(), json!(choice.as_ref().map(|choice| &choice.backend)));
        report.insert("boundary".into(), json!(choice.as_ref().map(|choice| choice.boundary)));
        Value::Object(report)
    }

    /// The same for a program of a sandbox that was there before; without an outcome while it runs.
    pub fn report_of(
        self,
        job: &JobId,
        sandbox: &SandboxId,
        outcome: Option<&Outcome>,
    ) -> Map<String, Value> {
        let mut report = Map::new();
        report.insert("job".into(), json!(job));
        report.insert("sandbox".into(), json!(sandbox));
        report.insert("outcome".into(), json!(outcome));
        insert_text(&mut report, "stdout", self.stdout);
        insert_text(&mut report, "stderr", self.stderr);
        report
    }
}

/// Text as text; what is not, as far as it goes, with the exact bytes beside it.
fn insert_text(report: &mut Map<String, Value>, name: &str, bytes: Vec<u8>) {
    match String::from_utf8(bytes) {
        Ok(text) => drop(report.insert(name.into(), text.into())),
        Err(error) => {
            let bytes = error.into_bytes();
            report.insert(name.into(), String::from_utf8_lossy(&bytes).into_owned().into());
            report.insert(format!("{name}Base64"), base64(&bytes).into());
        }
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_are_written_as_everybody_reads_them() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }
}
