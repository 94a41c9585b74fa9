//! Copy-on-write views of a large tree: what it costs to get one, and to ask what changed in it.

use std::fs;
use std::path::Path;
use std::time::Instant;

use stockade_core::{OverlayDirs, Workspace};
use stockade_engine::{Journal, JournalOptions};
use stockade_workspaces::{Hint, Request, Workspaces};

use crate::Measured;
use crate::report::BenchReport;
use crate::search::{FILE_COUNT, plant};
use crate::table::Row;

const ROUNDS: usize = 15;

pub fn measure(report: &mut BenchReport) -> Measured {
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    plant(&tree)?;
    report.title(format!("views: of {FILE_COUNT} files, by the kernel's layers"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(compare(report, &dir.path().join("state"), &tree))
}

async fn compare(report: &mut BenchReport, state: &Path, tree: &Path) -> Measured {
    let workspaces = Workspaces::open(state, Journal::open_in(state, JournalOptions::default())?)?;
    let mut rows = ["acquire", "diff of 1", "diff of 100", "diff of 10000"].map(Row::new);
    for _ in 0..ROUNDS {
        for (at, changes) in [1, 100, 10_000].into_iter().enumerate() {
            let begun = Instant::now();
            let view = workspaces.acquire(Request::new(Hint::Overlay(tree.to_owned()))).await?;
            rows[0].add(begun.elapsed());
            change(&view.spec(), changes)?;
            let begun = Instant::now();
            let found = workspaces.diff(&view.id)?.changes.len();
            rows[at + 1].add(begun.elapsed());
            if found != changes {
                return Err(format!("{found} of {changes} changes were found").into());
            }
            workspaces.discard(&view.id)?;
        }
    }
    report.timings(&mut rows);
    Ok(())
}

/// Writes to the layer what a guest's changes would leave there.
fn change(workspace: &Workspace, files: usize) -> Measured {
    let Workspace::Overlay(OverlayDirs { upper, .. }) = workspace else {
        return Err("the view has no layers".into());
    };
    for number in 0..files {
        fs::write(upper.as_path().join(format!("new{number}")), "new\n")?;
    }
    Ok(())
}
