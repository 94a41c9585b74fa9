//! What a guest changed in a copy-on-write workspace and a person approved: applied as it was seen (C-23),
//! without what would make the host run code later (C-24).

use std::fs;
use std::sync::Arc;

use serde_json::json;
use stockade_core::{Feature, WorkspaceId, WorkspaceSource};
use stockade_engine::{Journal, JournalOptions, SandboxRequest};
use stockade_workspaces::{
    Application, ApplyOptions, Hint, Request, SandboxWorkspaces, WorkspaceOrigin, Workspaces,
};

use crate::case::{case, check, same};
use crate::kit::Room;
use crate::{Case, Kit, Stop, Verdict};

const REQUIRED_FEATURES: &[Feature] = &[Feature::OverlayWorkspace];

pub(super) const APPLY_CASES: &[Case] = &[
    case!(
        "content that the guest swaps after it was approved is not applied",
        "C-23",
        check_swapped_content
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!("what would make the host run code is held back from an apply", "C-24", held_back)
        .needs(REQUIRED_FEATURES)
        .isolation(),
];

/// Content of the host's file before a change is applied.
const ORIGINAL_CONTENT: &str = "original";

/// Paths held back from apply: files that host programs run code from, and an unknown dot-name.
const HELD_BACK_PATHS: &[&str] = &[".envrc", ".gitmodules", ".Rprofile", ".unheard-of"];

/// A sandbox in a workspace whose changes are kept apart.
struct Review {
    workspaces: Workspaces,
    workspace: WorkspaceId,
    room: Room,
}

impl Review {
    async fn begin(kit: &Kit) -> Verdict<Self> {
        fs::write(kit.workspace().join("given"), ORIGINAL_CONTENT)?;
        let journal = Journal::open_in(kit.state(), JournalOptions::default())?;
        let workspaces = Workspaces::open(kit.state(), journal)?;
        let origin = WorkspaceOrigin::Fresh(Request::new(Hint::Overlay(kit.workspace())));
        let source = SandboxWorkspaces::new(workspaces.clone(), origin);
        let workspace: Option<Arc<dyn WorkspaceSource>> = Some(Arc::new(source));
        let room = kit.room_with(SandboxRequest { workspace, ..kit.spec().into() }).await?;
        let Some(held) = kit.engine().workspace(room.id())? else {
            return Err(Stop::failed("expected a workspace of the sandbox, saw none"));
        };
        Ok(Self { workspaces, workspace: held.id().clone(), room })
    }

    async fn write_inside(&self, path: &str, text: &str) -> Verdict {
        let facts = self.room.facts(["write", path, text]).await?;
        same!("writing inside", facts["ok"], json!(true));
        Ok(())
    }
}

async fn check_swapped_content(kit: Kit) -> Verdict {
    let review = Review::begin(&kit).await?;
    review.write_inside("given", "approved").await?;
    let seen = review.workspaces.diff(&review.workspace)?;
    review.write_inside("given", "replaced").await?;
    let options = ApplyOptions { seen: Some(seen), ..ApplyOptions::default() };
    let answer = review.workspaces.apply(&review.workspace, &options);
    check!(answer.is_err(), "expected the apply to be refused, saw {answer:?}");
    same!("the host's file", fs::read_to_string(kit.workspace().join("given"))?, ORIGINAL_CONTENT);
    Ok(())
}

async fn held_back(kit: Kit) -> Verdict {
    let review = Review::begin(&kit).await?;
    review.write_inside("given", "changed").await?;
    for path in HELD_BACK_PATHS {
        review.write_inside(path, "x").await?;
        check!(!kit.workspace().join(path).exists(), "`{path}` reached the host before any apply");
    }
    let applied = review.workspaces.apply(&review.workspace, &ApplyOptions::default())?;
    let Application::Applied(_) = applied else {
        return Err(Stop::Failed(format!("expected an apply, saw {applied:?}")));
    };
    same!("the host's file", fs::read_to_string(kit.workspace().join("given"))?, "changed");
    for path in HELD_BACK_PATHS {
        check!(!kit.workspace().join(path).exists(), "`{path}` was applied");
    }
    Ok(())
}
