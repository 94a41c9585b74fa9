//! The front door from outside: its examples, and what dropping does. One program: linking one takes
//! seconds, linking many minutes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod examples;
mod sandboxes;
