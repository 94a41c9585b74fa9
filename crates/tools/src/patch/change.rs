//! What a patch says about one file.

use std::collections::BTreeSet;

use stockade_core::SandboxPath;

use super::text::{Hunk, Text};
use crate::ToolError;
use crate::approval::plain_path;

/// What a patch says about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PatchChange {
    pub path: SandboxPath,
    pub action: PatchAction,
}

/// What is to become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PatchAction {
    /// It is new.
    Add { text: Text, mode: Option<u32> },
    /// It goes. With hunks, only if they are all of it.
    Delete { hunks: Vec<Hunk> },
    /// It changes, moves, or both.
    Update { hunks: Vec<Hunk>, to: Option<SandboxPath>, mode: Option<u32> },
}

impl PatchChange {
    pub(super) fn paths(&self) -> impl Iterator<Item = &SandboxPath> {
        let to = match &self.action {
            PatchAction::Update { to, .. } => to.as_ref(),
            PatchAction::Add { .. } | PatchAction::Delete { .. } => None,
        };
        std::iter::once(&self.path).chain(to)
    }
}

/// Two changes to one file have no order that everybody agrees on.
pub(super) fn refuse_twice(changes: &[PatchChange]) -> Result<(), ToolError> {
    let mut seen = BTreeSet::new();
    for path in changes.iter().flat_map(PatchChange::paths) {
        if !seen.insert(plain_path(path.as_str())) {
            return Err(ToolError::field("patch", format!("names `{path}` twice"))
                .remedy("put all changes to one file together"));
        }
    }
    Ok(())
}
