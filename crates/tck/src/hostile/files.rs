//! Programs that fill disks and build trees that are hard to walk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stockade_core::{Bytes, Feature, LimitKind, Support};

use super::{MIB_BYTES, build_hostile_spec, check_engine_unharmed, held_back, timed_probe_command};
use crate::case::{case, check};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const HOSTILE_FILE_CASES: &[Case] = &[
    case!("a program that fills the workspace is ended for it", "C-16", check_workspace_fill)
        .needs(&[Feature::LocalWorkspace]),
    case!("what lies deeper than a path can name counts", "C-16", check_deep_tree)
        .needs(&[Feature::LocalWorkspace]),
    case!("a hundred thousand links change nothing", "C-30", check_many_links),
];

const DISK_LIMIT_BYTES: u64 = 64 * MIB_BYTES;
/// Bytes a program tries to write: far more than the limit.
const ATTEMPTED_BYTES: u64 = 4096 * MIB_BYTES;

async fn check_workspace_fill(kit: Kit) -> Verdict {
    check_disk_limit(&kit, &["fill-many", ".", &ATTEMPTED_BYTES.to_string()]).await
}

async fn check_deep_tree(kit: Kit) -> Verdict {
    check_disk_limit(&kit, &["deep-tree", "300", &ATTEMPTED_BYTES.to_string()]).await
}

async fn check_disk_limit(kit: &Kit, verb: &[&str]) -> Verdict {
    if let Support::Missing { .. } = kit.support(Feature::DiskLimit) {
        return Err(Stop::Lacking(Feature::DiskLimit));
    }
    let mut spec = build_hostile_spec(kit);
    spec.limits.disk = Some(Bytes(DISK_LIMIT_BYTES));
    let ran = kit.run_with(spec, timed_probe_command(60, verb)).await;
    let used = empty_directory(&kit.workspace())?;
    held_back(ran?, &[LimitKind::Disk])?;
    // What is written between two looks may go beyond, but not by much.
    check!(
        used < DISK_LIMIT_BYTES + ATTEMPTED_BYTES / 2,
        "expected about {DISK_LIMIT_BYTES} bytes to be written, saw {used}"
    );
    check_engine_unharmed(kit).await
}

/// How much is in a directory, which is emptied on the way: the entries of each subdirectory move up,
/// so that no depth makes a path too long.
fn empty_directory(directory: &Path) -> Verdict<u64> {
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

async fn check_many_links(kit: Kit) -> Verdict {
    let ran = kit
        .run_with(
            build_hostile_spec(&kit),
            timed_probe_command(60, ["many-links", "/tmp", "100000"]),
        )
        .await?;
    ran.facts()?;
    let ran = kit
        .run_with(build_hostile_spec(&kit), timed_probe_command(60, ["many-links", ".", "100000"]))
        .await?;
    ran.facts()?;
    empty_directory(&kit.workspace())?;
    check_engine_unharmed(&kit).await
}
