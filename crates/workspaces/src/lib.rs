//! The directory tree that the work is about, as an explicit object: `local`, `overlay`, `git` or
//! `ephemeral`.
//!
//! Changes of the middle two are kept apart, to be looked at (`diff`), put into a real tree all at
//! once (`apply`), thrown away (`discard`) or tried further (`fork`). What a guest left is hostile
//! input: nothing here follows a symbolic link of its, opens anything but files and directories, or
//! runs a program in it.

mod acquire;
mod apply;
mod attributes;
mod bare_repository;
mod changes;
mod clock;
mod content;
mod copy;
mod diff;
mod digest;
mod error;
mod git;
mod held_back;
mod held_names;
mod json;
mod live;
mod local;
mod overlay_support;
mod ownership;
mod path;
mod request;
mod source;
mod store;
mod tree;
mod walk;
mod workspaces;

pub use apply::{Application, Applied, ApplyOptions, Conflict, ConflictReason};
pub use diff::{Change, ChangeKind, Diff, Node, printable};
pub use digest::ContentDigest;
pub use held_back::HeldReason;
pub use live::Hold;
pub use local::too_broad;
pub use path::{TreePath, TreePathError};
pub use request::{Hint, Kind, ManagedWorkspace, Mechanism, Request};
pub use source::{SandboxWorkspaces, WorkspaceLoan, WorkspaceOrigin, off_thread};
pub use tree::NodeKind;
pub use workspaces::{Recovery, Workspaces};
