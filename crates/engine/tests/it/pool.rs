//! Prepared sandboxes through the whole pipeline, with the mock and under simulated time: who gets
//! one, what is made where none fits, and that nothing is left however it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stockade_backends::mock::{Fault, Faults, Mock, Script, ScriptStep};
use stockade_core::*;
use stockade_engine::*;

use crate::common::drop_after;

struct PoolBench {
    engine: Engine,
    mock: Mock,
    state: tempfile::TempDir,
}

fn programs() -> Mock {
    Mock::new()
        .with_program("true", Script::default())
        .with_program("forever", Script(vec![ScriptStep::Sleep(Duration::MAX / 4)]))
}

async fn bench_with(mock: Mock, change: impl FnOnce(&mut EngineConfig)) -> PoolBench {
    let state = tempfile::tempdir().unwrap();
    let mut config = EngineConfig::at(state.path().join("state"));
    change(&mut config);
    let engine = Engine::open(config, vec![Arc::new(mock.clone())]).await.unwrap();
    PoolBench { engine, mock, state }
}

async fn bench(faults: Faults) -> PoolBench {
    bench_with(programs().with_faults(faults), |_| {}).await
}

fn spec() -> SandboxSpec {
    SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() }
}

fn sized(minimum: u32, maximum: u32) -> PoolSpec {
    PoolSpec { minimum, maximum, ..PoolSpec::of(spec()) }
}

fn labelled(name: &str) -> SandboxSpec {
    let labels = BTreeMap::from([("name".to_owned(), name.to_owned())]);
    SandboxSpec { labels, ..spec() }
}

/// Waits in simulated time, which costs none.
async fn until(pool: &Pool, wanted: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
    for _ in 0..10_000 {
        let status = pool.status();
        if wanted(&status) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come to that: {:?}", pool.status());
}

impl PoolBench {
    async fn pool(&self, pool: PoolSpec) -> Pool {
        let minimum = pool.minimum;
        let pool = self.engine.open_pool(pool).await.unwrap();
        until(&pool, |status| status.ready == minimum).await;
        pool
    }

    async fn there(&self) -> BTreeSet<SandboxId> {
        self.mock.list().await.unwrap().into_iter().collect()
    }

    async fn lease(&self, id: &SandboxId) -> LeaseBody {
        let leases = self.engine.list().await.unwrap().leases;
        leases.into_iter().find(|lease| lease.body.id == *id).unwrap().body
    }

    fn records_of(&self, id: &SandboxId) -> Vec<Event> {
        let records = self.engine.journal().records(Filter::default()).unwrap();
        let events = records.map(|record| record.unwrap().event);
        events.filter(|event| event.sandbox() == Some(id)).collect()
    }

    async fn nothing_left(&self) {
        assert_eq!(self.there().await, BTreeSet::new(), "a sandbox is left");
        assert_eq!(self.engine.list().await.unwrap().leases, [], "a lease is left");
    }

    async fn closes(&self) {
        self.engine.close().await.unwrap();
        self.nothing_left().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ready_one_is_given_in_the_callers_name_and_another_is_made() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(2, 8)).await;
    let ready = bench.there().await;
    let first = ready.first().unwrap();
    assert!(bench.lease(first).await.ready);
    assert_eq!(bench.engine.sandbox(first).err().unwrap().code(), ErrorCode::NotFound);

    let id = bench.engine.create(labelled("mine")).await.unwrap();
    assert!(ready.contains(&id), "it was made anew");
    let lease = bench.lease(&id).await;
    assert_eq!((lease.labels["name"].as_str(), lease.ready), ("mine", false));
    let records = bench.records_of(&id);
    assert!(matches!(records[..], [Event::Prepared { .. }, Event::Created { .. }]), "{records:?}");
    let execution = bench.engine.exec(&id, Command::program(["true"])).await.unwrap();
    assert!(execution.outcome().await.success());
    let status = until(&pool, |status| status.ready == 2).await;
    assert_eq!(status.used, 1);
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_takes_a_ready_one_and_leaves_nothing_of_it() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(1, 2)).await;
    let ready = bench.there().await;
    let execution = bench.engine.run(spec(), Command::program(["true"])).await.unwrap();
    assert!(ready.contains(execution.sandbox()));
    assert!(execution.outcome().await.success());
    assert!(!bench.there().await.contains(execution.sandbox()));
    let status = until(&pool, |status| status.ready == 1 && status.used == 0).await;
    assert_eq!((status.making, status.retiring), (0, 0));
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_made_as_if_there_were_no_pool() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(1, 1)).await;
    let ready = bench.there().await;
    let others = SandboxSpec { tenant: "other".parse().unwrap(), ..spec() };
    let mut tighter = spec();
    tighter.limits.memory = Some(Bytes::mib(8));
    for wish in [others, tighter] {
        let id = bench.engine.create(wish).await.unwrap();
        assert!(!ready.contains(&id));
    }
    assert_eq!((pool.status().ready, pool.status().used), (1, 0));
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn what_starts_with_a_captured_state_is_never_taken_from_a_pool() {
    let bench = bench(Faults::default()).await;
    bench.pool(sized(2, 8)).await;
    let ready = bench.there().await;
    let id = bench.engine.create(spec()).await.unwrap();
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    let copy = bench.engine.create_from(&snapshot.id, spec()).await.unwrap();
    assert!(ready.contains(&id) && !ready.contains(&copy), "a prepared one has no such state");
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn no_sandbox_is_ever_given_twice() {
    let bench = bench(Faults::default()).await;
    bench.pool(sized(2, 3)).await;
    let mut given = BTreeSet::new();
    for round in 0..50 {
        let id = bench.engine.create(spec()).await.unwrap();
        assert!(given.insert(id.clone()), "given again in round {round}");
        bench.engine.destroy(&id).await.unwrap();
    }
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_has_died_is_not_given_and_is_replaced() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(2, 8)).await;
    let dead = bench.there().await;
    dead.iter().for_each(|id| bench.mock.lose(id));
    let id = bench.engine.create(spec()).await.unwrap();
    assert!(!dead.contains(&id), "a dead one was given");
    until(&pool, |status| status.ready >= 2 && status.retiring == 0).await;
    assert!(bench.there().await.is_disjoint(&dead));

    // Without anybody asking, too.
    let dead: BTreeSet<_> = bench.there().await.into_iter().filter(|one| *one != id).collect();
    dead.iter().for_each(|id| bench.mock.lose(id));
    tokio::time::sleep(Duration::from_secs(3)).await;
    until(&pool, |status| status.ready >= 2 && status.retiring == 0).await;
    assert!(bench.there().await.is_disjoint(&dead));
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn another_directory_under_the_same_path_takes_another_sandbox() {
    let mock = programs().with_support(Feature::LocalWorkspace, Support::full("pretence"));
    let bench = bench_with(mock, |_| {}).await;
    let dir = bench.state.path().join("work");
    std::fs::create_dir(&dir).unwrap();
    let workspace = Workspace::Local(HostPath::try_from(dir.clone()).unwrap());
    let wish = SandboxSpec { workspace, ..spec() };
    bench.pool(PoolSpec { spec: wish.clone(), ..sized(2, 8) }).await;
    let ready = bench.there().await;
    let same = bench.engine.create(wish.clone()).await.unwrap();
    assert!(ready.contains(&same));
    std::fs::rename(&dir, bench.state.path().join("moved")).unwrap();
    std::fs::create_dir(&dir).unwrap();
    let other = bench.engine.create(wish).await.unwrap();
    assert!(!ready.contains(&other), "its walls are around the directory that was moved");
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn who_finds_the_pool_exhausted_is_told_so_after_its_deadline() {
    let bench = bench(Faults::default()).await;
    let patience = Duration::from_millis(300);
    bench.pool(PoolSpec { patience, ..sized(1, 1) }).await;
    let id = bench.engine.create(spec()).await.unwrap();
    let before = tokio::time::Instant::now();
    let error = bench.engine.create(spec()).await.unwrap_err();
    assert!((patience..patience * 2).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    let told = error.to_string();
    assert!(told.contains("default") && told.contains("maximum"), "{told}");
    bench.engine.destroy(&id).await.unwrap();
    bench.engine.create(spec()).await.unwrap();
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_the_order_they_came() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(0, 1)).await;
    let mut held = bench.engine.create(spec()).await.unwrap();
    let (served, mut serving) = tokio::sync::mpsc::channel(8);
    for number in 0..5u32 {
        let (engine, served) = (bench.engine.clone(), served.clone());
        tokio::spawn(async move {
            let id = engine.create(spec()).await.unwrap();
            served.send((number, id)).await.unwrap();
        });
        until(&pool, |status| status.waiting == number + 1).await;
    }
    for expected in 0..5 {
        bench.engine.destroy(&held).await.unwrap();
        let (number, id) = serving.recv().await.unwrap();
        assert_eq!(number, expected);
        held = id;
    }
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn giving_up_at_any_await_leaves_nothing() {
    for (minimum, maximum) in [(0, 1), (1, 1), (2, 4)] {
        for polls in 0..25 {
            let bench = bench(Faults::default()).await;
            let pool = bench.pool(sized(minimum, maximum)).await;
            drop_after(polls, bench.engine.run(spec(), Command::program(["forever"]))).await;
            if let Some(Ok(id)) = drop_after(polls, bench.engine.create(spec())).await {
                bench.engine.destroy(&id).await.unwrap();
            }
            until(&pool, |it| it.used + it.making + it.retiring + it.waiting == 0).await;
            bench.closes().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closing_tells_those_who_wait_and_leaves_nothing() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(1, 2)).await;
    for _ in 0..2 {
        bench.engine.create(spec()).await.unwrap();
    }
    let engine = bench.engine.clone();
    let waiting = tokio::spawn(async move { engine.create(spec()).await });
    until(&pool, |status| status.waiting == 1).await;
    bench.closes().await;
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), ErrorCode::Gone);
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_closed_pool_is_as_if_there_were_none_and_what_callers_have_stays_theirs() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(2, 2)).await;
    let mine = bench.engine.create(spec()).await.unwrap();
    pool.close().await;
    pool.close().await;
    assert_eq!(bench.there().await, BTreeSet::from([mine.clone()]));
    bench.engine.create(spec()).await.unwrap();
    assert!(bench.engine.pools().is_empty());
    bench.pool(sized(1, 2)).await;
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn shrinking_leaves_nothing_beyond_the_new_minimum() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(4, 8)).await;
    pool.resize(1, 2).unwrap();
    until(&pool, |status| status.ready == 1 && status.retiring == 0).await;
    assert_eq!(bench.there().await.len(), 1);
    assert!(pool.resize(3, 2).is_err());
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn demand_makes_it_grow_and_idleness_shrink_again() {
    let bench = bench(Faults::default()).await;
    let idle = Duration::from_secs(60);
    let pool = bench.pool(PoolSpec { idle, ..sized(1, 8) }).await;
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let engine = bench.engine.clone();
        crowd.push(tokio::spawn(async move { engine.create(spec()).await.unwrap() }));
    }
    for one in crowd {
        bench.engine.destroy(&one.await.unwrap()).await.unwrap();
    }
    let grown = until(&pool, |status| status.ready > 1 && status.making == 0).await;
    assert!(grown.ready <= 4, "{grown:?}");
    tokio::time::sleep(idle * 2).await;
    until(&pool, |status| status.ready == 1 && status.retiring == 0).await;
    assert_eq!(bench.there().await.len(), 1);
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_told_why_none_can_be_made_and_the_pool_recovers() {
    let create = Fault::ErrorTimes(Arc::new(3.into()));
    let bench = bench(Faults { create, ..Faults::default() }).await;
    let pool = bench.engine.open_pool(sized(1, 4)).await.unwrap();
    let error = bench.engine.create(spec()).await.unwrap_err();
    assert!(error.to_string().contains("injected"), "{error}");
    until(&pool, |status| status.ready >= 1).await;
    bench.engine.create(spec()).await.unwrap();
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn making_that_hangs_holds_up_neither_callers_for_ever_nor_the_end() {
    let bench = bench(Faults { create: Fault::Hang, ..Faults::default() }).await;
    let pool = bench.engine.open_pool(sized(1, 2)).await.unwrap();
    let error = bench.engine.create(spec()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooSlow);
    until(&pool, |status| status.making == 1).await;
    let before = tokio::time::Instant::now();
    bench.closes().await;
    assert!(before.elapsed() < Duration::from_secs(1), "it was waited for");
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_taken_down_is_known_and_tried_again() {
    let destroy = Fault::ErrorTimes(Arc::new(1.into()));
    let bench = bench(Faults { destroy, ..Faults::default() }).await;
    let pool = bench.pool(sized(1, 1)).await;
    let id = bench.there().await.pop_first().unwrap();
    pool.close().await;
    assert_eq!(bench.lease(&id).await.id, id, "its lease is kept");
    bench.engine.destroy(&id).await.unwrap();
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_ready_one_can_be_destroyed_by_its_id() {
    let bench = bench(Faults::default()).await;
    let pool = bench.pool(sized(1, 2)).await;
    let id = bench.there().await.pop_first().unwrap();
    bench.engine.destroy(&id).await.unwrap();
    assert!(!bench.there().await.contains(&id));
    until(&pool, |status| status.ready == 1).await;
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_engine_had_ready_when_it_died_is_reaped() {
    let PoolBench { engine, mock, state } = bench(Faults::default()).await;
    let pool = engine.open_pool(sized(3, 4)).await.unwrap();
    until(&pool, |status| status.ready == 3).await;
    drop((engine, pool));
    let config = EngineConfig::at(state.path().join("state"));
    let next = Engine::open(config, vec![Arc::new(mock.clone())]).await.unwrap();
    PoolBench { engine: next, mock, state }.nothing_left().await;
}

fn limited(sandboxes: u32) -> impl FnOnce(&mut EngineConfig) {
    move |config| config.default_quota = Quota { sandboxes: Some(sandboxes), ..Quota::default() }
}

#[tokio::test(start_paused = true)]
async fn ready_ones_count_as_their_tenants_and_make_room_for_what_is_wanted_now() {
    let bench = bench_with(programs(), limited(3)).await;
    let pool = bench.pool(sized(2, 3)).await;
    let mut tighter = spec();
    tighter.limits.memory = Some(Bytes::mib(8));
    for _ in 0..3 {
        // None fits, the quota is used up, and yet nothing is refused before all are really used.
        bench.engine.create(tighter.clone()).await.unwrap();
    }
    assert_eq!(bench.engine.create(tighter).await.unwrap_err().code(), ErrorCode::QuotaExceeded);
    assert_eq!(pool.status().ready, 0);
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_ready_ones_use_up_says_so() {
    let bench = bench_with(programs(), limited(2)).await;
    bench.pool(sized(2, 2)).await;
    let config = EngineConfig {
        default_quota: Quota { sandboxes: Some(2), ..Quota::default() },
        ..EngineConfig::at(bench.state.path().join("state"))
    };
    let other = Engine::open(config, vec![Arc::new(bench.mock.clone())]).await.unwrap();
    let error = other.create(spec()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    assert!(error.to_string().contains("2 of them ready in a pool"), "{error}");
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn what_can_never_fit_a_quota_ends_nothing_that_is_ready() {
    let quota = Quota { memory: Some(Bytes::mib(1024)), ..Quota::default() };
    let bench = bench_with(programs(), move |config| config.default_quota = quota).await;
    // Two of 512 MiB fit, and no third.
    let error = bench.engine.open_pool(sized(3, 3)).await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::Invalid);
    let pool = bench.pool(sized(2, 2)).await;
    let mut large = spec();
    large.limits.memory = Some(Bytes::mib(2048));
    let error = bench.engine.create(large.clone()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    assert!(error.to_string().contains("2 of them ready in a pool"), "{error}");
    assert_eq!(pool.status().ready, 2);
    large.limits.memory = Some(Bytes::mib(1024));
    bench.engine.create(large).await.unwrap();
    assert_eq!(pool.status().ready, 0);
    bench.closes().await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_cannot_be_is_refused() {
    let bench = bench_with(programs(), limited(4)).await;
    bench.pool(sized(1, 2)).await;
    let layers = r#"{"overlay": {"lower": "/a", "upper": "/u", "work": "/w"}}"#;
    let layered = SandboxSpec { workspace: serde_json::from_str(layers).unwrap(), ..spec() };
    let unknown = SandboxSpec { backend: "nonesuch".parse().unwrap(), ..spec() };
    for (pool, names) in [
        (sized(1, 2), "same spec"),
        (sized(0, 0), "maximum"),
        (sized(3, 2), "minimum"),
        (PoolSpec { spec: layered, ..sized(1, 2) }, "copy-on-write"),
        (PoolSpec { spec: unknown, ..sized(1, 2) }, "nonesuch"),
        (sized(5, 8), "may have 4"),
    ] {
        let error = bench.engine.open_pool(pool).await.err().unwrap().to_string();
        assert!(error.contains(names) && error.contains("remedy"), "{error}");
    }
    bench.closes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_gets_each_its_own_whoever_is_faster() {
    let bench = bench(Faults::default()).await;
    let pool = bench.engine.open_pool(sized(4, 6)).await.unwrap();
    let ask = |_| {
        let engine = bench.engine.clone();
        tokio::spawn(async move {
            let id = engine.create(spec()).await.unwrap();
            let execution = engine.exec(&id, Command::program(["true"])).await.unwrap();
            assert!(execution.outcome().await.success());
            engine.destroy(&id).await.unwrap();
            id
        })
    };
    let asking: Vec<_> = (0..200).map(ask).collect();
    let mut given = BTreeSet::new();
    for asked in asking {
        assert!(given.insert(asked.await.unwrap()), "given twice");
    }
    assert_eq!(pool.status().waiting, 0);
    bench.closes().await;
}
