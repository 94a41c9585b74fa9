//! The DevTools protocol of a browser, over its standard streams: JSON messages, each ended by a NUL byte.
//!
//! What answers is a program of the guest's. Messages are bounded, every request has a deadline, and what is said
//! beside the answer is only noted where it is asked for. Nothing is read between two calls: the browser waits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use stockade_core::{Ending, ErrorCode, StreamId};
use stockade_engine::{Execution, OutputEvent, Subscription};

use super::chromium;
use crate::ToolError;

/// Longest message: a picture of the largest size, in base64, with room for its frame.
const MAX_MESSAGE_BYTES: usize = (chromium::MAX_PICTURE_BYTES as usize).div_ceil(3) * 4 + (1 << 16);
/// Timeout of the browser until it has a page.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a browser that has no page yet is asked again.
const START_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const STDERR_TAIL_BYTES: usize = 400;
/// Most notes about a page between two answers, and the longest.
const MAX_NOTES: usize = 10;
const MAX_NOTE_CHARS: usize = 1000;
/// Most windows of a page that are closed at a time.
const MAX_CLOSED_WINDOWS: usize = 20;

/// Why a request was not answered.
#[derive(Debug)]
pub(super) enum DevToolsError {
    /// The browser refused it, in its words.
    Refused(String),
    /// Nothing more is to be had from this browser.
    Broken(ToolError),
}

pub(super) type Result<T> = std::result::Result<T, DevToolsError>;

/// A connection to a browser.
pub(super) struct DevTools {
    /// Ends the browser when it is dropped.
    execution: Execution,
    output: Subscription,
    messages: MessageBuffer,
    stderr_tail: Vec<u8>,
    last_id: u64,
    /// The page that requests are for, once there is one.
    page: Option<AttachedPage>,
}

struct AttachedPage {
    session: String,
    frame: String,
    is_loading: bool,
    /// Whether it has ever opened another window.
    opens_windows: bool,
    notes: Vec<String>,
}

impl AttachedPage {
    fn new(session: String, frame: String) -> Self {
        Self { session, frame, is_loading: false, opens_windows: false, notes: Vec::new() }
    }
}

/// The part of a message that says what it is: an answer if it has an id, else an event. The rest is not parsed until it
/// is needed, and never into a JSON tree: that would take a hundred times the memory of its text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MessageHead {
    id: Option<u64>,
    method: String,
}

#[derive(Debug, Deserialize)]
struct AnswerBody<T> {
    result: T,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    error: RefusalError,
}

#[derive(Debug, Deserialize)]
struct RefusalError {
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    params: EventParams,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EventParams {
    frame_id: String,
    disposition: String,
    url: String,
    #[serde(rename = "type")]
    kind: String,
    message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Targets {
    target_infos: Vec<Target>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    target_id: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attached {
    session_id: String,
}

/// An answer that has not been looked into.
#[derive(Debug)]
pub(super) struct Answer(Bytes);

impl Answer {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        let body = serde_json::from_slice::<AnswerBody<T>>(&self.0);
        body.map(|body| body.result).map_err(|_| broken_protocol())
    }
}

impl DevTools {
    /// Talks to a browser that was started with `--remote-debugging-pipe`.
    pub(super) fn new(execution: Execution, output: Subscription) -> Self {
        let (messages, stderr_tail) = (MessageBuffer::default(), Vec::new());
        Self { execution, output, messages, stderr_tail, last_id: 0, page: None }
    }

    /// Whether the browser has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.execution.known_outcome().is_some()
    }

    /// Attaches to the browser's first page, unless that is done.
    pub(super) async fn attach(&mut self) -> Result<()> {
        if self.page.is_some() {
            return Ok(());
        }
        let frame = within(START_TIMEOUT, self.find_page()).await?;
        let attach = json!({ "targetId": frame, "flatten": true });
        let answer = within(REQUEST_TIMEOUT, self.exchange(None, "Target.attachToTarget", attach));
        let Attached { session_id } = answer.await?.read()?;
        self.page = Some(AttachedPage::new(session_id, frame));
        Ok(())
    }

    /// Its first page, which may come after it has begun to answer.
    async fn find_page(&mut self) -> Result<String> {
        loop {
            if let Some(page) = self.list_pages().await?.into_iter().next() {
                return Ok(page);
            }
            tokio::time::sleep(START_INTERVAL).await;
        }
    }

    async fn list_pages(&mut self) -> Result<Vec<String>> {
        let answer = self.exchange(None, "Target.getTargets", json!({})).await?;
        let targets: Targets = answer.read()?;
        let pages = targets.target_infos.into_iter().filter(|target| target.kind == "page");
        Ok(pages.map(|page| page.target_id).collect())
    }

    /// Closes windows that the page has opened: they would lie before it and take memory.
    pub(super) async fn close_other_windows(&mut self) -> Result<()> {
        let Some(page) = self.page.as_ref().filter(|page| page.opens_windows) else {
            return Ok(());
        };
        let own = page.frame.clone();
        let pages = within(REQUEST_TIMEOUT, self.list_pages()).await?;
        for other in pages.iter().filter(|page| **page != own).take(MAX_CLOSED_WINDOWS) {
            let close = json!({ "targetId": other });
            let closed =
                within(REQUEST_TIMEOUT, self.exchange(None, "Target.closeTarget", close)).await;
            if let Err(error @ DevToolsError::Broken(_)) = closed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Tells the page to do something, and waits until it is done.
    pub(super) async fn tell(&mut self, method: &str, params: Value) -> Result<()> {
        self.request(method, params).await?.read::<IgnoredAny>().map(drop)
    }

    /// Asks the page for something and waits for the answer.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> Result<Answer> {
        let session = self.page.as_ref().map(|page| page.session.clone());
        within(REQUEST_TIMEOUT, self.exchange(session, method, params)).await
    }

    /// Asks a page, or the browser itself if none is named.
    async fn exchange(
        &mut self,
        session: Option<String>,
        method: &str,
        params: Value,
    ) -> Result<Answer> {
        let id = self.send(session, method, params).await?;
        loop {
            let (head, message) = self.next_message().await?;
            if head.id != Some(id) {
                self.note_event(head, &message).await?;
                continue;
            }
            return match serde_json::from_slice::<Refusal>(&message) {
                Ok(refusal) => Err(DevToolsError::Refused(refusal.error.message)),
                Err(_) => Ok(Answer(message)),
            };
        }
    }

    /// Hears what happens on the page for as long as this, or until it has loaded if `until_loaded`.
    pub(super) async fn listen(&mut self, time: Duration, until_loaded: bool) -> Result<()> {
        let hear = async {
            while !until_loaded || self.is_loading() {
                let (head, message) = self.next_message().await?;
                self.note_event(head, &message).await?;
            }
            Ok(())
        };
        // Afterwards the caller looks for itself.
        tokio::time::timeout(time, hear).await.unwrap_or(Ok(()))
    }

    /// Whether the page is being loaded or replaced.
    pub(super) fn is_loading(&self) -> bool {
        self.page.as_ref().is_some_and(|page| page.is_loading)
    }

    /// What the page did that its text does not show, since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        self.page.as_mut().map(|page| std::mem::take(&mut page.notes)).unwrap_or_default()
    }

    /// Ends the browser.
    pub(super) async fn close(self) {
        // What cannot be ended ends with its sandbox.
        let _ = self.execution.close().await;
    }

    async fn send(&mut self, session: Option<String>, method: &str, params: Value) -> Result<u64> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        if self.execution.write_stdin(bytes.into()).await.is_err() {
            // It has ended: its standard error and its ending say why.
            loop {
                self.messages = MessageBuffer::default();
                self.read_more().await?;
            }
        }
        Ok(self.last_id)
    }

    async fn next_message(&mut self) -> Result<(MessageHead, Bytes)> {
        loop {
            // Lets timeouts pass however much there is to be read.
            tokio::task::consume_budget().await;
            if let Some(message) = self.messages.take().map_err(DevToolsError::Broken)? {
                let head = serde_json::from_slice(&message).map_err(|_| broken_protocol())?;
                return Ok((head, message));
            }
            self.read_more().await?;
        }
    }

    /// Takes in the next output; fails when there is none any more.
    async fn read_more(&mut self) -> Result<()> {
        match self.output.next().await {
            Some(OutputEvent::Output { stream: StreamId::Stdout, data, .. }) => {
                self.messages.push(&data);
            }
            Some(OutputEvent::Output { stream: StreamId::Stderr, data, .. }) => {
                self.stderr_tail.extend_from_slice(&data);
                let over = self.stderr_tail.len().saturating_sub(STDERR_TAIL_BYTES);
                self.stderr_tail.drain(..over);
            }
            // A follower misses nothing while its program runs.
            Some(OutputEvent::Gap { .. }) => {}
            Some(OutputEvent::End(outcome)) => return Err(self.ended(&outcome.ending)),
            None => return Err(DevToolsError::Broken(silent_error())),
        }
        Ok(())
    }

    fn ended(&self, ending: &Ending) -> DevToolsError {
        let stderr = chromium::escape_stderr(&self.stderr_tail);
        DevToolsError::Broken(chromium::ended_error("no page", ending, &stderr))
    }

    async fn note_event(&mut self, head: MessageHead, message: &[u8]) -> Result<()> {
        let Some(page) = &mut self.page else { return Ok(()) };
        // What cannot be read has nothing that is needed: texts of a page need not be valid.
        let Event { params } = serde_json::from_slice(message).unwrap_or_default();
        let of_page = params.frame_id == page.frame;
        let here = params.disposition == "currentTab";
        match head.method.as_str() {
            "Page.frameScheduledNavigation" | "Page.frameStartedLoading" if of_page => {
                page.is_loading = true;
            }
            "Page.frameRequestedNavigation" if of_page && here => page.is_loading = true,
            "Page.frameStoppedLoading" if of_page => page.is_loading = false,
            "Page.windowOpen" => {
                page.opens_windows = true;
                let url = params.url;
                page.note(format!("the page opened another window, which was closed: {url}"));
            }
            "Page.javascriptDialogOpening" => {
                let EventParams { kind, message, .. } = params;
                page.note(format!("the page showed a dialog ({kind}): {message}"));
                // Nobody is there to answer. One that asks whether to leave the page must not hold it.
                let accept = kind == "alert" || kind == "beforeunload";
                let (session, answer) = (page.session.clone(), json!({ "accept": accept }));
                self.send(Some(session), "Page.handleJavaScriptDialog", answer).await?;
            }
            "Inspector.targetCrashed" => {
                return Err(DevToolsError::Broken(chromium::crashed_error()));
            }
            _ => {}
        }
        Ok(())
    }
}

impl AttachedPage {
    fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note.chars().take(MAX_NOTE_CHARS).collect());
        }
    }
}

/// Bytes of messages that have not come to their end yet.
#[derive(Debug, Default)]
struct MessageBuffer {
    bytes: BytesMut,
    /// How many of them are known to have no end of a message among them.
    searched: usize,
}

impl MessageBuffer {
    fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// The next whole message.
    fn take(&mut self) -> std::result::Result<Option<Bytes>, ToolError> {
        let end = memchr::memchr(0, &self.bytes[self.searched..]).map(|at| self.searched + at);
        self.searched = self.bytes.len();
        if end.unwrap_or(self.searched) > MAX_MESSAGE_BYTES {
            return Err(oversized_error());
        }
        let Some(end) = end else { return Ok(None) };
        self.searched = 0;
        let message = self.bytes.split_to(end + 1).freeze();
        Ok(Some(message.slice(..end)))
    }
}

/// Waits for an answer. Without one in this time the browser is given up.
async fn within<T>(timeout: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = tokio::time::timeout(timeout, answer).await;
    answer.unwrap_or_else(|_| Err(DevToolsError::Broken(silent_error())))
}

fn oversized_error() -> ToolError {
    let message = "the browser's answer is too large; the browser was closed";
    ToolError::new(ErrorCode::TooLarge, message).remedy("use a smaller window")
}

/// That the browser has not done in time what it was asked for.
pub(super) fn silent_error() -> ToolError {
    ToolError::new(ErrorCode::TooSlow, "the page does not answer; the browser was closed")
        .remedy("open the page again: a script of it may have kept it busy")
}

fn broken_protocol() -> DevToolsError {
    let message = "the browser's answer cannot be read; the browser was closed";
    DevToolsError::Broken(ToolError::new(ErrorCode::Protocol, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let stream = b"{\"id\":1}\0{\"id\":2}\0\0{\"id\":";
        for piece in 1..stream.len() {
            let (mut buffer, mut taken) = (MessageBuffer::default(), Vec::new());
            for part in stream.chunks(piece) {
                buffer.push(part);
                while let Some(message) = buffer.take().unwrap() {
                    taken.push(String::from_utf8(message.to_vec()).unwrap());
                }
            }
            assert_eq!(taken, ["{\"id\":1}", "{\"id\":2}", ""], "{piece}");
            assert_eq!(buffer.bytes[..], b"{\"id\":"[..]);
        }
    }

    #[test]
    fn a_message_without_an_end_is_refused_before_it_takes_all_memory() {
        let mut buffer = MessageBuffer::default();
        let piece = vec![b' '; 1 << 20];
        let refused = (0..64).find_map(|_| {
            buffer.push(&piece);
            buffer.take().err()
        });
        assert_eq!(refused.unwrap().code, ErrorCode::TooLarge);
        assert!(buffer.bytes.len() <= MAX_MESSAGE_BYTES + (1 << 20));
    }
}
