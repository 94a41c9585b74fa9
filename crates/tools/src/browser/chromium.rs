//! The browser as a program: where it lies, how it is started, where it may write, and why it ended.

use stockade_core::{Ending, ErrorCode, FilesExt, LimitKind, Network, SandboxPath};

use super::address::{PageAddress, file_url};
use crate::ToolError;
use crate::place::ToolPlace;

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
const MEMORY_REMEDY: &str =
    "give the sandbox more memory and processes, such as --mem 2g --pids 512";
const SIDE_PIXELS_RANGE: std::ops::RangeInclusive<u32> = 16..=4096;
const DEFAULT_SIZE_PIXELS: (u32, u32) = (1280, 800);
/// Largest picture.
pub(super) const MAX_PICTURE_BYTES: u64 = 8 << 20;

/// The size of a page's window in pixels.
pub(super) fn parse_size(width: Option<u32>, height: Option<u32>) -> Result<(u32, u32), ToolError> {
    Ok((
        check_side_length("width", width, DEFAULT_SIZE_PIXELS.0)?,
        check_side_length("height", height, DEFAULT_SIZE_PIXELS.1)?,
    ))
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
pub(super) async fn resolve_page_url(
    place: &ToolPlace,
    page: &PageAddress,
) -> Result<String, ToolError> {
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
            Ok(file_url(&place.directory(Some(path))))
        }
    }
}

/// The path of the browser.
pub(super) async fn find_browser(place: &ToolPlace) -> Result<&'static str, ToolError> {
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

/// The browser with the flags that it always gets, and these.
pub(super) fn build_browser_argv(
    browser: &str,
    dir: &BrowserDir,
    size: (u32, u32),
    more: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let mut argv = vec![browser.to_owned()];
    argv.extend(BROWSER_FLAGS.map(str::to_owned));
    argv.push(format!("--user-data-dir={}/profile", dir.seen));
    argv.push(format!("--window-size={},{}", size.0, size.1));
    argv.extend(more);
    argv
}

/// A directory for the browser's own things and pictures.
pub(super) struct BrowserDir {
    path: SandboxPath,
    /// The same as the browser sees it.
    pub seen: String,
}

impl BrowserDir {
    pub(super) fn new(place: &ToolPlace, what: &str, job: &str) -> Result<Self, ToolError> {
        let under = if place.local { "." } else { "/tmp/" };
        let path: SandboxPath = format!("{under}stockade-{what}-{job}").parse()?;
        let seen = place.directory(Some(&path));
        Ok(Self { path, seen })
    }

    pub(super) async fn read_picture(&self, place: &ToolPlace) -> Result<Vec<u8>, ToolError> {
        let path: SandboxPath = format!("{}/page.png", self.path).parse()?;
        Ok(place.files()?.read_all(&path, MAX_PICTURE_BYTES).await?)
    }

    pub(super) async fn remove(&self, place: &ToolPlace) {
        if let Ok(files) = place.files() {
            // What cannot be removed is gone with the sandbox.
            let _ = files.remove(&self.path).await;
        }
    }
}

/// Why the browser ended. `prefix` says what it failed at, and `stderr` is what it wrote to standard error.
pub(super) fn ended_error(prefix: &str, ending: &Ending, stderr: &str) -> ToolError {
    let failed = |why: String| ToolError::new(ErrorCode::Unavailable, format!("{prefix}: {why}"));
    match ending {
        Ending::LimitExceeded(limit) => {
            let error = failed(format!("the browser exceeded the {limit} limit"));
            if matches!(limit, LimitKind::Memory | LimitKind::Processes) {
                return error.remedy(MEMORY_REMEDY);
            }
            error.remedy(format!("give the sandbox a higher {limit} limit"))
        }
        Ending::TimedOut => failed("the browser took too long".into()),
        Ending::Signalled(signal) => {
            failed(format!("{} ended the browser", signal.name())).remedy(MEMORY_REMEDY)
        }
        Ending::StartFailed(failure) => failed(failure.detail().to_owned()),
        Ending::Lost(reason) | Ending::Refused(reason) => failed(reason.clone()),
        Ending::Killed => failed("its sandbox was ended by another process".into()),
        Ending::Cancelled => ToolError::cancelled(),
        Ending::Exited(code) => {
            failed(format!("the browser ended with {code}: {stderr}")).remedy(MEMORY_REMEDY)
        }
    }
}

/// That the process of a page has died.
pub(super) fn crashed_error() -> ToolError {
    ToolError::new(ErrorCode::Unavailable, "the page's process crashed; the browser was closed")
        .remedy(MEMORY_REMEDY)
}

/// The end of what the browser wrote to standard error, for a message.
pub(super) fn escape_stderr(said: &[u8]) -> String {
    String::from_utf8_lossy(said).trim().escape_debug().to_string()
}
