//! What an `apply` is about to do, on disk before it is done, so that the next process can finish or undo
//! it after a kill.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use stockade_fs::Survives;

use super::Bases;
use super::apply_log::{AppliedContent, ApplyEnd, SettledPaths};
use crate::clock::ClockStamp;
use crate::diff::Diff;
use crate::error::{FaultResult, FaultStep, WorkspaceFault};
use crate::json::write_json;
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};

/// One `apply`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Intent {
    /// The tree that is changed.
    pub(super) target: PathBuf,
    /// Which directory that was: its device and number.
    pub(super) root: (u64, u64),
    /// Whether it is another tree than the one beneath the workspace.
    pub(super) elsewhere: bool,
    /// The directory in it that holds new contents before and old ones after.
    pub(super) stage: String,
    pub(super) phase: ApplyPhase,
    /// In the order they are done; undone the other way round.
    pub(super) steps: Vec<ApplyAction>,
}

/// How far it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ApplyPhase {
    /// Nothing in the tree has changed.
    Staging,
    /// Some of the steps may be done. They will be undone.
    Acting,
    /// All of them are done. What they replaced can go.
    Committed,
}

/// One step. Each is a single call of the kernel, and what is in the stage tells whether it was made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ApplyAction {
    /// The name in the stage.
    pub(super) slot: String,
    pub(super) path: TreePath,
    pub(super) act: ApplyAct,
    /// What of the layer the step brings into the tree, if that is a file or a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) applied: Option<AppliedContent>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum ApplyAct {
    /// From the stage into the tree, where nothing is. Done if the stage no longer has it.
    Place { new: u64 },
    /// From the tree into the stage. Done if the stage has it.
    Take { old: FileIdentity },
    /// Both at once. Done if the stage has something else than the new one.
    Swap { new: u64, old: FileIdentity },
    /// A directory's mode.
    Mode { of: u64, before: u32, after: u32 },
}

/// What something was before, told by what a rename does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FileIdentity {
    pub(super) ino: u64,
    pub(super) kind: NodeKind,
    pub(super) mode: u32,
    size: u64,
    modified: ClockStamp,
}

impl FileIdentity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            ino: stat.st_ino,
            kind: NodeKind::of(stat),
            mode: stat.st_mode & 0o7777,
            size: stat.st_size as u64,
            modified: ClockStamp::modified(stat),
        }
    }
}

pub(super) fn root_of(tree: &OpenTree) -> FaultResult<(u64, u64)> {
    let stat = rustix::fs::fstat(tree).step("look at", tree.path().display())?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Where the intent of one workspace is written: a file that appears and changes whole or not at all.
#[derive(Debug)]
pub(crate) struct ApplyLedger {
    file: PathBuf,
    dir: PathBuf,
}

impl ApplyLedger {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { file: dir.join("intent.json"), dir: dir.to_owned() }
    }

    pub(crate) fn read(&self) -> FaultResult<Option<Intent>> {
        let bytes = match std::fs::read(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.step("read", self.file.display())?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| WorkspaceFault::Damaged {
            path: self.file.display().to_string(),
            problem: error.to_string(),
        })
    }

    /// What this workspace's own applies did to the tree beneath.
    pub(crate) fn settled(&self) -> FaultResult<SettledPaths> {
        SettledPaths::load(&self.dir)
    }

    /// What was beneath where there are changes, as far as it was noted.
    pub(crate) fn bases(&self) -> Bases {
        Bases::load(&self.dir)
    }

    /// Notes what is beneath the changes of a workspace that began at `start`.
    pub(crate) fn note_bases(
        &self,
        lower: &OpenTree,
        diff: &Diff,
        start: ClockStamp,
    ) -> FaultResult<()> {
        let mut bases = self.bases();
        bases.note(lower, diff, start, &self.settled()?)?;
        bases.save(&self.dir)
    }

    /// Gives a fork what is known of the tree beneath.
    pub(crate) fn hand_on(&self, to: &Self) -> FaultResult<()> {
        self.bases().save(&to.dir)?;
        self.settled()?.save(&to.dir)
    }

    /// Notes how the tree was left.
    pub(super) fn settle(
        &self,
        target: &OpenTree,
        intent: &Intent,
        end: ApplyEnd,
    ) -> FaultResult<()> {
        match intent.elsewhere {
            true => Ok(()),
            false => {
                if end == ApplyEnd::Done {
                    let mut bases = self.bases();
                    bases.forget(intent.steps.iter().map(|step| &step.path));
                    bases.save(&self.dir)?;
                }
                SettledPaths::note(&self.dir, target, intent, end)
            }
        }
    }

    pub(super) fn write(&self, intent: &Intent) -> FaultResult<()> {
        write_json(&self.file, intent, Survives::Power)
    }

    pub(super) fn clear(&self) -> FaultResult<()> {
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.step("remove", self.file.display()),
        }
    }
}

/// Writes down that everything is done.
pub(super) fn commit_intent(intent: &mut Intent, ledger: &ApplyLedger) -> FaultResult<()> {
    intent.phase = ApplyPhase::Committed;
    ledger.write(intent)
}
