//! A copy-on-write view of the workspace: what is changed in it is kept apart (C-03, C-17, C-20).

use std::fs;

use serde_json::json;
use stockade_core::{ErrorCode, Feature};

use crate::case::{case, check, same};
use crate::{Case, Kit, Verdict};

const REQUIRED_FEATURES: &[Feature] = &[Feature::OverlayWorkspace];

pub(super) const OVERLAY_CASES: &[Case] = &[
    case!(
        "a change in a copy-on-write workspace shows inside and not on the host",
        "C-03",
        check_overlay_write
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!(
        "a removal in a copy-on-write workspace shows inside and not on the host",
        "C-03",
        check_overlay_removal
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!(
        "the upper layer holds what was changed, after the sandbox's end too",
        "C-03",
        check_upper_layer
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!(
        "the next sandbox on the same layers finds what the one before has left",
        "C-03",
        check_layer_reuse
    )
    .needs(REQUIRED_FEATURES)
    .isolation(),
    case!("layers that a sandbox writes to are refused to another one", "C-17", in_use)
        .needs(REQUIRED_FEATURES)
        .isolation(),
    case!("a read-only copy-on-write workspace cannot be written to", "C-20", read_only)
        .needs(&[Feature::OverlayWorkspace, Feature::ReadOnlyWorkspace])
        .isolation(),
];

/// Content of the file that the host puts in the workspace.
const HOST_FILE_CONTENT: &str = "by the host";

fn write_host_file(kit: &Kit) -> Verdict {
    Ok(fs::write(kit.workspace().join("given"), HOST_FILE_CONTENT)?)
}

fn on_host(kit: &Kit) -> Verdict<String> {
    Ok(fs::read_to_string(kit.workspace().join("given"))?)
}

async fn check_overlay_write(kit: Kit) -> Verdict {
    write_host_file(&kit)?;
    let room = kit.room_with(kit.spec_overlaid()?).await?;
    for name in ["given", "new"] {
        same!("writing", room.facts(["write", name, "x"]).await?["ok"], json!(true));
        same!("reading it again", room.facts(["read", name]).await?["hex"], json!("78"));
    }
    same!("the host's file", on_host(&kit)?, HOST_FILE_CONTENT);
    check!(!kit.workspace().join("new").exists(), "expected no new file on the host, saw one");
    Ok(())
}

async fn check_overlay_removal(kit: Kit) -> Verdict {
    write_host_file(&kit)?;
    let room = kit.room_with(kit.spec_overlaid()?).await?;
    same!("removing", room.facts(["remove", "given"]).await?["ok"], json!(true));
    same!("reading it then", room.facts(["read", "given"]).await?["ok"], json!(false));
    room.destroy().await?;
    check!(kit.workspace().join("given").exists(), "expected the host's file, but it is gone");
    same!("the host's file", on_host(&kit)?, HOST_FILE_CONTENT);
    Ok(())
}

async fn check_upper_layer(kit: Kit) -> Verdict {
    write_host_file(&kit)?;
    let room = kit.room_with(kit.spec_overlaid()?).await?;
    room.facts(["write", "given", "inside"]).await?;
    room.destroy().await?;
    let changed = kit.layer("upper").join("given");
    check!(changed.exists(), "expected the change in the upper layer, saw none");
    same!("the file in the upper layer", fs::read_to_string(changed)?, "inside");
    let untouched = kit.layer("upper").join("probe");
    check!(!untouched.exists(), "expected what was only read to stay where it is, saw a copy");
    Ok(())
}

async fn check_layer_reuse(kit: Kit) -> Verdict {
    write_host_file(&kit)?;
    let one = kit.room_with(kit.spec_overlaid()?).await?;
    one.facts(["write", "left", "x"]).await?;
    one.facts(["remove", "given"]).await?;
    one.destroy().await?;
    let two = kit.room_with(kit.spec_overlaid()?).await?;
    same!("the file that was made", two.facts(["read", "left"]).await?["hex"], json!("78"));
    same!("the file that was removed", two.facts(["read", "given"]).await?["ok"], json!(false));
    check!(kit.workspace().join("given").exists(), "expected the host's file, but it is gone");
    Ok(())
}

async fn in_use(kit: Kit) -> Verdict {
    let one = kit.room_with(kit.spec_overlaid()?).await?;
    let refused = kit.engine().create(kit.spec_overlaid()?).await;
    let code = refused.err().map(|error| error.code());
    same!("the second sandbox's answer", code, Some(ErrorCode::Unavailable));
    one.destroy().await?;
    kit.room_with(kit.spec_overlaid()?).await?;
    Ok(())
}

async fn read_only(kit: Kit) -> Verdict {
    write_host_file(&kit)?;
    let mut spec = kit.spec_overlaid()?;
    spec.read_only = true;
    let room = kit.room_with(spec).await?;
    same!("reading", room.facts(["read", "given"]).await?["ok"], json!(true));
    for verb in [&["write", "given", "x"][..], &["write", "new", "x"], &["remove", "given"]] {
        let facts = room.facts(verb).await?;
        check!(facts["ok"] == json!(false), "expected {verb:?} to be refused, saw {facts}");
    }
    same!("what is in the upper layer", fs::read_dir(kit.layer("upper"))?.count(), 0);
    Ok(())
}
