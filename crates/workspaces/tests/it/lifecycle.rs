//! How workspaces come and go: acquire, release, discard, fork, and what the journal says of it.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::furniture::{change_copy, change_upper, expected, furnish};
use crate::common::{Place, conflicts, open, ordinary, picture, wait, write};
use stockade_core::{Bytes, ErrorCode, TenantName};
use stockade_engine::{Event, Filter, Journal, JournalOptions, StateDir};
use stockade_workspaces::{Hint, Kind, Mechanism, Request};

#[test]
fn the_same_directory_is_the_same_workspace_and_outlives_it() {
    let place = Place::new();
    write(place.source().join("a"), "a");
    let hint = || Hint::Local(place.source());
    let (one, two) =
        (place.acquire(hint(), Mechanism::Kernel), place.acquire(hint(), Mechanism::Kernel));
    assert_eq!(one.id, two.id);
    let link = place.dir.path().join("link");
    symlink(place.source(), &link).unwrap();
    assert_eq!(place.acquire(Hint::Local(link), Mechanism::Kernel).id, one.id);
    assert_eq!(one.spec(), stockade_core::Workspace::Local(place.source().try_into().unwrap()));
    assert_eq!(place.workspaces.list().unwrap().len(), 1);
    place.release(&one.id);
    place.release(&one.id);
    assert!(place.workspaces.list().unwrap().is_empty());
    assert!(place.source().join("a").exists());
}

#[test]
fn release_keeps_what_has_changes_and_removes_what_has_none() {
    let place = Place::new();
    furnish(&place.source());
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let idle = place.acquire(Hint::Overlay(place.source()), mechanism);
        place.release(&idle.id);
        place.release(&idle.id);
        assert!(!place.home(&idle.id).exists());
    }
    let changed = place.overlay();
    write(place.upper(&changed.id).join("a"), "other\n");
    place.release(&changed.id);
    let listed = place.workspaces.list().unwrap();
    assert!(listed.len() == 1 && listed[0].released && listed[0].kind == Kind::Overlay);
    place.applied(&changed.id);
    assert!(place.workspaces.list().unwrap().is_empty(), "applied, so nothing is left to keep");
    assert_eq!(place.workspaces.diff(&changed.id).unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn discard_throws_the_changes_away() {
    let place = Place::new();
    furnish(&place.source());
    let before = picture(&place.source());
    let workspace = place.overlay();
    change_upper(&place.upper(&workspace.id));
    place.workspaces.discard(&workspace.id).unwrap();
    assert_eq!(place.workspaces.discard(&workspace.id).unwrap_err().code(), ErrorCode::NotFound);
    assert!(place.workspaces.list().unwrap().is_empty() && picture(&place.source()) == before);
}

#[test]
fn a_fork_begins_where_its_original_stands_and_goes_its_own_way() {
    let place = Place::new();
    furnish(&place.source());
    let (kernel, copy) = (place.overlay(), place.copied());
    change_upper(&place.upper(&kernel.id));
    change_copy(&copy.root);
    for id in [kernel.id, copy.id.clone()] {
        let fork = place.workspaces.fork(&id).unwrap();
        assert_ne!(fork.id, id);
        assert_eq!(place.lines(&fork.id), expected());
        let written = if id == copy.id { fork.root.clone() } else { place.upper(&fork.id) };
        write(written.join("b"), "only here\n");
        assert_eq!(place.lines(&fork.id).len(), 16);
        assert_eq!(place.lines(&id), expected());
    }
}

#[test]
fn an_ordinary_users_fork_does_too() {
    ordinary::repeat(
        module_path!(),
        "a_fork_begins_where_its_original_stands_and_goes_its_own_way",
    );
}

#[test]
fn an_ephemeral_workspace_is_measured_and_gone_at_release() {
    let place = Place::new();
    let scratch = place.acquire(Hint::Ephemeral { most: Bytes::mib(1) }, Mechanism::Kernel);
    assert_eq!(scratch.spec(), stockade_core::Workspace::Ephemeral);
    write(scratch.root.join("some"), vec![7; 4096]);
    assert!(place.workspaces.measure(&scratch.id).unwrap() >= Bytes(4096));
    write(scratch.root.join("much"), vec![7; 2 << 20]);
    let error = place.workspaces.measure(&scratch.id).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    place.release(&scratch.id);
    assert!(!scratch.root.exists());
}

#[test]
fn acquire_and_release_are_recorded_once() {
    let place = Place::new();
    let tenant: TenantName = "team".parse().unwrap();
    let request = Request { tenant: tenant.clone(), ..Request::new(Hint::Overlay(place.source())) };
    let workspace = wait(place.workspaces.acquire(request)).unwrap();
    place.release(&workspace.id);
    place.release(&workspace.id);
    let state = StateDir::open(place.dir.path().join("state")).unwrap();
    let journal = Journal::open(&state, JournalOptions::default()).unwrap();
    let events: Vec<_> =
        journal.records(Filter::default()).unwrap().map(|record| record.unwrap().event).collect();
    let id = workspace.id;
    assert_eq!(
        events,
        [
            Event::WorkspaceAcquired {
                workspace: id.clone(),
                workspace_kind: "overlay".into(),
                tenant,
                root: place.source().display().to_string(),
            },
            Event::WorkspaceReleased { workspace: id },
        ]
    );
}

#[test]
fn a_workspace_that_nobody_waits_for_any_more_is_given_back() {
    let place = Place::new();
    furnish(&place.source());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let request = Request::new(Hint::Overlay(place.source()));
        let mut acquiring = Box::pin(place.workspaces.acquire(request));
        let nothing = std::future::poll_fn(|context| {
            std::task::Poll::Ready(acquiring.as_mut().poll(context).is_pending())
        });
        assert!(nothing.await, "it is under way");
    });
    drop(runtime);
    assert!(place.workspaces.list().unwrap().is_empty());
}

#[test]
fn a_tree_that_holds_the_state_directory_is_refused() {
    let place = Place::new();
    let request = Request::new(Hint::Overlay(place.dir.path().to_owned()));
    let error = wait(place.workspaces.acquire(request)).unwrap_err();
    assert!(error.message().contains("state directory"), "{error}");
}

#[test]
fn a_workspace_that_was_never_finished_is_cleared_away() {
    let place = Place::new();
    let half = place.dir.path().join("state/workspaces/halfmade");
    fs::create_dir(&half).unwrap();
    write(half.join("copy/x"), "x");
    open(&place.dir.path().join("state"));
    assert!(!half.exists());
}

#[test]
fn workspaces_are_acquired_and_released_by_many_at_once() {
    let place = Place::new();
    furnish(&place.source());
    std::thread::scope(|scope| {
        for number in 0..8 {
            let place = &place;
            scope.spawn(move || {
                let workspaces = open(&place.dir.path().join("state"));
                let request = Request::new(Hint::Overlay(place.source()));
                let workspace = wait(workspaces.acquire(request)).unwrap();
                write(place.upper(&workspace.id).join(format!("n{number}")), "x");
                let local = wait(workspaces.acquire(Request::new(Hint::Local(place.source()))));
                wait(workspaces.release(&local.unwrap().id)).unwrap();
                assert_eq!(place.lines(&workspace.id), [format!("A n{number}")]);
                workspaces.discard(&workspace.id).unwrap();
            });
        }
    });
    assert!(place.workspaces.list().unwrap().is_empty());
}

#[test]
fn a_fork_of_what_was_applied_knows_what_was() {
    let place = Place::new();
    furnish(&place.source());
    let workspace = place.overlay();
    write(place.upper(&workspace.id).join("a"), "one\n");
    place.applied(&workspace.id);
    let fork = place.workspaces.fork(&workspace.id).unwrap();
    write(place.upper(&fork.id).join("a"), "two\n");
    assert_eq!(place.applied(&fork.id).applied.len(), 1);
    write(place.upper(&workspace.id).join("a"), "three\n");
    assert_eq!(conflicts(place.apply(&workspace.id)).len(), 1, "the fork is somebody else");
}

#[test]
fn what_nobody_changed_goes_with_whoever_had_it() {
    for mechanism in [Mechanism::Kernel, Mechanism::Copy] {
        let mut place = Place::new();
        furnish(&place.source());
        let idle = place.acquire(Hint::Overlay(place.source()), mechanism);
        let changed = place.acquire(Hint::Overlay(place.source()), mechanism);
        let scratch = place.acquire(Hint::Ephemeral { most: Bytes::mib(1) }, mechanism);
        let layer = match mechanism {
            Mechanism::Kernel => place.upper(&changed.id),
            Mechanism::Copy => changed.root.clone(),
        };
        write(layer.join("b"), "other\n");
        let state = place.dir.path().join("state");
        drop(open(&state));
        assert_eq!(place.workspaces.list().unwrap().len(), 3, "their owner lives");
        // As if it had been killed: its locks are gone, and nothing was released.
        place.workspaces = open(&place.dir.path().join("another"));
        place.workspaces = open(&state);
        let listed = place.workspaces.list().unwrap();
        assert_eq!(listed.iter().map(|one| &one.id).collect::<Vec<_>>(), [&changed.id]);
        assert!(listed[0].released);
        assert!(!place.home(&idle.id).exists() && !scratch.root.exists());
    }
}

#[test]
fn what_a_sandbox_still_has_is_nobodys_to_clear_away() {
    let mut place = Place::new();
    let copied = place.copied();
    let state = place.dir.path().join("state");
    // The sandbox of an owner that is gone already.
    let another = open(&state);
    let hold = another.hold(&copied.id).unwrap();
    place.workspaces = open(&place.dir.path().join("another"));
    drop(open(&state));
    assert_eq!(another.list().unwrap().len(), 1);
    drop((hold, another));
    assert!(open(&state).list().unwrap().is_empty());
}

#[test]
fn a_fork_that_is_kept_is_there_until_it_is_discarded() {
    let place = Place::new();
    let fork = place.workspaces.fork(&place.overlay().id).unwrap();
    place.workspaces.keep(&fork.id).unwrap();
    let state = place.dir.path().join("state");
    drop(place.workspaces);
    let later = open(&state);
    assert_eq!(later.list().unwrap().iter().map(|one| &one.id).collect::<Vec<_>>(), [&fork.id]);
    later.discard(&fork.id).unwrap();
}
