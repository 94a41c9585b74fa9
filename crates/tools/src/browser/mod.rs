//! A browser inside the sandbox: `screenshot` takes one picture of a page, `browser` keeps a page open and uses it.
//!
//! Which pages there are is the network's and the file tree's business: what is asked for is checked so
//! that a mistake is named, not so that anything is kept out. The browser's own walls stay down, since
//! it stands within walls already and could not build others there.

mod address;
mod chromium;
mod devtools;
mod page;
mod screenshot;
mod session;
mod tool;

pub(crate) use screenshot::{Screenshot, take_screenshot};
pub(crate) use session::BrowserSession;
pub(crate) use tool::{Browse, use_browser};
