//! Brings a repository's store up to date and finds the commit that is meant.

use std::path::Path;

use super::run::GitRun;
use super::{Commit, GitFault, GitSource};
use crate::error::FaultResult;

const BRANCHES_REFSPEC: &str = "+refs/heads/*:refs/heads/*";
const TAGS_REFSPEC: &str = "+refs/tags/*:refs/tags/*";

/// Fetches, unless a commit is named that is there already, and resolves.
pub(crate) fn fetch_commit(
    store: &Path,
    source: &GitSource,
    rev: Option<&str>,
) -> FaultResult<Commit> {
    let bare = store.join("store");
    if !bare.join("HEAD").exists() {
        let make = GitRun::without_configuration("make a store for", source);
        make.args(["init", "--quiet", "--bare", "--template="]).args([&bare]).run()?;
    }
    if let Some(id) = rev.filter(|rev| is_full(rev))
        && has_commit(&bare, source, id)?
    {
        return Ok(Commit { id: id.to_ascii_lowercase(), branch: None });
    }
    let main = match rev {
        Some(_) => None,
        None => Some(default_branch(&bare, source)?),
    };
    fetch_refs(&bare, source, &[BRANCHES_REFSPEC, TAGS_REFSPEC])?;
    match (rev, main) {
        (Some(rev), _) => resolve_revision(&bare, source, rev),
        (None, main) => resolve_default(&bare, source, main.flatten()),
    }
}

fn fetch_refs(bare: &Path, source: &GitSource, what: &[&str]) -> FaultResult<()> {
    GitRun::with_configuration("fetch from", source)
        .at(bare)
        .args(["fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-recurse-submodules"])
        .args(["--no-write-fetch-head", "--no-auto-maintenance", "--", &source.address])
        .args(what)
        .run()?;
    Ok(())
}

/// The branch that the remote's `HEAD` names.
fn default_branch(bare: &Path, source: &GitSource) -> FaultResult<Option<String>> {
    let listed = GitRun::with_configuration("look at", source)
        .at(bare)
        .args(["ls-remote", "--symref", "--", &source.address, "HEAD"])
        .run()?;
    let named = listed.lines().find_map(|line| line.strip_prefix("ref: refs/heads/"));
    if named.is_none() && listed.trim().is_empty() {
        return Err(GitFault::Empty { remote: source.public.clone() }.into());
    }
    Ok(named.and_then(|rest| rest.split_whitespace().next()).map(str::to_owned))
}

fn resolve_default(bare: &Path, source: &GitSource, branch: Option<String>) -> FaultResult<Commit> {
    if let Some(branch) = branch {
        return resolve_revision(bare, source, &branch);
    }
    // A HEAD that stands on no branch.
    fetch_refs(bare, source, &["+HEAD:refs/stockade/head"])?;
    let id = commit_of(bare, source, "refs/stockade/head")?;
    let id = id.ok_or_else(|| GitFault::Empty { remote: source.public.clone() })?;
    Ok(Commit { id, branch: None })
}

fn resolve_revision(bare: &Path, source: &GitSource, rev: &str) -> FaultResult<Commit> {
    if let Some(id) = commit_of(bare, source, &format!("refs/heads/{rev}"))? {
        return Ok(Commit { id, branch: Some(rev.to_owned()) });
    }
    if let Some(id) = commit_of(bare, source, &format!("refs/tags/{rev}"))? {
        return Ok(Commit { id, branch: None });
    }
    let hexadecimal = rev.len() >= 7 && rev.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_full(rev) && !has_commit(bare, source, rev)? {
        // It may be on no branch; not every server hands out such a one.
        let _ = fetch_refs(bare, source, &[rev]);
    }
    let id = if hexadecimal { commit_of(bare, source, rev)? } else { None };
    let missing = || GitFault::NoSuchRev { rev: rev.to_owned(), remote: source.public.clone() };
    Ok(Commit { id: id.ok_or_else(missing)?, branch: None })
}

fn commit_of(bare: &Path, source: &GitSource, name: &str) -> Result<Option<String>, GitFault> {
    let ran = GitRun::without_configuration("look into", source)
        .at(bare)
        .args(["rev-parse", "--quiet", "--verify", "--end-of-options"])
        .args([format!("{name}^{{commit}}")])
        .ask()?;
    let id = ran.stdout.lines().map(str::trim).find(|line| is_full(line)).map(str::to_owned);
    Ok(id.filter(|_| ran.success))
}

fn has_commit(bare: &Path, source: &GitSource, id: &str) -> Result<bool, GitFault> {
    let run = GitRun::without_configuration("look into", source).at(bare);
    Ok(run.args(["cat-file", "-e", &format!("{id}^{{commit}}")]).ask()?.success)
}

fn is_full(rev: &str) -> bool {
    matches!(rev.len(), 40 | 64) && rev.bytes().all(|byte| byte.is_ascii_hexdigit())
}
