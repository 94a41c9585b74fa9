//! Git repositories that an agent names for a sandbox: web addresses, with a person's consent. The checkout is made
//! outside the sandbox, so nothing else is taken: some addresses name programs, and a directory that a guest may have
//! written to leads git to any other, by a link, a `gitdir:` file or a list of alternates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, HostPath, OverlayDirs, SandboxSpec, Workspace};
use stockade_engine::{Journal, JournalOptions};
use stockade_workspaces::{
    Hint, Mechanism, Request, SandboxWorkspaces, WorkspaceOrigin, Workspaces, off_thread,
};

use crate::ToolError;
use crate::arguments::SandboxCreate;
use crate::toolbox::ToolSession;

const GIT_FIELD: &str = "git";
const WEB_SCHEME: &str = "https://";

/// A repository, and what of it.
pub(crate) struct Repository {
    address: String,
    rev: Option<String>,
}

impl Repository {
    /// The repository that these arguments name, if it may be had.
    pub(crate) fn named_by(args: &SandboxCreate) -> Result<Option<Self>, ToolError> {
        let Some(given) = &args.git else {
            return match &args.rev {
                None => Ok(None),
                Some(_) => Err(ToolError::field("rev", "belongs to a repository")
                    .remedy("name it as `git`, or leave `rev` out")),
            };
        };
        if args.rev.as_ref().is_some_and(|rev| rev.is_empty() || rev.starts_with('-')) {
            return Err(ToolError::field("rev", "is no branch, tag or commit"));
        }
        let address = match given.strip_prefix(WEB_SCHEME) {
            Some(rest) => check_address(given, rest)?,
            None => {
                return Err(ToolError::field(GIT_FIELD, "is no `https://` address")
                    .remedy("name one, or a directory as `workspace`"));
            }
        };
        Ok(Some(Self { address, rev: args.rev.clone() }))
    }

    /// Puts a view of a checkout into a spec, as it is planned: its kind decides who can build the walls.
    pub(crate) fn plan_workspace(
        &self,
        spec: &mut SandboxSpec,
        state_dir: &Path,
    ) -> Result<(), ToolError> {
        let planned = |path: PathBuf| -> Result<HostPath, ToolError> {
            HostPath::try_from(path)
                .map_err(|error| ToolError::new(ErrorCode::StateUnavailable, error.to_string()))
        };
        let layer = |name: &str| planned(state_dir.join("workspaces/planned").join(name));
        spec.workspace = Workspace::Overlay(OverlayDirs {
            lower: planned(state_dir.join("git/planned/tree"))?,
            upper: layer("upper")?,
            work: layer("work")?,
        });
        spec.workspace_at = None;
        Ok(())
    }

    /// Where the sandbox gets its checkout from.
    pub(crate) async fn open_source(
        &self,
        session: &ToolSession,
        spec: &SandboxSpec,
    ) -> Result<SandboxWorkspaces, ToolError> {
        let state = session.options.state_dir.clone();
        let open = move || -> Result<Workspaces, Error> {
            let journal = Journal::open_in(&state, JournalOptions::default())?;
            Workspaces::open(&state, journal)
        };
        let workspaces = off_thread(open).await?;
        // An overlay by the kernel where a backend can build walls around it, else a copy.
        let mechanism = match workspaces.mechanism() {
            Mechanism::Kernel if session.engine.explain(spec).await.chosen.is_some() => {
                Mechanism::Kernel
            }
            Mechanism::Kernel | Mechanism::Copy => Mechanism::Copy,
        };
        let request = Request {
            hint: Hint::Git { source: self.address.clone(), rev: self.rev.clone() },
            tenant: spec.tenant.clone(),
            writable: !spec.read_only,
            mechanism,
            metadata: BTreeMap::new(),
        };
        Ok(SandboxWorkspaces::new(workspaces, WorkspaceOrigin::Fresh(request)).compared())
    }
}

/// An address without a login: the person who is asked about it sees all of it, and records hold none.
fn check_address(given: &str, rest: &str) -> Result<String, ToolError> {
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let plain = !host.is_empty() && !given.chars().any(|c| c.is_control() || c.is_whitespace());
    match plain && !host.contains('@') {
        true => Ok(given.to_owned()),
        false => Err(ToolError::field(GIT_FIELD, "is no address without a login")
            .remedy("name it as `https://HOST/PATH`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_no_login() {
        for (rest, fine) in [
            ("example.org/a.git", true),
            ("example.org:8443/a", true),
            ("user:secret@example.org/a", false),
            ("/a", false),
            ("", false),
            ("example.org/a b", false),
        ] {
            let given = format!("{WEB_SCHEME}{rest}");
            assert_eq!(check_address(&given, rest).is_ok(), fine, "{given}");
        }
    }
}
