//! What `diff` tells and what `apply` does, holds back and refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::furniture::{change_copy, change_upper, expected, furnish};
use crate::common::{
    Place, conflicts, copied_up, done, fifo, mode, ordinary, picture, whiteout, write, write_later,
};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use stockade_core::{ErrorCode, WorkspaceId};
use stockade_workspaces::{
    ApplyOptions, ChangeKind, ConflictReason, HeldReason, Hint, Mechanism, TreePath,
};

fn check_after(source: &Path) {
    let text = |path: &str| fs::read_to_string(source.join(path)).unwrap();
    assert_eq!(text("a"), "a changed\n");
    assert_eq!(text("new"), "new\n");
    assert_eq!(text("dir-to-file"), "now a file\n");
    assert_eq!(text("file-to-dir/in"), "in\n");
    assert_eq!(text("deep/er/est"), "deep\n");
    assert_eq!(fs::read_link(source.join("link")).unwrap(), Path::new("b"));
    assert_eq!(fs::metadata(source.join("script")).unwrap().mode() & 0o777, 0o755);
    for gone in ["dir/d", "gone", "again/z"] {
        assert!(!source.join(gone).exists(), "{gone}");
    }
    let names: Vec<_> = picture(source).into_keys().collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(".stockade")), "{names:?}");
}

#[test]
fn an_upper_is_read_as_what_was_changed_and_applied_whole() {
    let place = Place::new();
    furnish(&place.source());
    let before = picture(&place.source());
    let workspace = place.overlay();
    change_upper(&place.upper(&workspace.id));
    assert_eq!(place.lines(&workspace.id), expected());
    assert_eq!(picture(&place.source()), before, "a diff changes nothing");
    assert_eq!(place.applied(&workspace.id).applied.len(), 15);
    check_after(&place.source());
    assert!(place.diff(&workspace.id).is_empty());
}

#[test]
fn an_ordinary_users_upper_is_applied_too() {
    ordinary::repeat(module_path!(), "an_upper_is_read_as_what_was_changed_and_applied_whole");
}

#[test]
fn a_copy_tells_the_same_changes_as_an_upper() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.copied();
    assert!(place.diff(&workspace.id).is_empty());
    change_copy(&workspace.root);
    assert_eq!(place.lines(&workspace.id), expected());
    place.applied(&workspace.id);
    check_after(&place.source());
    assert!(place.diff(&workspace.id).is_empty());
}

#[test]
fn an_ordinary_users_copy_tells_them_too() {
    ordinary::repeat(module_path!(), "a_copy_tells_the_same_changes_as_an_upper");
}

#[test]
fn a_copy_knows_a_change_whose_time_and_size_were_put_back() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.copied();
    let path = workspace.root.join("a");
    let stamp = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "z\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(stamp).unwrap();
    assert_eq!(place.lines(&workspace.id), ["M a"]);
}

#[test]
fn what_was_only_touched_is_no_change() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    write(place.upper(&workspace.id).join("dir/c"), "c\n");
    symlink("a", place.upper(&workspace.id).join("link")).unwrap();
    assert!(place.diff(&workspace.id).is_empty());
}

#[test]
fn the_patch_is_unified_text() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    change_upper(&place.upper(&workspace.id));
    let patch = place.workspaces.patch(&workspace.id).unwrap();
    for part in [
        "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+a changed\n",
        "new file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n",
        "old mode 100644\nnew mode 100755\n",
        "deleted file mode",
        "a/binary",
        "not text",
    ] {
        assert!(patch.contains(part), "{part}\n{patch}");
    }
    let binary = place.diff(&workspace.id);
    assert!(binary.at(&"binary".parse().unwrap()).unwrap().binary);
}

#[test]
fn what_runs_code_later_is_held_back_until_it_is_named() {
    let place = Place::new();
    write(place.source().join(".git/HEAD"), "ref: refs/heads/main\n");
    write(place.source().join("code"), "1\n");
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("code"), "2\n");
    write(upper.join(".git/hooks/pre-commit"), "#!/bin/sh\n");
    write(upper.join(".envrc"), "evil\n");
    write(upper.join("sub/.GitHub/workflows/x.yml"), "evil\n");
    write(upper.join("suid"), "s");
    mode(upper.join("suid"), 0o4755);
    symlink("/etc/passwd", upper.join("out")).unwrap();
    symlink("code", upper.join("in")).unwrap();
    fifo(upper.join("pipe"));
    let applied = place.applied(&workspace.id);
    let names = |paths: &[TreePath]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&applied.applied), ["code", "in", "sub"]);
    assert!(!place.source().join(".git/hooks").exists() && !place.source().join("suid").exists());

    let include =
        [".envrc", ".git/hooks", "suid", "out", "pipe"].map(|p| p.parse().unwrap()).into();
    let options = ApplyOptions { include, to: None, seen: None };
    let applied = done(place.workspaces.apply(&workspace.id, &options).unwrap());
    assert_eq!(
        names(&applied.held),
        ["pipe", "sub/.GitHub", "sub/.GitHub/workflows", "sub/.GitHub/workflows/x.yml"]
    );
    assert!(place.source().join(".git/hooks/pre-commit").exists());
    assert_eq!(fs::metadata(place.source().join("suid")).unwrap().mode() & 0o7777, 0o4755);
    assert!(!place.source().join("pipe").exists());
}

#[test]
fn a_name_that_stands_for_no_change_is_refused() {
    let place = Place::new();
    let workspace = place.overlay();
    write(place.upper(&workspace.id).join(".envrc"), "x");
    let options = ApplyOptions { include: vec![".envrcc".parse().unwrap()], to: None, seen: None };
    let error = place.workspaces.apply(&workspace.id, &options).unwrap_err();
    assert!(error.code() == ErrorCode::Invalid && error.message().contains(".envrcc"), "{error}");
}

#[test]
fn a_repository_in_disguise_is_held_back() {
    let place = Place::new();
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("docs/HEAD"), "ref: refs/heads/main\n");
    write(upper.join("docs/config"), "[core]\nfsmonitor = evil\n");
    fs::create_dir_all(upper.join("docs/objects")).unwrap();
    fs::create_dir_all(upper.join("docs/refs")).unwrap();
    write(upper.join("plain/config"), "x");
    let held: Vec<_> = place.diff(&workspace.id).held().map(|c| c.path.to_string()).collect();
    assert_eq!(held, ["docs", "docs/HEAD", "docs/config", "docs/objects", "docs/refs"]);
}

#[test]
fn removing_a_directory_that_holds_something_held_is_held_back() {
    let place = Place::new();
    write(place.source().join("project/.envrc"), "x");
    let workspace = place.overlay();
    whiteout(place.upper(&workspace.id).join("project"));
    let diff = place.diff(&workspace.id);
    assert!(matches!(diff.changes[0].held, Some(HeldReason::Contains(_))), "{diff}");
    assert_eq!(diff.changes[0].beneath, 1);
}

#[test]
fn what_changed_underneath_is_named_and_nothing_is_done() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        furnish(&place.source());
        let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
        match mechanism {
            Mechanism::Kernel => change_upper(&place.upper(&workspace.id)),
            Mechanism::Copy => change_copy(&workspace.root),
        }
        write(place.source().join("a"), "mine\n");
        write(place.source().join("gone/x/y"), "mine\n");
        write(place.source().join("new"), "mine\n");
        let before = picture(&place.source());
        let found = conflicts(place.apply(&workspace.id));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "a changed since the workspace began",
                "gone changed since the workspace began",
                "new changed since the workspace began"
            ]
        );
        assert_eq!(picture(&place.source()), before);
    }
}

#[test]
fn a_file_that_was_touched_or_brought_back_is_no_conflict() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        furnish(&place.source());
        let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
        match mechanism {
            Mechanism::Kernel => change_upper(&place.upper(&workspace.id)),
            Mechanism::Copy => change_copy(&workspace.root),
        }
        place.release(&workspace.id);
        let a = place.source().join("a");
        let before = fs::read(&a).unwrap();
        fs::write(&a, "mine\n").unwrap();
        assert_eq!(conflicts(place.apply(&workspace.id)).len(), 1, "{mechanism:?}");
        fs::write(&a, before).unwrap();
        place.applied(&workspace.id);
        check_after(&place.source());
    }
}

#[test]
fn what_was_brought_back_over_an_apply_is_a_conflict() {
    let place = Place::new();
    furnish(&place.source());
    let (workspace, a) = (place.overlay(), place.source().join("a"));
    let before = fs::read(&a).unwrap();
    write(place.upper(&workspace.id).join("a"), "one\n");
    write(place.upper(&workspace.id).join(".envrc"), "held back, so that the workspace stays\n");
    place.release(&workspace.id);
    place.applied(&workspace.id);
    write(place.upper(&workspace.id).join("a"), "two\n");
    write_later(&a, before);
    assert_eq!(conflicts(place.apply(&workspace.id)).len(), 1);
}

/// A tree in which `a` and a new link were applied and `.envrc` was held back, and where the guest writes.
fn partly_applied(mechanism: Mechanism) -> (Place, WorkspaceId, PathBuf) {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
    let layer = match mechanism {
        Mechanism::Kernel => place.upper(&workspace.id),
        Mechanism::Copy => workspace.root.clone(),
    };
    write(layer.join("a"), "two\n");
    write(layer.join(".envrc"), "x\n");
    symlink("a", layer.join("new-link")).unwrap();
    let applied = place.applied(&workspace.id);
    assert_eq!((applied.applied.len(), applied.held.len()), (2, 1), "{mechanism:?}");
    (place, workspace.id, layer)
}

fn include_envrc() -> ApplyOptions {
    ApplyOptions { include: vec![".envrc".parse().unwrap()], ..ApplyOptions::default() }
}

#[test]
fn what_was_applied_and_then_changed_by_the_user_is_no_change_any_more() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let (place, id, _) = partly_applied(mechanism);
        let source = place.source();
        write(source.join("a"), "three\n");
        fs::remove_file(source.join("new-link")).unwrap();
        symlink("b", source.join("new-link")).unwrap();
        assert_eq!(place.lines(&id), ["A .envrc held"], "{mechanism:?}");
        assert!(!place.workspaces.patch(&id).unwrap().contains("two"));
        let options = ApplyOptions { seen: Some(place.diff(&id)), ..include_envrc() };
        let applied = done(place.workspaces.apply(&id, &options).unwrap());
        assert_eq!((applied.applied.len(), applied.held.len()), (1, 0), "{mechanism:?}");
        assert_eq!(fs::read_to_string(source.join("a")).unwrap(), "three\n");
        assert_eq!(fs::read_link(source.join("new-link")).unwrap(), Path::new("b"));
        assert_eq!(fs::read_to_string(source.join(".envrc")).unwrap(), "x\n");
        assert!(place.diff(&id).is_empty());
    }
}

#[test]
fn what_the_guest_changes_after_an_apply_is_a_change_again() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        for by_mode in [false, true] {
            let (place, id, layer) = partly_applied(mechanism);
            match by_mode {
                true => mode(layer.join("a"), 0o700),
                // Of the same length as what was applied.
                false => write(layer.join("a"), "six\n"),
            }
            let letter = if by_mode { "P a" } else { "M a" };
            assert_eq!(place.lines(&id), ["A .envrc held", letter], "{mechanism:?}");
            write_later(place.source().join("a"), "three\n");
            assert_eq!(place.lines(&id), ["A .envrc held", "M a"], "{mechanism:?}");
            let found = conflicts(place.workspaces.apply(&id, &include_envrc()).unwrap());
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].to_string(), "a changed since the workspace began");
            assert!(!place.source().join(".envrc").exists());
        }
    }
}

#[test]
fn what_was_applied_then_removed_and_made_again_is_applied_again() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let (place, id, layer) = partly_applied(mechanism);
        fs::remove_file(layer.join("a")).unwrap();
        if mechanism == Mechanism::Kernel {
            whiteout(layer.join("a"));
        }
        place.applied(&id);
        assert!(!place.source().join("a").exists());
        if mechanism == Mechanism::Kernel {
            fs::remove_file(layer.join("a")).unwrap();
        }
        write(layer.join("a"), "two\n");
        assert_eq!(place.lines(&id), ["A .envrc held", "A a"], "{mechanism:?}");
        place.applied(&id);
        assert_eq!(fs::read_to_string(place.source().join("a")).unwrap(), "two\n");
    }
}

#[test]
fn a_note_of_an_older_version_without_contents_can_be_read() {
    let (place, id, _) = partly_applied(Mechanism::Kernel);
    let path = place.home(&id).join("settled.json");
    let mut note: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(note.as_object_mut().unwrap().remove("applied").is_some());
    fs::write(&path, note.to_string()).unwrap();
    write_later(place.source().join("a"), "three\n");
    assert_eq!(place.lines(&id), ["A .envrc held", "M a"]);
    assert_eq!(conflicts(place.workspaces.apply(&id, &include_envrc()).unwrap()).len(), 1);
}

#[test]
fn work_that_goes_on_after_an_apply_can_be_applied_again() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        furnish(&place.source());
        let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
        let written = match mechanism {
            Mechanism::Kernel => place.upper(&workspace.id),
            Mechanism::Copy => workspace.root.clone(),
        };
        match mechanism {
            Mechanism::Kernel => change_upper(&written),
            Mechanism::Copy => change_copy(&written),
        }
        place.applied(&workspace.id);
        fs::remove_file(written.join("dir/d")).ok();
        for path in ["a", "new", "deep/er/est", "dir-to-file", "dir/d"] {
            write(written.join(path), "again\n");
        }
        assert_eq!(place.applied(&workspace.id).applied.len(), 5, "{mechanism:?}");
        write_later(place.source().join("a"), "mine\n");
        write(written.join("a"), "once more\n");
        assert_eq!(conflicts(place.apply(&workspace.id)).len(), 1);
    }
}

#[test]
fn a_link_in_the_place_of_what_is_held_back_is_held_back() {
    let place = Place::new();
    write(place.source().join(".git/objects/x"), "x");
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    fs::create_dir_all(upper.join(".git")).unwrap();
    symlink("../payload", upper.join(".git/objects")).unwrap();
    symlink("objects", upper.join(".git/index")).unwrap();
    symlink("payload", upper.join(".cargo")).unwrap();
    symlink("payload", upper.join("other")).unwrap();
    let lines = ["A .cargo held", "A .git/index held", "T .git/objects held", "A other"];
    assert_eq!(place.lines(&workspace.id), lines);
}

/// Writes down an apply that was cut off after it had swapped `a`, as another process would have.
fn cut_off(place: &Place, id: &WorkspaceId) {
    let source = place.source();
    let stage = source.join(".stockade-apply-1-1");
    fs::create_dir(&stage).unwrap();
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    let old = fs::metadata(source.join("a")).unwrap();
    let (sec, nsec) = (old.mtime(), old.mtime_nsec());
    fs::rename(source.join("a"), stage.join("1")).unwrap();
    write(source.join("a"), "the new one\n");
    let root = fs::metadata(&source).unwrap();
    let intent = serde_json::json!({
        "target": source, "root": [root.dev(), root.ino()], "elsewhere": false,
        "stage": ".stockade-apply-1-1", "phase": "acting",
        "steps": [{ "slot": "1", "path": "a", "act": { "swap": {
            "new": number(&source.join("a")),
            "old": { "ino": old.ino(), "kind": "file", "mode": old.mode() & 0o7777,
                     "size": old.len(), "modified": { "sec": sec, "nsec": nsec } },
        } } }],
    });
    write(place.home(id).join("intent.json"), intent.to_string());
}

#[test]
fn an_apply_that_was_cut_off_is_undone_by_whoever_looks_next() {
    let place = Place::new();
    furnish(&place.source());
    let before = picture(&place.source());
    let workspace = place.overlay();
    write(place.upper(&workspace.id).join("a"), "the new one\n");
    cut_off(&place, &workspace.id);
    assert_eq!(place.lines(&workspace.id), ["M a"]);
    assert_eq!(picture(&place.source()), before);
    place.applied(&workspace.id);
}

#[test]
fn what_somebody_wrote_over_a_cut_off_apply_is_theirs_and_what_was_before_is_kept() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    cut_off(&place, &workspace.id);
    fs::write(place.source().join("draft"), "mine\n").unwrap();
    fs::rename(place.source().join("draft"), place.source().join("a")).unwrap();
    let error = place.workspaces.diff(&workspace.id).unwrap_err();
    assert!(error.message().contains(".stockade-apply-1-1"), "{error}");
    let recovered = place.workspaces.recover().unwrap();
    assert!(recovered.len() == 1 && recovered[0].outcome.is_err());
    place.workspaces.discard(&workspace.id).unwrap();
    let text = |path: &str| fs::read_to_string(place.source().join(path)).unwrap();
    assert_eq!((text("a"), text(".stockade-apply-1-1/1")), ("mine\n".into(), "a\n".into()));
}

#[test]
fn a_file_that_somebody_removed_meanwhile_does_not_come_back() {
    let place = Place::new();
    furnish(&place.source());
    let (kernel, copy) = (place.overlay(), place.copied());
    let upper = place.upper(&kernel.id).join("dir/c");
    write(&upper, "c changed\n");
    copied_up(&upper);
    write(copy.root.join("dir/c"), "c changed\n");
    fs::remove_file(place.source().join("dir/c")).unwrap();
    for id in [kernel.id, copy.id] {
        let found = conflicts(place.apply(&id));
        assert_eq!(found[0].reason, ConflictReason::Gone, "{found:?}");
    }
}

#[test]
fn a_file_that_the_guest_moved_is_no_conflict() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    whiteout(upper.join("dir/c"));
    write(upper.join("dir/moved"), "c\n");
    copied_up(upper.join("dir/moved"));
    write(place.source().join("dir/unrelated"), "mine\n");
    assert_eq!(place.applied(&workspace.id).applied.len(), 2);
}

#[test]
fn another_tree_takes_the_changes_where_it_holds_what_they_were_made_to() {
    let place = Place::new();
    furnish(&place.source());
    let other = place.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    furnish(&other);
    let workspace = place.overlay();
    change_upper(&place.upper(&workspace.id));
    let options = ApplyOptions { include: Vec::new(), to: Some(other.clone()), seen: None };
    for _ in 0..2 {
        done(place.workspaces.apply(&workspace.id, &options).unwrap());
        check_after(&other);
    }
    assert_eq!(fs::read_to_string(place.source().join("a")).unwrap(), "a\n");

    write(other.join("a"), "theirs\n");
    let found = conflicts(place.workspaces.apply(&workspace.id, &options).unwrap());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].reason, ConflictReason::NotTheBase);
}

#[test]
fn a_directory_closed_by_its_new_mode_is_still_filled_first() {
    let place = Place::new();
    write(place.source().join("dir/old"), "x");
    let workspace = place.overlay();
    let upper = place.upper(&workspace.id);
    write(upper.join("dir/new"), "x");
    write(upper.join("closed/in"), "x");
    mode(upper.join("dir"), 0o555);
    mode(upper.join("closed"), 0o555);
    place.applied(&workspace.id);
    for dir in ["dir", "closed"] {
        assert_eq!(fs::metadata(place.source().join(dir)).unwrap().mode() & 0o777, 0o555);
        mode(place.source().join(dir), 0o755);
    }
    assert!(place.source().join("dir/new").exists() && place.source().join("closed/in").exists());
}

#[test]
fn a_directory_closed_by_an_ordinary_user_is_filled_first_too() {
    ordinary::repeat(module_path!(), "a_directory_closed_by_its_new_mode_is_still_filled_first");
}

#[test]
fn kinds_are_told_by_letters() {
    let letters = [
        ChangeKind::Added,
        ChangeKind::Changed,
        ChangeKind::Removed,
        ChangeKind::ModeChanged,
        ChangeKind::TypeChanged,
    ];
    assert_eq!(letters.map(ChangeKind::letter), ['A', 'M', 'D', 'P', 'T']);
}

/// `user::rw-,user:12345:r--,group::---,mask::r--,other::---`, as the kernel takes it.
fn access_list() -> Vec<u8> {
    let nobody = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(1, 6, nobody), (2, 4, 12345), (4, 0, nobody), (0x10, 4, nobody), (0x20, 0, nobody)];
    let bytes = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(bytes)).flatten().collect()
}

#[test]
fn a_replaced_file_keeps_the_users_notes_and_whom_they_let_in() {
    const ACCESS_ACL_XATTR: &str = "system.posix_acl_access";
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let place = Place::new();
        furnish(&place.source());
        let a = place.source().join("a");
        let set = |name, value: &[u8]| setxattr(&a, name, value, XattrFlags::empty()).unwrap();
        set("user.note", b"mine");
        set(ACCESS_ACL_XATTR, &access_list());
        let workspace = place.acquire(Hint::Overlay(place.source()), mechanism);
        let layer = match mechanism {
            Mechanism::Kernel => place.upper(&workspace.id),
            Mechanism::Copy => workspace.root.clone(),
        };
        write(layer.join("a"), "a changed\n");
        mode(layer.join("a"), 0o640);
        assert_eq!(place.applied(&workspace.id).applied.len(), 1);
        assert_eq!(fs::read_to_string(&a).unwrap(), "a changed\n");
        let mut value = [0; 256];
        let mut get = |name| getxattr(&a, name, &mut value[..]).map(|read| value[..read].to_vec());
        assert_eq!(get("user.note").unwrap(), b"mine");
        assert_eq!(get(ACCESS_ACL_XATTR).unwrap(), access_list(), "{mechanism:?}");
    }
}

#[test]
fn what_nobody_looked_at_is_not_applied() {
    for (name, text) in [("more", "more\n"), ("a", "a changed again\n")] {
        let place = Place::new();
        furnish(&place.source());
        let before = picture(&place.source());
        let workspace = place.overlay();
        write(place.upper(&workspace.id).join("a"), "a changed\n");
        let seen = Some(place.diff(&workspace.id));
        write(place.upper(&workspace.id).join(name), text);
        let options = ApplyOptions { seen, ..ApplyOptions::default() };
        let error = place.workspaces.apply(&workspace.id, &options).unwrap_err();
        assert!(error.message().contains(workspace.id.as_str()), "{error}");
        assert!(picture(&place.source()) == before);
        let options = ApplyOptions { seen: Some(place.diff(&workspace.id)), ..options };
        done(place.workspaces.apply(&workspace.id, &options).unwrap());
    }
}
