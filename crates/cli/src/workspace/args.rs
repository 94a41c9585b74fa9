//! The workspace that the flags ask for, before anything is made.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use stockade_core::{Error, ErrorCode, HostPath, OverlayDirs, Result, Workspace};
use stockade_workspaces::Hint;

use super::{WorkspaceHandle, open_workspaces};
use crate::config::Settings;
use crate::terminal::printer::Printer;

/// Flag that names a workspace which is there already.
pub const RESUME_FLAG: &str = "--resume";

/// The workspace that is meant.
#[derive(Debug, Clone)]
pub enum WantedWorkspace {
    /// One that needs no making.
    Plain(Workspace),
    /// A view of a directory.
    View(HostPath),
    /// A view of a checkout.
    Checkout(GitArg),
    /// A view that is there already.
    Kept(WorkspaceHandle),
}

/// What is configured for a command.
#[derive(Debug)]
pub struct Configured {
    /// It.
    pub settings: Settings,
    /// What of the host the command's files come from, if anything.
    pub origin: Workspace,
}

/// A repository, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitArg {
    source: String,
    rev: Option<String>,
}

impl WantedWorkspace {
    /// What is configured, read from nowhere that the command's files come from.
    pub fn settings(&self, printer: &Printer) -> Result<Configured> {
        let origin = self.origin();
        let settings = Settings::load(Some(&origin), printer)?;
        let Self::Kept(handle) = self else { return Ok(Configured { settings, origin }) };
        // Only now it is known where workspaces are kept, and what this one is a view of.
        let workspaces = open_workspaces(&settings)?;
        let kept = workspaces.get(&handle.find(&workspaces, RESUME_FLAG)?)?;
        let origin = Workspace::Local(host_path(kept.source)?);
        Ok(Configured { settings: Settings::load(Some(&origin), printer)?, origin })
    }

    fn origin(&self) -> Workspace {
        match self {
            Self::Plain(workspace) => workspace.clone(),
            Self::View(dir) => Workspace::Local(dir.clone()),
            // A repository's files are fetched; those of one that is kept are not known yet.
            Self::Checkout(_) | Self::Kept(_) => Workspace::Ephemeral,
        }
    }

    /// What a spec says before the workspace is there: its kind decides who can build the walls.
    pub fn planned(&self, state: &Path) -> Result<Workspace> {
        let lower = match self {
            Self::Plain(workspace) => return Ok(workspace.clone()),
            Self::View(dir) => dir.clone(),
            Self::Checkout(_) | Self::Kept(_) => host_path(state.join("git/planned/tree"))?,
        };
        let layer = |name| host_path(state.join("workspaces/planned").join(name));
        Ok(Workspace::Overlay(OverlayDirs { lower, upper: layer("upper")?, work: layer("work")? }))
    }

    /// What of the host the caller has named. Layers and checkouts are made for the sandbox, and in no spec of a caller.
    pub fn named(&self) -> Workspace {
        match self {
            Self::Plain(workspace) => workspace.clone(),
            Self::View(dir) => Workspace::Local(dir.clone()),
            Self::Checkout(_) | Self::Kept(_) => Workspace::Ephemeral,
        }
    }

    /// What to ask the library for, where there is something to make.
    pub fn hint(&self) -> Option<Hint> {
        match self {
            Self::Plain(_) | Self::Kept(_) => None,
            Self::View(dir) => Some(Hint::Overlay(dir.as_path().to_owned())),
            Self::Checkout(GitArg { source, rev }) => {
                Some(Hint::Git { source: source.clone(), rev: rev.clone() })
            }
        }
    }
}

fn host_path(path: PathBuf) -> Result<HostPath> {
    HostPath::try_from(path).map_err(|error| {
        Error::new(ErrorCode::Invalid, "state directory", error.to_string())
            .remedy("set STOCKADE_STATE_DIR to an absolute path")
    })
}

impl GitArg {
    /// The repository: an address, or a directory.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl FromStr for GitArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let whole = || Self { source: given.to_owned(), rev: None };
        if Path::new(given).is_dir() {
            return Ok(whole());
        }
        let start = authority_ends(given);
        let split = given.rfind('@').filter(|at| *at >= start);
        let arg = split.map_or_else(whole, |at| Self {
            source: given[..at].to_owned(),
            rev: Some(given[at + 1..].to_owned()),
        });
        let empty = arg.source.is_empty() || arg.rev.as_deref() == Some("");
        if empty { Err("is no repository: give `URL`, `DIR` or `URL@REV`".into()) } else { Ok(arg) }
    }
}

/// Where the part of an address ends in which an `@` belongs to a user's name.
fn authority_ends(given: &str) -> usize {
    if let Some(at) = given.find("://") {
        let rest = &given[at + 3..];
        return at + 3 + rest.find('/').unwrap_or(rest.len());
    }
    // The short form, `user@host:path`; what has a slash before the colon is a directory.
    match given.find([':', '/']) {
        Some(at) if given[at..].starts_with(':') => at,
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(given: &str) -> (String, Option<String>) {
        let GitArg { source, rev } = given.parse().unwrap();
        (source, rev)
    }

    #[test]
    fn a_revision_follows_the_last_at_sign_that_is_not_a_users() {
        for (given, source, rev) in [
            ("https://h.example/a/b", "https://h.example/a/b", None),
            ("https://h.example/a/b@v1", "https://h.example/a/b", Some("v1")),
            ("https://u:p@h.example/a@feature/x", "https://u:p@h.example/a", Some("feature/x")),
            ("https://u@h.example", "https://u@h.example", None),
            ("git@h.example:a/b.git", "git@h.example:a/b.git", None),
            ("git@h.example:a/b.git@main", "git@h.example:a/b.git", Some("main")),
            ("../some/repo@1f2e3d", "../some/repo", Some("1f2e3d")),
            ("repo", "repo", None),
        ] {
            assert_eq!(parts(given), (source.to_owned(), rev.map(str::to_owned)), "{given}");
        }
        for given in ["", "@main", "repo@"] {
            assert!(given.parse::<GitArg>().is_err(), "{given:?}");
        }
    }
}
