//! `screenshot`: a picture of a page that the sandbox serves, taken by a browser inside it.
//!
//! Which pages there are is the network's and the file tree's business: what is asked for is checked so
//! that a mistake is named, not so that anything is kept out. The browser's own walls stay down, since
//! it stands within walls already and could not build others there.

mod page;

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_core::{
    Command, Ending, ErrorCode, FilesExt, Network, Outcome, SandboxId, SandboxPath, Span, StreamId,
};

use self::page::PageAddress;
use crate::answer::AnswerImage;
use crate::approval::Programs;
use crate::place::{ToolJob, ToolPlace};
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Paths of browsers: the programs themselves, as the scripts in front of them read files of the host that
/// are not inside.
const BROWSER_PATHS: [&str; 6] = [
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
];
/// Flags of the browser: without walls of its own, without a screen, and without calls to any server.
const BROWSER_FLAGS: [&str; 13] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-device-scale-factor=1",
];
const SIDE_PIXELS_RANGE: std::ops::RangeInclusive<u32> = 16..=4096;
const DEFAULT_SIZE_PIXELS: (u32, u32) = (1280, 800);
/// How much of its own time a page gets before it is looked at.
const DEFAULT_WAIT_MS: u64 = 2_000;
const MAX_WAIT_MS: u64 = 30_000;
/// Timeout of the browser for everything.
const BROWSER_TIMEOUT: Span = Span::secs(60);
/// Largest picture.
const MAX_PICTURE_BYTES: u64 = 8 << 20;
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
const MEMORY_REMEDY: &str =
    "give the sandbox more memory and processes, such as --mem 2g --pids 512";

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
    let size = (
        check_side_length("width", args.width, DEFAULT_SIZE_PIXELS.0)?,
        check_side_length("height", args.height, DEFAULT_SIZE_PIXELS.1)?,
    );
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let url = resolve_page_url(&place, &page).await?;
    let browser = find_browser(&place).await?;
    let job = place.engine.fresh_job()?;
    let programs = Programs::Known(vec![vec![browser.to_owned(), url.clone()]]);
    let paths: Vec<_> = page.path().into_iter().collect();
    place.refuse_outside(&paths).await?;
    session.pass(&place, Some(&job), place.facts("screenshot", programs, &paths), call).await?;

    let room = ScreenshotDir::new(&place, job.as_str())?;
    let wait = args.wait_ms.unwrap_or(DEFAULT_WAIT_MS).min(MAX_WAIT_MS);
    let argv =
        guard_argv(&place, &page, build_browser_argv(browser, &room, &url, size, wait)).await?;
    let command = Command { wall_time: Some(BROWSER_TIMEOUT), ..Command::program(argv) };
    let line = format!("{browser} {url}");
    let (execution, job) = place.start(job, command, line).await?;
    let outcome = tokio::select! {
        outcome = job.ended() => outcome,
        () = call.cancelled.wait() => {
            let _ = execution.close().await;
            return Err(ToolError::cancelled());
        }
    };
    let picture = room.read_picture(&place).await;
    room.remove_room(&place).await;
    picture_answer(
        &url,
        size,
        picture.map_err(|error| no_picture_error(&job, &page, &outcome, error))?,
    )
}

fn check_side_length(name: &str, given: Option<u32>, usual: u32) -> Result<u32, ToolError> {
    let side = given.unwrap_or(usual);
    if SIDE_PIXELS_RANGE.contains(&side) {
        return Ok(side);
    }
    let range =
        format!("is not between {} and {}", SIDE_PIXELS_RANGE.start(), SIDE_PIXELS_RANGE.end());
    Err(ToolError::field(name, range))
}

/// The page's address, if anything can be there.
async fn resolve_page_url(place: &ToolPlace, page: &PageAddress) -> Result<String, ToolError> {
    match page {
        PageAddress::Served(url) if !place.local && place.spec.network == Network::None => {
            let message = format!("`{url}`: this sandbox has no network, not even to itself");
            Err(ToolError::new(ErrorCode::Refused, message)
                .remedy("use a sandbox whose network is `loopback` (`sandbox_create`)"))
        }
        PageAddress::Served(url) => Ok(url.clone()),
        PageAddress::File(path) if place.local => {
            // A browser follows links, and nothing here would stop it.
            let message = format!("`{path}`: without walls, files are not opened in a browser");
            Err(ToolError::new(ErrorCode::Refused, message)
                .remedy("serve the directory on localhost and give that address"))
        }
        PageAddress::File(path) => {
            place.files()?.stat(path).await?;
            Ok(page::file_url(&place.directory(Some(path))))
        }
    }
}

async fn find_browser(place: &ToolPlace) -> Result<&'static str, ToolError> {
    for browser in BROWSER_PATHS {
        let there = match browser.parse::<SandboxPath>() {
            Ok(_) if place.local => std::path::Path::new(browser).exists(),
            Ok(path) => place.files()?.stat(&path).await.is_ok(),
            Err(_) => false,
        };
        if there {
            return Ok(browser);
        }
    }
    Err(ToolError::new(ErrorCode::Unavailable, "there is no Chromium in this sandbox")
        .remedy("install Chromium on the host, or use an image that has it"))
}

fn build_browser_argv(
    browser: &str,
    room: &ScreenshotDir,
    url: &str,
    size: (u32, u32),
    wait: u64,
) -> Vec<String> {
    let mut argv = vec![browser.to_owned()];
    argv.extend(BROWSER_FLAGS.map(str::to_owned));
    argv.push(format!("--user-data-dir={}/profile", room.seen));
    argv.push(format!("--screenshot={}/page.png", room.seen));
    argv.push(format!("--window-size={},{}", size.0, size.1));
    argv.push(format!("--virtual-time-budget={wait}"));
    argv.push(url.to_owned());
    argv
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

/// A directory for the browser's own things and the picture.
struct ScreenshotDir {
    path: SandboxPath,
    /// The same as the browser sees it.
    seen: String,
}

impl ScreenshotDir {
    fn new(place: &ToolPlace, job: &str) -> Result<Self, ToolError> {
        let under = if place.local { "." } else { "/tmp/" };
        let path: SandboxPath = format!("{under}stockade-screenshot-{job}").parse()?;
        let seen = place.directory(Some(&path));
        Ok(Self { path, seen })
    }

    async fn read_picture(&self, place: &ToolPlace) -> Result<Vec<u8>, ToolError> {
        let path: SandboxPath = format!("{}/page.png", self.path).parse()?;
        Ok(place.files()?.read_all(&path, MAX_PICTURE_BYTES).await?)
    }

    async fn remove_room(&self, place: &ToolPlace) {
        if let Ok(files) = place.files() {
            // What cannot be removed is gone with the sandbox.
            let _ = files.remove(&self.path).await;
        }
    }
}

/// The picture, if it is one and has the size that was asked for: the guest could have put anything there.
fn picture_answer(url: &str, size: (u32, u32), bytes: Vec<u8>) -> Result<ToolAnswer, ToolError> {
    if page::png_size(&bytes) != Some(size) {
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
    if error.code != ErrorCode::NotFound {
        return error;
    }
    let failed =
        |why: String| ToolError::new(ErrorCode::Unavailable, format!("no screenshot: {why}"));
    match (&outcome.ending, page) {
        (Ending::Exited(UNSERVED_EXIT_CODE), PageAddress::Served(url)) => failed(format!(
            "nothing listens at {url}"
        ))
        .remedy("start the server with `bash` and the action `start`, and wait until it listens"),
        (Ending::LimitExceeded(limit), _) => {
            failed(format!("the browser exceeded the {limit} limit")).remedy(MEMORY_REMEDY)
        }
        (Ending::TimedOut, _) => {
            failed("the browser took too long".into()).remedy("lower `wait_ms`")
        }
        (Ending::Signalled(signal), _) => {
            failed(format!("{} ended the browser", signal.name())).remedy(MEMORY_REMEDY)
        }
        (Ending::StartFailed(failure), _) => failed(failure.detail().to_owned()),
        (Ending::Lost(reason) | Ending::Refused(reason), _) => failed(reason.clone()),
        (Ending::Killed, _) => failed("its sandbox was ended by another process".into()),
        (Ending::Cancelled, _) => ToolError::cancelled(),
        (Ending::Exited(code), _) => {
            failed(format!("the browser ended with {code}: {}", last_words(job)))
                .remedy(MEMORY_REMEDY)
        }
    }
}

fn last_words(job: &ToolJob) -> String {
    const STDERR_TAIL_BYTES: u64 = 400;
    let from = job.kept(StreamId::Stderr).saturating_sub(STDERR_TAIL_BYTES);
    let said = job
        .read(StreamId::Stderr, from, STDERR_TAIL_BYTES)
        .map(|piece| piece.data)
        .unwrap_or_default();
    String::from_utf8_lossy(&said).trim().escape_debug().to_string()
}
