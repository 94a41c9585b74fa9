//! QEMU's own control connection: a line of JSON each way. What it says is taken for a guest's words: bounded,
//! and nothing but whether something was done.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::across::vmm::send;

/// The longest line that is read.
const LINE: u64 = 1 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most events before an answer.
const EVENTS: usize = 1000;

/// The connection.
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Answers that nobody has waited for yet.
    owed: usize,
}

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Qmp {
    /// Says what every connection begins with. Nothing is waited for yet.
    pub(super) async fn begin(stream: UnixStream) -> io::Result<Self> {
        let mut qmp = Self { stream: BufReader::new(stream), owed: 0 };
        qmp.say("qmp_capabilities", Value::Null).await?;
        Ok(qmp)
    }

    /// Says something whose answer is looked at before the next one is.
    pub(super) async fn say(&mut self, command: &str, arguments: Value) -> io::Result<()> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let text = serde_json::to_vec(&request)?;
        let written = timeout(PATIENCE, self.stream.get_mut().write_all(&text)).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.owed += 1;
        Ok(())
    }

    /// Says something and waits for the answer.
    pub(super) async fn ask(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        self.say(command, arguments).await?;
        self.settle().await
    }

    /// Waits for every answer; the last one, if none is a refusal.
    pub(super) async fn settle(&mut self) -> io::Result<Value> {
        let mut last = Value::Null;
        while self.owed > 0 {
            let answered = timeout(PATIENCE, self.answer()).await;
            last = answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            self.owed -= 1;
        }
        Ok(last)
    }

    async fn answer(&mut self) -> io::Result<Value> {
        for _ in 0..EVENTS {
            let mut line = String::new();
            let mut limited = (&mut self.stream).take(LINE);
            if limited.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut told: Value = serde_json::from_str(&line)?;
            if let Some(error) = told.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or_default();
                return Err(wrong(why.escape_debug().to_string()));
            }
            if let Some(answer) = told.get_mut("return") {
                return Ok(answer.take());
            }
        }
        Err(wrong("it does not answer".into()))
    }

    /// Hands it an open file; the name that it has for it.
    pub(super) async fn give(&mut self, file: OwnedFd) -> io::Result<String> {
        self.settle().await?;
        let text = serde_json::to_vec(&json!({ "execute": "add-fd" }))?;
        let socket = self.stream.get_ref();
        let writable = timeout(PATIENCE, socket.writable()).await;
        writable.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let files = [file];
        socket.try_io(Interest::WRITABLE, || send(socket, &text, &files))?;
        self.owed += 1;
        let given = self.settle().await?;
        let number = given.get("fdset-id").and_then(Value::as_u64);
        let number = number.ok_or_else(|| wrong("it does not take a file".into()))?;
        Ok(format!("/dev/fdset/{number}"))
    }

    /// It does not need the file any more.
    pub(super) async fn take_back(&mut self, name: &str) -> io::Result<()> {
        let number: u64 = name.rsplit('/').next().and_then(|id| id.parse().ok()).unwrap_or(0);
        self.ask("remove-fd", json!({ "fdset-id": number })).await.map(drop)
    }
}
