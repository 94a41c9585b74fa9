//! A browser that stays, with one page.

use std::time::{Duration, Instant};

use base64::Engine as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stockade_core::{Bytes, Command, ErrorCode, JobId, Stdin};

use super::address;
use super::chromium::{self, BrowserDir};
use super::devtools::{Answer, DevTools, DevToolsError};
use super::page::{self, ElementPosition, FocusedField, PageReport};
use crate::ToolError;
use crate::place::ToolPlace;

/// Keeps its messages apart from what the browser prints: they go over the standard streams that it was given.
const PIPE_SCRIPT: &str = r#"exec 3<&0 4>&1 </dev/null >&2; exec "$@""#;
/// How long it is listened for what an action makes a page do.
const SETTLE_TIME: Duration = Duration::from_millis(150);
/// How often a report is asked for again that was broken off as the page was replaced.
const MAX_REPORTS: usize = 5;

/// Why a browser did not do what it was asked.
#[derive(Debug)]
pub(super) enum BrowserError {
    /// The request or the page is wrong; the browser goes on.
    Wrong(ToolError),
    /// The browser can no longer be used.
    Broken(ToolError),
}

type Result<T> = std::result::Result<T, BrowserError>;

/// A browser with one page. Ends when it is dropped.
pub(crate) struct BrowserSession {
    devtools: DevTools,
    dir: BrowserDir,
    job: JobId,
    size: (u32, u32),
    /// The address that the page had last, in its own words.
    url: String,
}

/// What a function in the page has returned, if it has.
#[derive(Debug, Deserialize)]
struct Evaluated<T> {
    result: RemoteValue<T>,
}

#[derive(Debug, Deserialize)]
struct RemoteValue<T> {
    value: T,
}

/// Why a function in the page has not done what it was called for.
#[derive(Debug, Deserialize)]
struct Problem {
    problem: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Navigated {
    error_text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CapturedPicture {
    data: String,
}

impl BrowserSession {
    /// Starts a browser under a record of this id.
    pub(super) async fn start(
        place: &ToolPlace,
        browser: &str,
        job: JobId,
        size: (u32, u32),
    ) -> Result<Self> {
        let dir = BrowserDir::new(place, "browser", job.as_str()).map_err(BrowserError::Broken)?;
        let flags = ["--remote-debugging-pipe", "about:blank"].map(str::to_owned);
        let script = ["/bin/sh", "-c", PIPE_SCRIPT, "stockade-browser"].map(str::to_owned);
        let argv = chromium::build_browser_argv(browser, &dir, size, flags);
        let command = Command {
            stdin: Stdin::Stream,
            // It lasts as long as the agent wants, and its messages are no output that is cut.
            detached: true,
            output: Some(Bytes(u64::MAX)),
            ..Command::program(script.into_iter().chain(argv))
        };
        let started = place.engine.exec_followed_as(job.clone(), &place.id, command).await;
        let (execution, output) = started.map_err(|error| BrowserError::Broken(error.into()))?;
        let devtools = DevTools::new(execution, output);
        Ok(Self { devtools, dir, job, size, url: String::new() })
    }

    /// Gets hold of its page, and gives that a window of this size in pixels.
    pub(super) async fn prepare(&mut self, size: (u32, u32)) -> Result<()> {
        self.devtools.attach().await?;
        for domain in ["Inspector.enable", "Page.enable"] {
            self.devtools.tell(domain, json!({})).await?;
        }
        let metrics = json!({
            "width": size.0, "height": size.1, "deviceScaleFactor": 1, "mobile": false,
        });
        self.devtools.tell("Emulation.setDeviceMetricsOverride", metrics).await?;
        self.size = size;
        Ok(())
    }

    /// The id of its record.
    pub(super) fn job(&self) -> &JobId {
        &self.job
    }

    /// The address that the page had last.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the browser has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.devtools.has_ended()
    }

    /// Goes to a page, and waits this long at most until it has loaded.
    pub(super) async fn open(&mut self, url: &str, wait: Duration) -> Result<()> {
        let answer = self.devtools.request("Page.navigate", json!({ "url": url })).await?;
        match answer.read::<Navigated>()?.error_text.as_deref() {
            Some("net::ERR_CONNECTION_REFUSED") => {
                Err(BrowserError::Wrong(address::unserved_error("no page", url)))
            }
            Some(why) => {
                let why: String = why.escape_debug().take(200).collect();
                let message = format!("no page: the browser says {why} of {url}");
                Err(BrowserError::Wrong(ToolError::new(ErrorCode::Unavailable, message)))
            }
            None => self.settle(wait).await,
        }
    }

    /// Clicks into the middle of an element.
    pub(super) async fn click(&mut self, selector: &str, wait: Duration) -> Result<()> {
        let argument = json!({ "selector": selector });
        let ElementPosition { x, y } = self.call(selector, "locate", &argument).await?;
        for (kind, button) in
            [("mouseMoved", "none"), ("mousePressed", "left"), ("mouseReleased", "left")]
        {
            let event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
            self.devtools.tell("Input.dispatchMouseEvent", event).await?;
        }
        self.settle(wait).await
    }

    /// Replaces what a field holds by this text, and presses Enter if `submit`. Of a list it selects the option.
    pub(super) async fn type_text(
        &mut self,
        selector: &str,
        text: &str,
        submit: bool,
        wait: Duration,
    ) -> Result<()> {
        let argument = json!({ "selector": selector, "text": text });
        let field: FocusedField = self.call(selector, "focus", &argument).await?;
        if !field.selected && text.is_empty() {
            self.press_key("Delete", 46, "").await?;
        } else if !field.selected {
            self.devtools.tell("Input.insertText", json!({ "text": text })).await?;
        }
        if submit {
            self.press_key("Enter", 13, "\r").await?;
        }
        self.settle(wait).await
    }

    async fn press_key(&mut self, key: &str, code: u32, text: &str) -> Result<()> {
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        for (kind, text) in [(down, text), ("keyUp", "")] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.devtools.tell("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// What is on the page now, or on a part of it.
    pub(super) async fn report(
        &mut self,
        selector: Option<&str>,
        wait: Duration,
    ) -> Result<PageReport> {
        let argument = page::report_argument(selector);
        let deadline = Instant::now() + wait;
        for _ in 0..MAX_REPORTS {
            match self.evaluate("report", &argument).await {
                Ok(answer) => {
                    let report: PageReport = read_value(selector.unwrap_or_default(), &answer)?;
                    let (notes, loading) = (self.devtools.take_notes(), self.devtools.is_loading());
                    let report = PageReport { notes, loading, ..report }.bounded();
                    self.url.clone_from(&report.url);
                    return Ok(report);
                }
                Err(DevToolsError::Broken(error)) => return Err(BrowserError::Broken(error)),
                // The page was replaced meanwhile.
                Err(DevToolsError::Refused(_)) => {
                    self.settle(deadline.saturating_duration_since(Instant::now())).await?;
                }
            }
        }
        let message = "the page is replaced again and again";
        Err(BrowserError::Wrong(ToolError::new(ErrorCode::Unavailable, message)))
    }

    /// A picture of what the window shows, and its size.
    pub(super) async fn take_picture(&mut self) -> Result<(Vec<u8>, (u32, u32))> {
        let answer =
            self.devtools.request("Page.captureScreenshot", json!({ "format": "png" })).await?;
        let CapturedPicture { data } = answer.read()?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap_or_default();
        if address::png_size(&bytes) != Some(self.size) {
            let message = "the browser's picture is not a PNG of the window's size";
            return Err(BrowserError::Wrong(ToolError::new(ErrorCode::Protocol, message)));
        }
        Ok((bytes, self.size))
    }

    /// Ends the browser and removes what it has written.
    pub(crate) async fn close(self, place: &ToolPlace) {
        self.devtools.close().await;
        self.dir.remove(place).await;
    }

    /// Waits until the page has done what was begun, at most this long beyond `SETTLE_TIME`.
    async fn settle(&mut self, wait: Duration) -> Result<()> {
        // What a click begins is told before the page answers this; if it is replaced meanwhile, it does not.
        let turn = json!({
            "expression": "new Promise(done => setTimeout(done, 0))", "awaitPromise": true,
        });
        match self.devtools.request("Runtime.evaluate", turn).await {
            Ok(_) | Err(DevToolsError::Refused(_)) => {}
            Err(DevToolsError::Broken(error)) => return Err(BrowserError::Broken(error)),
        }
        self.devtools.listen(SETTLE_TIME, false).await?;
        self.devtools.close_other_windows().await?;
        Ok(self.devtools.listen(wait, true).await?)
    }

    /// Calls a function in the page about the element of a selector.
    async fn call<T: DeserializeOwned>(
        &mut self,
        selector: &str,
        function: &str,
        argument: &Value,
    ) -> Result<T> {
        let answer = self.evaluate(function, argument).await?;
        read_value(selector, &answer)
    }

    async fn evaluate(
        &mut self,
        function: &str,
        argument: &Value,
    ) -> std::result::Result<Answer, DevToolsError> {
        let expression = page::call_expression(function, argument);
        let call = json!({ "expression": expression, "returnByValue": true });
        self.devtools.request("Runtime.evaluate", call).await
    }
}

/// What a function in the page has said about the element of a selector.
fn read_value<T: DeserializeOwned>(selector: &str, answer: &Answer) -> Result<T> {
    if let Ok(Evaluated { result: RemoteValue { value: Problem { problem } } }) = answer.read() {
        let problem: String = problem.chars().take(1000).collect();
        let error = ToolError::field("selector", format!("`{selector}` {problem}"))
            .remedy("the action `text` names the elements that there are");
        return Err(BrowserError::Wrong(error));
    }
    let told = answer.read::<Evaluated<T>>().map(|told| told.result.value);
    told.map_err(|_| {
        let message = "the page has changed what the browser would look with";
        let error = ToolError::new(ErrorCode::Protocol, message);
        BrowserError::Wrong(error.remedy("look at the page with the action `screenshot`"))
    })
}

impl From<DevToolsError> for BrowserError {
    fn from(error: DevToolsError) -> Self {
        match error {
            DevToolsError::Broken(error) => Self::Broken(error),
            DevToolsError::Refused(why) => {
                let why: String = why.escape_debug().take(500).collect();
                let message = format!("the browser refused: {why}");
                Self::Wrong(ToolError::new(ErrorCode::Unavailable, message))
            }
        }
    }
}
