//! Programs that fill disks and build trees nobody wants to walk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stockade_core::{Bytes, Feature, LimitKind, Support};

use super::{MIB, held_back, spec, unharmed, within};
use crate::case::{case, check};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const CASES: &[Case] = &[
    case!("a program that fills the workspace is ended for it", "C-16", workspace)
        .needs(&[Feature::LocalWorkspace]),
    case!("what lies deeper than a path can name counts", "C-16", deep)
        .needs(&[Feature::LocalWorkspace]),
    case!("a hundred thousand links change nothing", "C-30", links),
];

const LIMIT: u64 = 64 * MIB;
const MUCH: u64 = 4096 * MIB;

async fn workspace(kit: Kit) -> Verdict {
    filled(&kit, &["fill-many", ".", &MUCH.to_string()]).await
}

async fn deep(kit: Kit) -> Verdict {
    filled(&kit, &["deep-tree", "300", &MUCH.to_string()]).await
}

async fn filled(kit: &Kit, verb: &[&str]) -> Verdict {
    if let Support::Missing { .. } = kit.support(Feature::DiskLimit) {
        return Err(Stop::Lacking(Feature::DiskLimit));
    }
    let mut spec = spec(kit);
    spec.limits.disk = Some(Bytes(LIMIT));
    let ran = kit.run_with(spec, within(60, verb)).await;
    let used = emptied(&kit.workspace())?;
    held_back(ran?, &[LimitKind::Disk])?;
    // What is written between two looks may go beyond, but not by much.
    check!(used < LIMIT + MUCH / 2, "expected about {LIMIT} bytes to be written, saw {used}");
    unharmed(kit).await
}

/// How much is in a directory, which is emptied on the way: whatever is in a directory in it moves up,
/// so that no depth makes a path too long.
fn emptied(directory: &Path) -> Verdict<u64> {
    let (mut used, mut number) = (0, 0_u64);
    loop {
        let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
        if entries.is_empty() {
            return Ok(used);
        }
        for entry in entries {
            let found = entry.metadata()?;
            if !found.is_dir() {
                used += found.blocks() * 512;
                fs::remove_file(entry.path())?;
                continue;
            }
            for below in fs::read_dir(entry.path())? {
                number += 1;
                fs::rename(below?.path(), directory.join(format!("up-{number}")))?;
            }
            fs::remove_dir(entry.path())?;
        }
    }
}

async fn links(kit: Kit) -> Verdict {
    let ran = kit.run_with(spec(&kit), within(60, ["many-links", "/tmp", "100000"])).await?;
    ran.facts()?;
    let ran = kit.run_with(spec(&kit), within(60, ["many-links", ".", "100000"])).await?;
    ran.facts()?;
    emptied(&kit.workspace())?;
    unharmed(&kit).await
}
