//! What a guest changed in a copy-on-write workspace and a person approved: applied as it was seen (C-23),
//! without what would make the host run code later (C-24).

use std::fs;

use serde_json::json;
use stockade_core::Feature;
use stockade_engine::{Journal, JournalOptions};
use stockade_workspaces::{Application, ApplyOptions, Hint, ManagedWorkspace, Request, Workspaces};

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
    workspace: ManagedWorkspace,
    room: Room,
}

impl Review {
    async fn begin(kit: &Kit) -> Verdict<Self> {
        fs::write(kit.workspace().join("given"), ORIGINAL_CONTENT)?;
        let journal = Journal::open_in(kit.state(), JournalOptions::default())?;
        let workspaces = Workspaces::open(kit.state(), journal)?;
        let workspace = workspaces.acquire(Request::new(Hint::Overlay(kit.workspace()))).await?;
        let mut spec = kit.spec();
        spec.workspace = workspace.spec();
        let room = kit.room_with(spec).await?;
        Ok(Self { workspaces, workspace, room })
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
    let seen = review.workspaces.diff(&review.workspace.id)?;
    review.write_inside("given", "replaced").await?;
    let options = ApplyOptions { seen: Some(seen), ..ApplyOptions::default() };
    let answer = review.workspaces.apply(&review.workspace.id, &options);
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
    let applied = review.workspaces.apply(&review.workspace.id, &ApplyOptions::default())?;
    let Application::Applied(_) = applied else {
        return Err(Stop::Failed(format!("expected an apply, saw {applied:?}")));
    };
    same!("the host's file", fs::read_to_string(kit.workspace().join("given"))?, "changed");
    for path in HELD_BACK_PATHS {
        check!(!kit.workspace().join(path).exists(), "`{path}` was applied");
    }
    Ok(())
}
