//! Checkouts of repositories by the host's own git.
//!
//! One bare store for each repository, fetched with the user's configuration, so that their
//! credentials work; from it one checkout for each commit, made without that configuration, so that
//! no filter and no hook runs. Workspaces are views of those checkouts: any number costs
//! one. Git is never run in a tree that a guest has written to, and credentials never get
//! into a checkout, a manifest, a record or a message (C-41).

mod checkout;
mod fetch;
mod led_elsewhere;
mod prune;
mod run;
mod source;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use stockade_core::ErrorCode;
use stockade_fs::{Directory, Locked, Sharing};

use crate::error::{FaultResult, FaultStep, WorkspaceFault};
pub(crate) use prune::prune_checkouts;
pub(crate) use source::GitSource;

/// Timeout of one run of git, and of waiting for the fetch of another process.
pub(crate) const GIT_TIMEOUT: Duration = Duration::from_secs(600);
/// Attempts to lock a store: it may be removed between its creation and its lock.
const MAX_LOCK_ATTEMPTS: usize = 8;

/// What goes wrong with git.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitFault {
    #[error("git is not installed")]
    NotInstalled,
    #[error("`{source_name}` {problem}")]
    BadSource { source_name: String, problem: &'static str },
    #[error("`{rev}` {problem}")]
    BadRev { rev: String, problem: &'static str },
    #[error("there is no branch, tag or commit `{rev}` in {remote}")]
    NoSuchRev { rev: String, remote: String },
    #[error("{remote} has no commit yet")]
    Empty { remote: String },
    #[error("git cannot {step} {remote}: {said}")]
    Failed { step: &'static str, remote: String, said: String },
    #[error("git took longer than {} s to {step} {remote}", limit.as_secs())]
    TooSlow { step: &'static str, remote: String, limit: Duration },
}

impl GitFault {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::NotInstalled => ErrorCode::Unavailable,
            Self::BadSource { .. } | Self::BadRev { .. } => ErrorCode::Invalid,
            Self::NoSuchRev { .. } | Self::Empty { .. } => ErrorCode::NotFound,
            Self::Failed { .. } => ErrorCode::Unavailable,
            Self::TooSlow { .. } => ErrorCode::TooSlow,
        }
    }

    pub(crate) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotInstalled => Some("install git (on Debian: apt-get install git)"),
            Self::BadSource { .. } => {
                Some("name a repository's directory or its https or ssh address")
            }
            Self::BadRev { .. } => Some("name a branch, a tag or a commit"),
            Self::NoSuchRev { .. } => Some("`git ls-remote` lists what is there"),
            Self::Empty { .. } => Some("commit something first"),
            Self::Failed { .. } => Some("see whether `git ls-remote` with the same address works"),
            Self::TooSlow { .. } => Some("try again, or clone it by hand and name the directory"),
        }
    }
}

/// A checkout to lay views over.
#[derive(Debug)]
pub(crate) struct Checkout {
    pub(crate) tree: PathBuf,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// A commit, and the branch it was found by.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) id: String,
    pub(crate) branch: Option<String>,
}

/// Makes sure that there is a checkout of what is asked for. Concurrent calls for one repository wait
/// for one another.
pub(crate) fn prepare_source(
    stores: &Directory,
    source: &str,
    rev: Option<&str>,
) -> FaultResult<Checkout> {
    let source = GitSource::parse(source)?;
    let rev = rev.map(source::check_rev).transpose()?;
    let store = stores.path_of(&source.key());
    let _lock = lock_store(stores, &source.key())?;
    checkout::clear_drafts(&store)?;
    let commit = fetch::fetch_commit(&store, &source, rev)?;
    let tree = checkout::prepare_checkout(&store, &source, &commit)?;
    prune::mark_used(&tree)?;
    let mut metadata = BTreeMap::new();
    metadata.insert("git.remote".to_owned(), source.public.clone());
    metadata.insert("git.commit".to_owned(), commit.id);
    metadata.extend(commit.branch.map(|branch| ("git.branch".to_owned(), branch)));
    Ok(Checkout { tree, metadata })
}

/// A store's directory, made if need be. One that was removed while this waited is made anew.
fn lock_store(stores: &Directory, key: &str) -> FaultResult<Locked> {
    let path = stores.path_of(key);
    for _ in 0..MAX_LOCK_ATTEMPTS {
        match rustix::fs::mkdirat(stores, key, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).step("make", path.display()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(dir) = stores.open(key, flags) else { continue };
        let lock =
            Locked::within(dir, Sharing::Exclusive, GIT_TIMEOUT).step("lock", path.display())?;
        let lock = lock.ok_or_else(|| WorkspaceFault::Held(path.display().to_string()))?;
        let mine = rustix::fs::fstat(lock.file()).step("look at", path.display())?.st_ino;
        let there = rustix::fs::statat(stores, key, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| there.st_ino == mine) {
            return Ok(lock);
        }
    }
    Err(WorkspaceFault::Held(path.display().to_string()))
}
