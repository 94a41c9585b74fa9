//! `browser`: a page that stays open from one call to the next.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_core::{ErrorCode, SandboxId};

use super::address::PageAddress;
use super::chromium;
use super::devtools::silent_error;
use super::session::{BrowserError, BrowserSession};
use crate::answer::AnswerImage;
use crate::approval::{Detail, Facts, Programs};
use crate::place::ToolPlace;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

const DEFAULT_WAIT_MS: u64 = 10_000;
const MAX_WAIT_MS: u64 = 30_000;
/// Timeout of one call, whatever the browser does.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BrowserAction {
    /// Go to `url`.
    Open,
    /// Click the element `selector`.
    Click,
    /// Type `text` into the field `selector`, in place of what it holds.
    Type,
    /// Read the page, or the part `selector` of it.
    Text,
    /// A picture of what the window shows.
    Screenshot,
    /// End the browser.
    Close,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Browse {
    /// What to do.
    pub action: BrowserAction,
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// For `open`: `http://localhost:PORT/…` of a server that runs in the sandbox (start it with `bash`),
    /// or the path of a file in the workspace.
    #[serde(default)]
    pub url: Option<String>,
    /// For `click`, `type` and `text`: a CSS selector. Answers name one for each element that can be used.
    #[serde(default)]
    pub selector: Option<String>,
    /// For `type`: the text. Of a list, the option to select.
    #[serde(default)]
    pub text: Option<String>,
    /// For `type`: press Enter afterwards.
    #[serde(default)]
    pub submit: bool,
    /// For `open`: width of the window in pixels; 1280 if left out.
    #[serde(default)]
    pub width: Option<u32>,
    /// For `open`: height of the window in pixels; 800 if left out.
    #[serde(default)]
    pub height: Option<u32>,
    /// How many milliseconds to wait at most until the page has loaded; 10000 if left out.
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

/// What is to be done, with all that it needs.
enum Step {
    Open { page: PageAddress, size: (u32, u32) },
    Click { selector: String },
    Type { selector: String, text: String, submit: bool },
    Text { selector: Option<String> },
    Screenshot,
    Close,
}

pub(crate) async fn use_browser(
    session: &ToolSession,
    args: Browse,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let wait = Duration::from_millis(args.wait_ms.unwrap_or(DEFAULT_WAIT_MS).min(MAX_WAIT_MS));
    let sandbox = args.sandbox_id.clone();
    let step = Step::parse(args)?;
    let place = session.places.find(sandbox.as_ref()).await?;
    if place.local {
        let message = "without walls, no browser is left open";
        return Err(ToolError::new(ErrorCode::Refused, message)
            .remedy("make a sandbox with `sandbox_create`, or use `screenshot`"));
    }
    take_step(session, &place, step, wait, call).await
}

impl Step {
    fn parse(args: Browse) -> Result<Self, ToolError> {
        let (url, selector, text) = (args.url, args.selector, args.text);
        let need = |name: &str, given: Option<String>| {
            given.ok_or_else(|| ToolError::field(name, "this action needs it"))
        };
        Ok(match args.action {
            BrowserAction::Open => Self::Open {
                page: PageAddress::parse(&need("url", url)?)?,
                size: chromium::parse_size(args.width, args.height)?,
            },
            BrowserAction::Click => Self::Click { selector: need("selector", selector)? },
            BrowserAction::Type => Self::Type {
                selector: need("selector", selector)?,
                text: need("text", text)?,
                submit: args.submit,
            },
            BrowserAction::Text => Self::Text { selector },
            BrowserAction::Screenshot => Self::Screenshot,
            BrowserAction::Close => Self::Close,
        })
    }
}

/// Has the step approved and taken. The browser is put back only if it can still be used.
async fn take_step(
    session: &ToolSession,
    place: &ToolPlace,
    step: Step,
    wait: Duration,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    // Held meanwhile: two calls cannot use one page at the same time.
    let mut slot = tokio::select! {
        slot = place.browser.lock() => slot,
        () = call.cancelled.wait() => return Err(ToolError::cancelled()),
    };
    if let Step::Open { page, size } = &step {
        return open_page(session, place, &mut slot, (page, *size), wait, call).await;
    }
    let Some(browser) = slot.as_ref() else {
        return Err(ToolError::new(ErrorCode::NotFound, "no page is open in this sandbox")
            .remedy("open one with the action `open`"));
    };
    let facts = describe_step(place, browser.url(), &step);
    session.pass(place, Some(browser.job()), facts, call).await?;
    let Some(browser) = slot.take() else { return Err(ToolError::cancelled()) };
    if let Step::Close = step {
        browser.close(place).await;
        return ToolAnswer::data(&serde_json::json!({ "closed": true }));
    }
    let work = async |browser: &mut BrowserSession| use_page(browser, step, wait).await;
    let (answer, browser) = keep_browser(place, browser, work, call).await;
    *slot = browser;
    answer
}

async fn open_page(
    session: &ToolSession,
    place: &ToolPlace,
    slot: &mut Option<BrowserSession>,
    (page, size): (&PageAddress, (u32, u32)),
    wait: Duration,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    refuse_output_limit(place)?;
    let url = chromium::resolve_page_url(place, page).await?;
    if let Some(ended) = slot.take_if(|browser| browser.has_ended()) {
        ended.close(place).await;
    }
    let program = chromium::find_browser(place).await?;
    let job = match slot.as_ref() {
        Some(browser) => browser.job().clone(),
        None => place.engine.fresh_job()?,
    };
    let programs = Programs::Known(vec![vec![program.to_owned(), url.clone()]]);
    let paths: Vec<_> = page.path().into_iter().collect();
    session.pass(place, Some(&job), place.facts("browser", programs, &paths), call).await?;
    let browser = match slot.take() {
        Some(browser) => browser,
        None => match BrowserSession::start(place, program, job, size).await {
            Ok(browser) => browser,
            Err(BrowserError::Wrong(error) | BrowserError::Broken(error)) => return Err(error),
        },
    };
    let work = async |browser: &mut BrowserSession| {
        browser.prepare(size).await?;
        browser.open(&url, wait).await?;
        report_page(browser, None, wait).await
    };
    let (answer, browser) = keep_browser(place, browser, work, call).await;
    *slot = browser;
    answer
}

/// What the browser answers is its output, and without an end in sight.
fn refuse_output_limit(place: &ToolPlace) -> Result<(), ToolError> {
    let Some(limit) = place.spec.limits.output else { return Ok(()) };
    let message = format!(
        "no browser stays open in a sandbox with an output limit ({limit}): its answers are output"
    );
    Err(ToolError::new(ErrorCode::Refused, message)
        .remedy("name no output limit (`--max-output`), or use `screenshot`"))
}

/// Uses a browser, and gives it back unless it is broken or the call was cancelled: then what is left of it is
/// removed.
async fn keep_browser(
    place: &ToolPlace,
    mut browser: BrowserSession,
    work: impl AsyncFnOnce(&mut BrowserSession) -> Result<ToolAnswer, BrowserError>,
    call: &Call,
) -> (Result<ToolAnswer, ToolError>, Option<BrowserSession>) {
    let done = tokio::select! {
        done = tokio::time::timeout(STEP_TIMEOUT, work(&mut browser)) => {
            done.unwrap_or_else(|_| Err(BrowserError::Broken(silent_error())))
        }
        () = call.cancelled.wait() => Err(BrowserError::Broken(ToolError::cancelled())),
    };
    match done {
        Ok(answer) => (Ok(answer), Some(browser)),
        Err(BrowserError::Wrong(error)) => (Err(error), Some(browser)),
        Err(BrowserError::Broken(error)) => {
            browser.close(place).await;
            (Err(error), None)
        }
    }
}

async fn use_page(
    browser: &mut BrowserSession,
    step: Step,
    wait: Duration,
) -> Result<ToolAnswer, BrowserError> {
    match step {
        Step::Click { selector } => browser.click(&selector, wait).await?,
        Step::Type { selector, text, submit } => {
            browser.type_text(&selector, &text, submit, wait).await?;
        }
        Step::Text { selector } => return report_page(browser, selector.as_deref(), wait).await,
        Step::Screenshot => return picture_page(browser).await,
        Step::Open { .. } | Step::Close => {}
    }
    report_page(browser, None, wait).await
}

async fn report_page(
    browser: &mut BrowserSession,
    selector: Option<&str>,
    wait: Duration,
) -> Result<ToolAnswer, BrowserError> {
    let report = browser.report(selector, wait).await?;
    ToolAnswer::told(&report, report.to_text()).map_err(BrowserError::Wrong)
}

async fn picture_page(browser: &mut BrowserSession) -> Result<ToolAnswer, BrowserError> {
    let (bytes, (width, height)) = browser.take_picture().await?;
    let data = serde_json::json!({
        "width": width, "height": height, "mime": "image/png", "bytes": bytes.len(),
    });
    let text = format!("the page at {width} × {height}");
    let told = ToolAnswer::told(&data, text).map_err(BrowserError::Wrong)?;
    Ok(ToolAnswer { images: vec![AnswerImage { mime: "image/png".into(), bytes }], ..told })
}

/// What is known about a step on an open page. What a page does with it is as open as what a shell does with a line.
fn describe_step(place: &ToolPlace, url: &str, step: &Step) -> Facts {
    let changes = |action: &str| Programs::Opaque(format!("browser {action}"));
    let (programs, action) = match step {
        Step::Click { selector } => (changes("click"), vec![Detail::open("selector", selector)]),
        Step::Type { selector, text, submit } => {
            let into = Detail::open("selector", selector);
            let enter = submit.then(|| Detail::open("then", "Enter"));
            let details = [into, Detail::private("text", text)].into_iter().chain(enter);
            (changes("type"), details.collect())
        }
        Step::Text { .. } => (Programs::NONE, vec![Detail::open("action", "text")]),
        Step::Screenshot => (Programs::NONE, vec![Detail::open("action", "screenshot")]),
        Step::Close => (Programs::NONE, vec![Detail::open("action", "close")]),
        Step::Open { .. } => (Programs::NONE, Vec::new()),
    };
    let details = [Detail::open("page", url)].into_iter().chain(action).collect();
    Facts { details, ..place.facts("browser", programs, &[]) }
}
