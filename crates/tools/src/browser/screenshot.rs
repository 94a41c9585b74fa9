//! `screenshot`: a picture of a page, taken by a browser that ends with it.

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_core::{Command, Ending, ErrorCode, Outcome, SandboxId, Span, StreamId};

use super::address::{self, PageAddress};
use super::chromium::{self, BrowserDir};
use crate::answer::AnswerImage;
use crate::approval::Programs;
use crate::place::{ToolJob, ToolPlace};
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// How much of its own time a page gets before it is looked at.
const DEFAULT_WAIT_MS: u64 = 2_000;
const MAX_WAIT_MS: u64 = 30_000;
/// Timeout of the browser for everything.
const BROWSER_TIMEOUT: Span = Span::secs(60);
const SHELL_PATH: &str = "/bin/sh";
/// Exit code of the shell where no server listens; no browser has it.
const UNSERVED_EXIT_CODE: i32 = 97;
/// Looks for a listener at the port `$0`, in hexadecimal, without connecting: a server may serve only once.
/// Where the tables cannot be read, nothing is known and the browser is to see for itself.
const IF_SERVED: &str = r#"
served() {
    seen=
    for table in /proc/net/tcp /proc/net/tcp6; do
        [ -r "$table" ] || continue
        while read -r _ at _ state _; do
            seen=1
            [ "$state" = 0A ] && [ "${at##*:}" = "$1" ] && return 0
        done <"$table"
    done
    [ -z "$seen" ]
}
served "$0" || exit 97
exec "$@"
"#;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Screenshot {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The page: `http://localhost:PORT/…` of a server that runs in the sandbox (start it with `bash`),
    /// or the path of a file in the workspace.
    pub url: String,
    /// Width in pixels; 1280 if left out.
    #[serde(default)]
    pub width: Option<u32>,
    /// Height in pixels; 800 if left out.
    #[serde(default)]
    pub height: Option<u32>,
    /// How many milliseconds of its own time the page gets to become ready; 2000 if left out.
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

pub(crate) async fn take_screenshot(
    session: &ToolSession,
    args: Screenshot,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let page = PageAddress::parse(&args.url)?;
    let size = chromium::parse_size(args.width, args.height)?;
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let url = chromium::resolve_page_url(&place, &page).await?;
    let browser = chromium::find_browser(&place).await?;
    let job = place.engine.fresh_job()?;
    let programs = Programs::Known(vec![vec![browser.to_owned(), url.clone()]]);
    let paths: Vec<_> = page.path().into_iter().collect();
    place.refuse_outside(&paths).await?;
    session.pass(&place, Some(&job), place.facts("screenshot", programs, &paths), call).await?;

    let dir = BrowserDir::new(&place, "screenshot", job.as_str())?;
    let wait = args.wait_ms.unwrap_or(DEFAULT_WAIT_MS).min(MAX_WAIT_MS);
    let flags = [
        format!("--screenshot={}/page.png", dir.seen),
        format!("--virtual-time-budget={wait}"),
        url.clone(),
    ];
    let argv = chromium::build_browser_argv(browser, &dir, size, flags);
    let argv = guard_argv(&place, &page, argv).await?;
    let command = Command { wall_time: Some(BROWSER_TIMEOUT), ..Command::program(argv) };
    let line = format!("{browser} {url}");
    let (execution, job) = place.start(job, command, line).await?;
    let outcome = tokio::select! {
        outcome = job.ended() => outcome,
        () = call.cancelled.wait() => {
            let _ = execution.close().await;
            dir.remove(&place).await;
            return Err(ToolError::cancelled());
        }
    };
    let picture = dir.read_picture(&place).await;
    dir.remove(&place).await;
    picture_answer(
        &url,
        size,
        picture.map_err(|error| no_picture_error(&job, &page, &outcome, error))?,
    )
}

/// The browser shows an error page of its own where no server answers. So it is started only if one listens
/// there, as far as that can be seen.
async fn guard_argv(
    place: &ToolPlace,
    page: &PageAddress,
    argv: Vec<String>,
) -> Result<Vec<String>, ToolError> {
    let Some(port) = page.port() else { return Ok(argv) };
    let shell = match place.local {
        true => std::path::Path::new(SHELL_PATH).exists(),
        false => place.files()?.stat(&SHELL_PATH.parse()?).await.is_ok(),
    };
    if !shell {
        return Ok(argv);
    }
    let first = [SHELL_PATH, "-c", IF_SERVED].map(str::to_owned);
    Ok(first.into_iter().chain([format!("{port:04X}")]).chain(argv).collect())
}

/// The picture, if it is one and has the size that was asked for: the guest could have put anything there.
fn picture_answer(url: &str, size: (u32, u32), bytes: Vec<u8>) -> Result<ToolAnswer, ToolError> {
    if address::png_size(&bytes) != Some(size) {
        let message = "the browser's file is not a PNG of that size";
        return Err(ToolError::new(ErrorCode::Protocol, message));
    }
    let data = serde_json::json!({
        "url": url, "width": size.0, "height": size.1, "mime": "image/png", "bytes": bytes.len(),
    });
    let text = format!("{url} at {} × {}", size.0, size.1);
    let images = vec![AnswerImage { mime: "image/png".into(), bytes }];
    Ok(ToolAnswer { images, ..ToolAnswer::told(&data, text)? })
}

/// Why there is no picture, from how the browser ended.
fn no_picture_error(
    job: &ToolJob,
    page: &PageAddress,
    outcome: &Outcome,
    error: ToolError,
) -> ToolError {
    const PREFIX: &str = "no screenshot";
    if error.code != ErrorCode::NotFound {
        return error;
    }
    if let (Ending::Exited(UNSERVED_EXIT_CODE), PageAddress::Served(url)) = (&outcome.ending, page)
    {
        return address::unserved_error(PREFIX, url);
    }
    let error = chromium::ended_error(PREFIX, &outcome.ending, &read_stderr_tail(job));
    if matches!(outcome.ending, Ending::TimedOut) {
        return error.remedy("lower `wait_ms`");
    }
    error
}

fn read_stderr_tail(job: &ToolJob) -> String {
    const STDERR_TAIL_BYTES: u64 = 400;
    let from = job.kept(StreamId::Stderr).saturating_sub(STDERR_TAIL_BYTES);
    let said = job
        .read(StreamId::Stderr, from, STDERR_TAIL_BYTES)
        .map(|piece| piece.data)
        .unwrap_or_default();
    chromium::escape_stderr(&said)
}
