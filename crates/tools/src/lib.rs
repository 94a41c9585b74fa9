//! What an agent calls: the same tools behind every front end.
//!
//! A front end hands a name and JSON arguments to [`Toolbox::call`] and passes the answer on. Where a
//! tool runs (a sandbox, or locally) is decided by what was bound, and whether it may is decided by
//! the user's rules: two separate questions, neither of them the agent's to answer. Nothing here
//! reads the surroundings: no environment, no current directory.

mod answer;
mod approval;
mod arguments;
mod bash;
mod binding;
mod browser;
mod call;
mod directories;
mod error;
mod files;
mod hosts;
mod options;
mod patch;
mod pattern;
mod place;
mod repositories;
mod sandboxes;
mod search;
mod tool;
mod toolbox;
mod workspace;

pub use answer::{AnswerImage, ToolAnswer};
pub use approval::{
    ApprovalConfig, Detail, Facts, Match, NetworkFact, Programs, Rule, RuleVerdict, Ruling,
};
pub use binding::Binding;
pub use call::{Ask, Call, Cancelled, Canceller, Decision, Nobody, Progress, Question};
pub use directories::AllowedDirectories;
pub use error::ToolError;
pub use hosts::{AskedPerson, HostAsks};
pub use options::{AdoptedSandbox, LocalOptions, SandboxQuota, SpecRenewal, ToolboxOptions};
pub use place::spool_cache;
pub use tool::ToolInfo;
pub use toolbox::Toolbox;
