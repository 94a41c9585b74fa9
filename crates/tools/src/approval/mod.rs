//! Whether something may be done: a question apart from where it is done.
//!
//! Rules look at structured facts, never at a string that a shell will read differently. They come
//! from the user's configuration alone; nothing an agent or a workspace says can add one.

mod facts;
mod gate;
mod rules;
mod shell;

pub(crate) use facts::plain_path;
pub use facts::{Detail, Facts, NetworkFact, Programs};
pub(crate) use gate::{ApprovalSubject, approve_call};
pub use rules::{ApprovalConfig, Match, Rule, RuleVerdict, Ruling};
