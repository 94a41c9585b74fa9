//! QEMU's own control connection: a line of JSON each way. What it says is taken for a guest's words: bounded,
//! and nothing but whether something was done.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::peer::vmm::send;

/// Size limit of a line from QEMU.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of the events that are skipped before an answer.
const MAX_SKIPPED_EVENTS: usize = 1000;

/// The connection.
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Number of replies that were not read yet.
    owed: usize,
}

fn invalid_data(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Qmp {
    /// Says what every connection begins with. Nothing is waited for yet.
    pub(super) async fn begin(stream: UnixStream) -> io::Result<Self> {
        let mut qmp = Self { stream: BufReader::new(stream), owed: 0 };
        qmp.send_command("qmp_capabilities", Value::Null).await?;
        Ok(qmp)
    }

    /// Says something whose answer is looked at before the next one is.
    pub(super) async fn send_command(&mut self, command: &str, arguments: Value) -> io::Result<()> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let text = serde_json::to_vec(&request)?;
        let written = timeout(ANSWER_TIMEOUT, self.stream.get_mut().write_all(&text)).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.owed += 1;
        Ok(())
    }

    /// Says something and waits for the answer.
    pub(super) async fn run_command(
        &mut self,
        command: &str,
        arguments: Value,
    ) -> io::Result<Value> {
        self.send_command(command, arguments).await?;
        self.wait_for_answers().await
    }

    /// Asks with one value of an argument after the other, until one is not refused.
    pub(super) async fn try_each_value(
        &mut self,
        command: &str,
        argument: &str,
        values: &[String],
    ) -> io::Result<()> {
        self.wait_for_answers().await?;
        let mut refusals = Vec::new();
        for value in values {
            match self.run_command(command, json!({ argument: value })).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    refusals.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Err(invalid_data(refusals.join("; ")))
    }

    /// Waits for every answer; the last one, if none is a refusal.
    pub(super) async fn wait_for_answers(&mut self) -> io::Result<Value> {
        let mut last = Value::Null;
        while self.owed > 0 {
            let answered = timeout(ANSWER_TIMEOUT, self.read_answer()).await;
            let answered = answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            // A refusal is an answer too.
            self.owed -= 1;
            last = answered?;
        }
        Ok(last)
    }

    async fn read_answer(&mut self) -> io::Result<Value> {
        for _ in 0..MAX_SKIPPED_EVENTS {
            let mut line = String::new();
            let mut limited = (&mut self.stream).take(MAX_LINE_BYTES);
            if limited.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut told: Value = serde_json::from_str(&line)?;
            if let Some(error) = told.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or_default();
                return Err(invalid_data(why.escape_debug().to_string()));
            }
            if let Some(answer) = told.get_mut("return") {
                return Ok(answer.take());
            }
        }
        Err(invalid_data("it does not answer".into()))
    }

    /// Hands it an open file; the name that it has for it.
    pub(super) async fn add_fd(&mut self, file: OwnedFd) -> io::Result<String> {
        self.wait_for_answers().await?;
        let text = serde_json::to_vec(&json!({ "execute": "add-fd" }))?;
        let socket = self.stream.get_ref();
        let writable = timeout(ANSWER_TIMEOUT, socket.writable()).await;
        writable.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let files = [file];
        socket.try_io(Interest::WRITABLE, || send(socket, &text, &files))?;
        self.owed += 1;
        let given = self.wait_for_answers().await?;
        let number = given.get("fdset-id").and_then(Value::as_u64);
        let number = number.ok_or_else(|| invalid_data("it does not take a file".into()))?;
        Ok(format!("/dev/fdset/{number}"))
    }

    /// It does not need the file any more.
    pub(super) async fn remove_fd(&mut self, name: &str) -> io::Result<()> {
        let number: u64 = name.rsplit('/').next().and_then(|id| id.parse().ok()).unwrap_or(0);
        self.run_command("remove-fd", json!({ "fdset-id": number })).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that takes incoming state in this way alone, and counts what it is asked.
    async fn serve_one_scheme(stream: UnixStream, way: &'static str) -> usize {
        let (mut asked, mut stream) = (0, BufReader::new(stream));
        let mut text = Vec::new();
        // Requests follow each other without a line's end.
        while let Ok(1..) = stream.read_buf(&mut text).await {
            let mut requests = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
            let mut answers = Vec::new();
            while let Some(Ok(request)) = requests.next() {
                let uri = request["arguments"]["uri"].as_str().unwrap_or(way).to_owned();
                asked += 1;
                answers.push(match uri.starts_with(way) {
                    true => json!({ "return": {} }),
                    false => json!({ "error": { "desc": format!("{uri} is not supported") } }),
                });
            }
            let used = requests.byte_offset();
            text.drain(..used);
            for answer in answers {
                stream.get_mut().write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
            }
        }
        asked
    }

    #[tokio::test]
    async fn the_first_way_that_is_taken_is_used_and_each_answer_is_heard_once() {
        let ways = ["fd:100".to_owned(), "file:/dev/fdset/100".to_owned()];
        for (way, expected) in [("fd:", Some(2)), ("file:", Some(3)), ("none:", None)] {
            let (here, there) = UnixStream::pair().unwrap();
            let server = tokio::spawn(serve_one_scheme(there, way));
            let mut qmp = Qmp::begin(here).await.unwrap();
            let taken = qmp.try_each_value("migrate-incoming", "uri", &ways).await;
            match expected {
                Some(_) => taken.unwrap(),
                None => {
                    let why = taken.unwrap_err().to_string();
                    assert!(ways.iter().all(|way| why.contains(way)), "{why}");
                }
            }
            drop(qmp);
            assert_eq!(server.await.unwrap(), expected.unwrap_or(3), "{way}");
        }
    }
}
