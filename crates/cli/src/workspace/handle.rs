//! Names a workspace by its id, or by the beginning of one that no other begins with.

use std::str::FromStr;

use stockade_core::{Error, ErrorCode, Result, WorkspaceId};
use stockade_workspaces::Workspaces;

use crate::args::prefix::by_prefix;

/// The id of a workspace, or its beginning.
#[derive(Debug, Clone)]
pub struct WorkspaceHandle(WorkspaceId);

impl FromStr for WorkspaceHandle {
    type Err = stockade_core::NameError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        given.parse().map(Self)
    }
}

impl WorkspaceHandle {
    /// The one workspace that is meant.
    pub fn find(&self, among: &Workspaces, operation: &'static str) -> Result<WorkspaceId> {
        let given = self.0.as_str();
        let all = among.list()?.into_iter().filter(|one| one.is_transaction());
        let meant = by_prefix("workspaces", given, all.map(|one| one.id), operation)?;
        meant.ok_or_else(|| {
            let message =
                format!("this user has no workspace `{given}` whose changes are kept apart");
            Error::new(ErrorCode::NotFound, operation, message)
                .remedy("`stockade workspace ls` lists the ones there are")
        })
    }
}
