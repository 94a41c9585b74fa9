//! Sandboxes where no namespace can be had: Landlock, a system call filter, limits, and a warden.
//!
//! The order is in `agent`, read from top to bottom. What a pid namespace's first process is
//! elsewhere, the warden is here: it stands outside the guest's reach, ends all of it at once, and
//! does in the guest's stead what neither Landlock nor the filter can decide about.

mod agent;
mod attributes;
pub(crate) mod calls;
mod launch;
mod plan;
mod proof;
mod rules;
mod scope;
mod warden;

pub use plan::BarePlan;

pub(crate) use launch::BareLauncher;

/// The name agents of such sandboxes run under.
pub const BARE_AGENT: &str = "stockade-bare-agent";
