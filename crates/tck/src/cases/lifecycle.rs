//! From create to nothing left (C-30, C-31, C-32).

use std::collections::BTreeSet;
use std::time::Duration;

use stockade_core::{ErrorCode, Feature, Mount, SandboxId, Workspace};
use stockade_engine::{PoolSpec, Quota};

use crate::case::{case, check, same};
use crate::kit::{host_path, probe_command, start_engine_process, wait_until};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const LIFECYCLE_CASES: &[Case] = &[
    case!(
        "nothing is left of a sandbox when destroy returns",
        "C-30",
        check_destroy_leaves_nothing
    ),
    case!("destroying twice, or what never was, succeeds", "C-30", destroy_again),
    case!("destroying from many places at once succeeds everywhere", "C-30", destroy_at_once),
    case!("a backend destroys by id alone", "C-30", destroy_by_id),
    case!("a destroyed sandbox runs nothing", "C-30", nothing_after),
    case!("a sandbox is listed while it lives, and no longer", "C-31", check_sandbox_listing),
    case!("nothing is left of a sandbox that could not be built", "C-32", failed_create)
        .needs(&[Feature::LocalWorkspace]),
    case!("nothing is left of a sandbox whose mount does not exist", "C-32", failed_mount)
        .needs(&[Feature::ExtraMounts]),
    case!("many sandboxes at once all live and all go", "C-30", check_many_sandboxes),
    case!("sandboxes from a pool serve once, and none is left", "C-30", check_pooled_sandboxes),
    case!("nothing is left after the engine's process was killed", "C-31", engine_killed),
    case!("a tenant's quota holds, and is free again afterwards", "C-01", check_tenant_quota),
];

async fn check_destroy_leaves_nothing(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let running = room.start_ready(["ignore-signals-then-sleep", "600000"]).await?;
    room.destroy().await?;
    kit.gone(room.id()).await?;
    kit.all_gone().await?;
    same!("the end of what ran", running.outcome().await.ending, stockade_core::Ending::Cancelled);
    Ok(())
}

async fn destroy_again(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.destroy().await?;
    room.destroy().await?;
    let never: SandboxId = "neverwas0000000000".parse()?;
    kit.engine().destroy(&never).await?;
    let destroyed =
        tokio::time::timeout(Duration::from_secs(10), kit.backend().destroy(&never)).await;
    destroyed.map_err(|_| Stop::failed("expected destroy to answer, but it hangs"))??;
    kit.all_gone().await
}

async fn destroy_at_once(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let mut destroying = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (engine, id) = (kit.engine().clone(), room.id().clone());
        destroying.spawn(async move { engine.destroy(&id).await });
    }
    while let Some(destroyed) = destroying.join_next().await {
        destroyed??;
    }
    kit.soon_all_gone().await
}

async fn destroy_by_id(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let running = room.start_ready(["ignore-signals-then-sleep", "600000"]).await?;
    // Not through the handle that was given out: as another engine would.
    let backend = kit.subject().backend();
    backend.destroy(room.id()).await?;
    backend.destroy(room.id()).await?;
    let listed = backend.list().await?.contains(room.id());
    check!(!listed, "expected the sandbox to be gone, but the backend lists it");
    running.close().await?;
    room.destroy().await?;
    kit.all_gone().await
}

async fn nothing_after(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.destroy().await?;
    match kit.engine().exec(room.id(), probe_command(["exit", "0"])).await {
        Ok(_) => Err(Stop::failed("expected the command to be refused, but it was started")),
        Err(error) => {
            let fits = matches!(error.code(), ErrorCode::NotFound | ErrorCode::Gone);
            check!(fits, "expected not-found or gone, saw {error}");
            Ok(())
        }
    }
}

async fn check_sandbox_listing(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let leases = kit.engine().list().await?.leases;
    let lease = leases.iter().find(|lease| lease.body.id == *room.id());
    check!(lease.is_some_and(|lease| lease.alive), "expected a live lease, saw {leases:?}");
    let another = kit.another_engine(|_| ()).await?;
    let seen = another.list().await?.leases.iter().any(|lease| lease.body.id == *room.id());
    check!(seen, "expected another engine to see the sandbox, it does not");
    let reaped = another.reap().await?;
    check!(reaped.is_empty(), "expected nothing to reap, saw {reaped:?}");
    let listed = kit.backend().list().await?.contains(room.id());
    check!(listed, "expected the backend to list the sandbox, it does not");
    room.destroy().await?;
    kit.gone(room.id()).await
}

async fn failed_create(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.workspace = Workspace::Local(host_path(&kit.outside().join("no-such-directory"))?);
    let created = kit.engine().create(spec.clone()).await;
    check!(created.is_err(), "expected create to fail, but it made {created:?}");
    let run = kit.engine().run(spec, probe_command(["exit", "0"])).await;
    check!(run.is_err(), "expected run to fail, but it ran");
    kit.all_gone().await
}

async fn failed_mount(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    let source = host_path(&kit.outside().join("no-such-directory"))?;
    spec.mounts = vec![Mount { source, target: "/mounted".parse()?, read_only: true }];
    let created = kit.engine().create(spec).await;
    check!(created.is_err(), "expected create to fail, but it made {created:?}");
    kit.all_gone().await
}

async fn check_many_sandboxes(kit: Kit) -> Verdict {
    let mut creating = tokio::task::JoinSet::new();
    for number in 0..20 {
        let kit = kit.clone();
        creating.spawn(async move {
            let room = kit.room_with(kit.spec_apart(number)?).await?;
            room.run(["exit", "7"]).await?.exited(7)?;
            room.destroy().await
        });
    }
    while let Some(done) = creating.join_next().await {
        done??;
    }
    same!("sandboxes that were built", kit.asked_for().len(), 20);
    kit.all_gone().await
}

async fn check_pooled_sandboxes(kit: Kit) -> Verdict {
    let spec = kit.spec();
    let pool = PoolSpec { minimum: 1, maximum: 3, ..PoolSpec::of(spec.clone()) };
    let pool = kit.engine().open_pool(pool).await?;
    let mut given = BTreeSet::new();
    for _ in 0..3 {
        let room = kit.room_with(spec.clone()).await?;
        check!(
            given.insert(room.id().clone()),
            "expected another sandbox, saw {} again",
            room.id()
        );
        room.run(["exit", "7"]).await?.exited(7)?;
        room.destroy().await?;
        kit.gone(room.id()).await?;
    }
    pool.close().await;
    kit.all_gone().await
}

async fn engine_killed(kit: Kit) -> Verdict {
    let Some(process) = kit.engine_command() else {
        return Err(Stop::Unfit("the subject offers no engine process".into()));
    };
    let (mut child, line) = start_engine_process(process).await?;
    let id: SandboxId = line.parse()?;
    child.kill().await?;
    let engine = kit.another_engine(|_| ()).await?;
    let leases = engine.list().await?.leases;
    check!(leases.is_empty(), "expected a new engine to reap, saw {leases:?}");
    wait_until("nothing is left of it", || kit.gone(&id)).await?;
    kit.soon_all_gone().await
}

async fn check_tenant_quota(kit: Kit) -> Verdict {
    let quota = Quota { sandboxes: Some(1), ..Quota::default() };
    let engine = kit.another_engine(|config| config.default_quota = quota).await?;
    let spec = kit.spec();
    let first = engine.create(spec.clone()).await?;
    match engine.create(spec.clone()).await {
        Ok(_) => {
            return Err(Stop::failed("expected the second sandbox to be refused, but it stands"));
        }
        Err(error) => same!("the refusal's code", error.code(), ErrorCode::QuotaExceeded),
    }
    let mut other = spec.clone();
    other.tenant = "another-tenant".parse()?;
    let others = engine.create(other).await?;
    engine.destroy(&first).await?;
    let again = engine.create(spec).await?;
    for id in [others, again] {
        engine.destroy(&id).await?;
    }
    kit.all_gone().await
}
