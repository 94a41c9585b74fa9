//! Names a workspace by its id, or by the beginning of one that no other begins with.

use std::str::FromStr;

use stockade_core::{Error, ErrorCode, Result, WorkspaceId};
use stockade_workspaces::Workspaces;

/// The id of a workspace, or its beginning.
#[derive(Debug, Clone)]
pub struct Handle(WorkspaceId);

impl FromStr for Handle {
    type Err = stockade_core::NameError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        given.parse().map(Self)
    }
}

impl Handle {
    /// The one workspace that is meant.
    pub fn find(&self, among: &Workspaces, operation: &'static str) -> Result<WorkspaceId> {
        let given = self.0.as_str();
        let all = among.list()?.into_iter().filter(|one| one.is_transaction());
        let mut meant: Vec<_> =
            all.map(|one| one.id).filter(|id| id.as_str().starts_with(given)).collect();
        if let Some(exact) = meant.iter().find(|id| id.as_str() == given) {
            return Ok(exact.clone());
        }
        match meant.len() {
            1 => Ok(meant.remove(0)),
            0 => Err(Error::new(
                ErrorCode::NotFound,
                operation,
                format!("this user has no workspace `{given}` whose changes are kept apart"),
            )
            .remedy("`stockade workspace ls` lists the ones there are")),
            many => Err(Error::new(
                ErrorCode::Invalid,
                operation,
                format!("{many} workspaces begin with `{given}`"),
            )
            .remedy("give more of the id")),
        }
    }
}
