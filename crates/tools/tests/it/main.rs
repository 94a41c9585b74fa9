//! The tests of this crate from outside, as one program: linking one takes seconds, linking many minutes.
//! Those below a module `needs_X` need X; `CONTRIBUTING.md` lists what that may be.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod applied;
mod approval;
mod bash;
mod browser;
mod common;
mod files;
mod hostile;
mod lost;
mod sandboxes;
mod needs_git {
    mod repositories;
}
