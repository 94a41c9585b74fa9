//! Programs that fill disks and build trees nobody wants to walk.

use std::path::Path;
use std::process::Command as Host;

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
    let used = removed(&kit.workspace())?;
    held_back(ran?, &[LimitKind::Disk])?;
    // What is written between two looks may go beyond, but not by much.
    check!(used < LIMIT + MUCH / 2, "expected about {LIMIT} bytes to be written, saw {used}");
    unharmed(kit).await
}

/// How much is in a directory, which is then removed: by programs that any tree can be trusted to.
fn removed(directory: &Path) -> Verdict<u64> {
    let counted = Host::new("du").arg("-sk").arg(directory).output()?;
    let text = String::from_utf8_lossy(&counted.stdout).into_owned();
    let used = text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    Host::new("rm").arg("-rf").arg(directory).status()?;
    used.map(|kib| kib * 1024).ok_or_else(|| Stop::Unfit("the host has no `du`".into()))
}

async fn links(kit: Kit) -> Verdict {
    let ran = kit.run_with(spec(&kit), within(60, ["many-links", "/tmp", "100000"])).await?;
    ran.facts()?;
    let ran = kit.run_with(spec(&kit), within(60, ["many-links", ".", "100000"])).await?;
    ran.facts()?;
    removed(&kit.workspace())?;
    unharmed(&kit).await
}
