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
mod bare;
mod clock;
mod content;
mod copy;
mod diff;
mod digest;
mod fault;
mod fit;
mod git;
mod held;
mod json;
mod layer;
mod live;
mod local;
mod owned;
mod path;
mod request;
mod source;
mod store;
mod table;
mod tree;
mod walk;
mod workspaces;

pub use apply::{Application, Applied, ApplyOptions, Conflict, ConflictReason};
pub use diff::{Change, ChangeKind, Diff, Node, printable};
pub use digest::ContentDigest;
pub use held::HeldReason;
pub use live::Hold;
pub use local::too_broad;
pub use path::{TreePath, TreePathError};
pub use request::{Hint, Kind, ManagedWorkspace, Mechanism, Request};
pub use source::{SandboxWorkspaces, WorkspaceLoan, WorkspaceOrigin, off_thread};
pub use tree::NodeKind;
pub use workspaces::{Recovery, Workspaces};
