//! Where the work lies: local, ephemeral, further mounts, and a root that may be written to (C-03,
//! C-20).

use bytes::Bytes as Data;
use serde_json::json;
use stockade_core::{
    Feature, HostTree, Mount, RootMode, SandboxPath, SandboxSpec, User, Workspace, WorkspaceAt,
};

use crate::case::{case, check, same};
use crate::kit::{host_path, probe_command};
use crate::{Case, Kit, Verdict};

pub(super) const WORKSPACE_CASES: &[Case] = &[
    case!("a local workspace is changed in place", "C-03", check_local_workspace)
        .needs(&[Feature::LocalWorkspace]),
    case!(
        "an ephemeral workspace is empty, and gone with its sandbox",
        "C-03",
        check_ephemeral_workspace
    )
    .needs(&[Feature::EphemeralWorkspace, Feature::FileTransfer]),
    case!(
        "a read-only workspace cannot be written to from outside either",
        "C-20",
        read_only_files
    )
    .needs(&[Feature::ReadOnlyWorkspace, Feature::FileTransfer])
    .isolation(),
    case!("an ephemeral workspace can be read-only too", "C-20", read_only_ephemeral)
        .needs(&[Feature::EphemeralWorkspace, Feature::ReadOnlyWorkspace, Feature::FileTransfer])
        .isolation(),
    case!("a read-only workspace cannot be made writable from inside", "C-20", read_only_mounts)
        .needs(&[Feature::ReadOnlyWorkspace, Feature::LocalWorkspace])
        .isolation(),
    case!("a further mount is read-only unless told otherwise", "C-20", check_extra_mounts)
        .needs(&[Feature::ExtraMounts])
        .isolation(),
    case!("a tree of the host is shown at its own path, read-only", "C-20", check_host_trees)
        .needs(&[Feature::HostTrees])
        .isolation(),
    case!(
        "a workspace appears at the path that was chosen, and at its usual one",
        "C-03",
        chosen_path
    )
    .needs(&[Feature::WorkspacePath, Feature::LocalWorkspace]),
    case!(
        "a copy-on-write root can be written to, and the host never sees it",
        "C-03",
        copy_on_write
    )
    .needs(&[Feature::CopyOnWriteRoot])
    .isolation(),
    case!("commands run as the user and group that were chosen", "C-03", chosen_user)
        .needs(&[Feature::ChosenUser])
        .isolation(),
    case!("a single command runs as the user that was chosen for it", "C-03", user_per_command)
        .needs(&[Feature::UserPerCommand])
        .isolation(),
];

async fn check_local_workspace(kit: Kit) -> Verdict {
    std::fs::write(kit.workspace().join("given"), "by the host")?;
    let room = kit.room().await?;
    same!(
        "the host's file inside",
        room.facts(["read", "given"]).await?["hex"],
        json!(encode_hex("by the host"))
    );
    room.facts(["write", "made", "inside"]).await?;
    let made = std::fs::read_to_string(kit.workspace().join("made"))?;
    same!("the file that was made inside", made, "inside");
    room.destroy().await?;
    let after = std::fs::read_to_string(kit.workspace().join("made"))?;
    same!("the file after the sandbox's end", after, "inside");
    Ok(())
}

fn encode_hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

async fn check_ephemeral_workspace(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.workspace = Workspace::Ephemeral;
    let (here, file): (SandboxPath, SandboxPath) = (".".parse()?, "file".parse()?);
    for _ in 0..2 {
        let id = kit.engine().create(spec.clone()).await?;
        let sandbox = kit.engine().sandbox(&id)?;
        let found = sandbox.files()?.list(&here).await?;
        check!(found.is_empty(), "expected an empty workspace, saw {found:?}");
        sandbox.files()?.write(&file, Data::from_static(b"x"), false).await?;
        drop(sandbox);
        kit.engine().destroy(&id).await?;
        kit.gone(&id).await?;
    }
    Ok(())
}

async fn read_only_files(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.read_only = true;
    let id = kit.engine().create(spec).await?;
    let sandbox = kit.engine().sandbox(&id)?;
    let answer = sandbox.files()?.write(&"new".parse()?, Data::from_static(b"x"), false).await;
    check!(answer.is_err(), "expected the write to be refused, but it was done");
    check!(sandbox.files()?.make_dir(&"dir".parse()?).await.is_err(), "expected no new directory");
    check!(!kit.workspace().join("new").exists(), "expected no new file on the host, saw one");
    Ok(())
}

async fn read_only_ephemeral(kit: Kit) -> Verdict {
    let spec = SandboxSpec { workspace: Workspace::Ephemeral, read_only: true, ..kit.spec() };
    let id = kit.engine().create(spec).await?;
    let sandbox = kit.engine().sandbox(&id)?;
    let answer = sandbox.files()?.write(&"new".parse()?, Data::from_static(b"x"), false).await;
    check!(answer.is_err(), "expected the write to be refused, but it was done");
    check!(sandbox.files()?.make_dir(&"dir".parse()?).await.is_err(), "expected no new directory");
    let found = sandbox.files()?.list(&".".parse()?).await?;
    check!(found.is_empty(), "expected it to stay empty, saw {found:?}");
    drop(sandbox);
    kit.engine().destroy(&id).await?;
    Ok(())
}

async fn read_only_mounts(kit: Kit) -> Verdict {
    std::fs::write(kit.workspace().join("given"), "by the host")?;
    let mut spec = kit.spec();
    spec.read_only = true;
    let room = kit.room_with(spec).await?;
    for verb in [["remount", "."], ["remove", "given"]] {
        let facts = room.facts(verb).await?;
        check!(facts["ok"] == json!(false), "expected {verb:?} to be refused, saw {facts}");
    }
    let facts = room.facts(["write", "given", "changed"]).await?;
    check!(facts["ok"] == json!(false), "expected the write to be refused, saw {facts}");
    let kept = std::fs::read_to_string(kit.workspace().join("given"))?;
    same!("the host's file", kept, "by the host");
    Ok(())
}

async fn check_extra_mounts(kit: Kit) -> Verdict {
    let source = kit.outside();
    std::fs::write(source.join("given"), "by the host")?;
    let mount = |target: &str, read_only| -> Verdict<Mount> {
        Ok(Mount { source: host_path(&source)?, target: target.parse()?, read_only })
    };
    let mut spec = kit.spec();
    spec.mounts = vec![mount("/mounted/ro", true)?, mount("/mounted/rw", false)?];
    let room = kit.room_with(spec).await?;
    for target in ["/mounted/ro", "/mounted/rw"] {
        let read = room.facts(["read", &format!("{target}/given")]).await?;
        same!(
            format!("the host's file at {target}"),
            read["hex"],
            json!(encode_hex("by the host"))
        );
    }
    let refused = room.facts(["write", "/mounted/ro/new", "x"]).await?;
    check!(refused["ok"] == json!(false), "expected a read-only mount, saw {refused}");
    let done = room.facts(["write", "/mounted/rw/new", "x"]).await?;
    same!("writing to the writable mount", done["ok"], json!(true));
    same!("the file on the host", std::fs::read_to_string(source.join("new"))?, "x");
    Ok(())
}

async fn check_host_trees(kit: Kit) -> Verdict {
    let source = kit.outside();
    std::fs::write(source.join("given"), "by the host")?;
    let target = source.to_string_lossy().parse()?;
    let mount = Mount { source: host_path(&source)?, target, read_only: true };
    let mut spec = kit.spec();
    spec.trees = vec![HostTree { part_of: "test".into(), mount, required: true }];
    let room = kit.room_with(spec).await?;
    let at = |name: &str| source.join(name).to_string_lossy().into_owned();
    let read = room.facts(["read", &at("given")]).await?;
    same!("the host's file", read["hex"], json!(encode_hex("by the host")));
    for verb in [["write", &at("new"), "x"], ["write", &at("given"), "x"]] {
        let refused = room.facts(verb).await?;
        check!(refused["ok"] == json!(false), "expected a read-only tree, saw {refused}");
    }
    Ok(())
}

async fn chosen_path(kit: Kit) -> Verdict {
    std::fs::write(kit.workspace().join("given"), "by the host")?;
    let mut spec = kit.spec();
    spec.workspace = Workspace::Local(host_path(&kit.workspace())?);
    spec.workspace_at = Some(WorkspaceAt { path: "/srv/project".parse()?, required: true });
    let room = kit.room_with(spec).await?;
    for path in ["given", "/srv/project/given", "/workspace/given"] {
        let read = room.facts(["read", path]).await?;
        same!(format!("the host's file at {path}"), read["hex"], json!(encode_hex("by the host")));
    }
    room.facts(["write", "/srv/project/made", "inside"]).await?;
    let made = std::fs::read_to_string(kit.workspace().join("made"))?;
    same!("the file that was made at the chosen path", made, "inside");
    Ok(())
}

async fn copy_on_write(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.root = RootMode::CopyOnWrite;
    let name = format!("/usr/{}", kit.mark());
    let one = kit.room_with(spec.clone()).await?;
    let written = one.facts(["write", &name, "x"]).await?;
    let on_host = std::fs::remove_file(&name).is_ok();
    check!(!on_host, "expected the host's tree to stay as it is, but the file was there");
    same!("writing to the root", written["ok"], json!(true));
    same!("reading it again", one.facts(["read", &name]).await?["ok"], json!(true));
    let two = kit.room_with(spec).await?;
    same!("reading it in another sandbox", two.facts(["read", &name]).await?["ok"], json!(false));
    Ok(())
}

fn extract_effective_ids(facts: &serde_json::Value) -> (serde_json::Value, serde_json::Value) {
    (facts["ids"]["euid"].clone(), facts["ids"]["egid"].clone())
}

async fn chosen_user(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.user = Some(User { uid: 1234, gid: 2345 });
    let facts = kit.run_with(spec, probe_command(["report"])).await?.facts()?;
    same!(
        "the sandbox's user and group",
        extract_effective_ids(&facts),
        (json!(1234), json!(2345))
    );
    Ok(())
}

async fn user_per_command(kit: Kit) -> Verdict {
    let mut command = probe_command(["report"]);
    command.user = Some(User { uid: 3456, gid: 4567 });
    let facts = kit.run_with(kit.spec(), command).await?.facts()?;
    same!(
        "the command's user and group",
        extract_effective_ids(&facts),
        (json!(3456), json!(4567))
    );
    Ok(())
}
