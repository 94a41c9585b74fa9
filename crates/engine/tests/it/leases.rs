//! Leases with real processes: this test program executed again, in a role.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;

use stockade_core::{BackendName, Bytes, ErrorCode, Limits, SandboxId};
use stockade_engine::{Lease, LeaseBody, Leases, Quota, StaleLease, StateDir};
use tempfile::TempDir;

const STATE_DIR_VAR: &str = "STOCKADE_TEST_STATE";
const LEASE_COUNT: u32 = 40;

fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn leases_at(state: &Path) -> Leases {
    Leases::open(&StateDir::open(state).unwrap()).unwrap()
}

fn body(id: &str, tenant: &str) -> LeaseBody {
    let backend = BackendName::literal("mock");
    LeaseBody::new(id.parse().unwrap(), backend, tenant.parse().unwrap())
}

/// A lease of a sandbox with this limit on its memory.
fn body_with_memory(id: &str, memory: u64) -> LeaseBody {
    let limits = Limits { memory: Some(Bytes(memory)), ..Limits::default() };
    LeaseBody { limits, ..body(id, "team-a") }
}

fn sandboxes(most: u32) -> Quota {
    Quota { sandboxes: Some(most), ..Quota::default() }
}

fn memory(most: u64) -> Quota {
    Quota { memory: Some(Bytes(most)), ..Quota::default() }
}

fn take(leases: &Leases, id: &str) -> Lease {
    leases.acquire(body(id, "default"), Quota::default()).unwrap()
}

fn states(leases: &Leases) -> Vec<(String, bool)> {
    let listing = leases.list().unwrap();
    assert_eq!(listing.malformed, []);
    listing.leases.into_iter().map(|info| (info.body.id.to_string(), info.alive)).collect()
}

fn lease_files(state: &Path) -> Vec<String> {
    let entries = fs::read_dir(state.join("leases")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "lock");
    names.sort();
    names
}

#[test]
fn a_lease_is_alive_until_it_is_released() {
    let place = place();
    let leases = leases_at(place.path());
    let mut asked = body("a1", "team-a");
    asked.labels.insert("k".into(), "v".into());
    let lease = leases.acquire(asked.clone(), Quota::default()).unwrap();
    assert_eq!(lease.body(), &asked);
    let listing = leases_at(place.path()).list().unwrap();
    assert_eq!((&listing.leases[0].body, listing.leases[0].alive), (&asked, true));
    assert!(leases.claim_stale().unwrap().is_empty());
    lease.release().unwrap();
    assert_eq!(lease_files(place.path()), [""; 0]);
}

#[test]
fn a_dropped_lease_is_left_for_a_reaper() {
    let place = place();
    let leases = leases_at(place.path());
    drop(take(&leases, "a"));
    assert_eq!(states(&leases), [("a".into(), false)]);
    let stale = leases.claim_stale().unwrap();
    assert!(leases.claim_stale().unwrap().is_empty(), "claimed twice");
    assert_eq!(states(&leases), [("a".into(), true)], "held by its reaper");
    drop(stale);
    let stale = leases.claim_stale().unwrap();
    assert_eq!(stale[0].body().id.as_str(), "a", "what was given back can be claimed again");
    stale.into_iter().for_each(|stale| stale.finish().unwrap());
    assert_eq!(lease_files(place.path()), [""; 0]);
}

#[test]
fn one_id_has_one_lease() {
    let place = place();
    let leases = leases_at(place.path());
    let lease = take(&leases, "a");
    let error = leases.acquire(body("a", "default"), Quota::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Invalid);
    assert_eq!(lease_files(place.path()), ["a.json"], "a failed try leaves nothing");
    assert_eq!(states(&leases), [("a".into(), true)]);
    drop(lease);
}

#[test]
fn a_quota_counts_the_live_leases_of_its_tenant_only() {
    let place = place();
    let leases = leases_at(place.path());
    let _other = leases.acquire(body("o", "team-b"), Quota::default()).unwrap();
    drop(leases.acquire(body("dead", "team-a"), sandboxes(1)).unwrap());
    let first = leases.acquire(body("a", "team-a"), sandboxes(2)).unwrap();
    let _second = leases.acquire(body("b", "team-a"), sandboxes(2)).unwrap();
    let error = leases.acquire(body("c", "team-a"), sandboxes(2)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::QuotaExceeded);
    assert!(error.message().contains("team-a") && error.hint().is_some(), "{error}");
    first.release().unwrap();
    leases.acquire(body("c", "team-a"), sandboxes(2)).unwrap();
}

#[test]
fn a_quota_holds_when_many_ask_at_once() {
    let place = place();
    let leases = leases_at(place.path());
    let start = Barrier::new(8);
    let taken: Vec<Lease> = std::thread::scope(|scope| {
        let ask = |number: u32| {
            start.wait();
            leases.acquire(body(&format!("s{number}"), "team-a"), sandboxes(3)).ok()
        };
        let asking: Vec<_> = (0..8).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().filter_map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(taken.len(), 3);
}

#[test]
fn a_quota_on_memory_holds_when_many_ask_at_once_and_is_free_with_the_lease() {
    let place = place();
    let start = Barrier::new(8);
    let taken: Vec<Lease> = std::thread::scope(|scope| {
        // Each with a handle of its own, as engines in other processes have.
        let ask = |number: u32| {
            let leases = leases_at(place.path());
            start.wait();
            leases.acquire(body_with_memory(&format!("s{number}"), 4), memory(13)).ok()
        };
        let asking: Vec<_> = (0..8).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().filter_map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(taken.len(), 3);
    let leases = leases_at(place.path());
    let more = || leases.acquire(body_with_memory("more", 4), memory(13));
    assert_eq!(more().unwrap_err().code(), ErrorCode::QuotaExceeded);
    // An owner that died without a word holds nothing any more.
    drop(taken);
    more().unwrap().release().unwrap();
}

#[test]
fn a_killed_owner_holds_nothing_of_a_quota() {
    let place = place();
    let leases = leases_at(place.path());
    let mut owner = KilledHolder::start("leases::role_own_memory", place.path());
    owner.said();
    let ask = || leases.acquire(body_with_memory("more", 4), memory(7));
    assert_eq!(ask().unwrap_err().code(), ErrorCode::QuotaExceeded);
    drop(owner);
    ask().unwrap();
}

#[test]
fn a_held_file_that_is_no_lease_is_not_passed_over_where_leases_are_counted() {
    let place = place();
    let leases = leases_at(place.path());
    let file = place.path().join("leases/cut.json");
    let held = fs::File::create(&file).unwrap();
    held.lock().unwrap();
    for quota in [memory(8), sandboxes(8)] {
        let error = leases.acquire(body_with_memory("a", 4), quota).unwrap_err();
        assert_eq!(error.code(), ErrorCode::StateUnavailable);
        assert!(error.message().contains("cut.json") && error.hint().is_some(), "{error}");
    }
    leases.acquire(body_with_memory("a", 4), Quota::default()).unwrap().release().unwrap();
    // One that no process holds is of no live sandbox. Unlocked, since a child of another test may have a copy.
    held.unlock().unwrap();
    leases.acquire(body_with_memory("a", 4), memory(8)).unwrap();
}

#[test]
fn a_lease_from_before_limits_were_kept_is_read_and_not_taken_for_nothing() {
    let place = place();
    let leases = leases_at(place.path());
    let old = leases.acquire(body("old", "team-a"), Quota::default()).unwrap();
    let json = fs::read_to_string(place.path().join("leases/old.json")).unwrap();
    assert!(!json.contains("limits"), "{json}");
    let error = leases.acquire(body_with_memory("a", 4), memory(8)).unwrap_err();
    assert!(error.message().contains("sandbox old"), "{error}");
    old.release().unwrap();
    leases.acquire(body_with_memory("a", 4), memory(8)).unwrap();
}

#[test]
fn files_that_are_no_leases_are_named_and_left_alone() {
    let place = place();
    let leases = leases_at(place.path());
    let lease = take(&leases, "good");
    let dir = place.path().join("leases");
    let good = fs::read(dir.join("good.json")).unwrap();
    let wrong: [(&str, &[u8]); 5] = [
        ("empty.json", b""),
        ("garbage.json", b"\xff\x00{"),
        ("huge.json", &[b' '; 70_000]),
        ("renamed.json", &good),
        ("unknown.json", b"{\"id\": \"unknown\", \"more\": 1}"),
    ];
    for (name, content) in wrong {
        fs::write(dir.join(name), content).unwrap();
    }
    let listing = leases.list().unwrap();
    assert_eq!(listing.leases.len(), 1);
    let named: Vec<PathBuf> = listing.malformed.iter().map(|lease| lease.file.clone()).collect();
    assert_eq!(named, wrong.map(|(name, _)| dir.join(name)));
    assert!(listing.malformed.iter().all(|lease| !lease.problem.is_empty()));
    drop(lease);
    let claimed: Vec<SandboxId> = claimed_ids(&leases.claim_stale().unwrap());
    assert_eq!(claimed, ["good".parse().unwrap()]);
    assert_eq!(lease_files(place.path()).len(), 6);
}

mod needs_root {
    use super::*;

    #[test]
    fn a_lease_of_another_user_is_no_lease_and_not_passed_over_where_leases_are_counted() {
        let place = place();
        let leases = leases_at(place.path());
        let held = leases.acquire(body_with_memory("a", 4), memory(8)).unwrap();
        let file = place.path().join("leases/a.json");
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        let listing = leases.list().unwrap();
        assert_eq!((listing.leases.len(), listing.malformed.len()), (0, 1));
        assert!(listing.malformed[0].problem.contains("user 65534"));
        let error = leases.acquire(body_with_memory("b", 4), memory(8)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::StateUnavailable);
        held.release().unwrap();
        leases.acquire(body_with_memory("b", 4), memory(8)).unwrap();
    }
}

fn claimed_ids(stale: &[StaleLease]) -> Vec<SandboxId> {
    stale.iter().map(|stale| stale.body().id.clone()).collect()
}

#[test]
fn labels_that_are_too_long_are_refused() {
    let place = place();
    let mut asked = body("a", "default");
    asked.labels.insert("k".into(), "v".repeat(70_000));
    let error = leases_at(place.path()).acquire(asked, Quota::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    assert_eq!(lease_files(place.path()), [""; 0]);
}

#[test]
fn drafts_of_dead_owners_are_cleared_away_and_those_of_live_ones_stay() {
    let place = place();
    let leases = leases_at(place.path());
    let dir = place.path().join("leases");
    fs::write(dir.join(".lease-1-dead"), "{").unwrap();
    let live = fs::File::create(dir.join(".lease-2-live")).unwrap();
    live.lock().unwrap();
    assert!(leases.claim_stale().unwrap().is_empty());
    assert_eq!(lease_files(place.path()), [".lease-2-live"]);
}

#[test]
fn leases_are_taken_while_others_reap_all_the_time() {
    let place = place();
    let leases = leases_at(place.path());
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| {
            for number in 0..300 {
                take(&leases, &format!("n{number}")).release().unwrap();
            }
        });
        while !taking.is_finished() {
            assert!(leases.claim_stale().unwrap().is_empty(), "a live lease was claimed");
            assert!(states(&leases).iter().all(|(_, alive)| *alive));
        }
    });
    assert_eq!(lease_files(place.path()), [""; 0]);
}

#[test]
fn a_lease_that_is_handed_over_is_held_and_listed_all_the_time() {
    let place = place();
    let leases = leases_at(place.path());
    let mut asked = body("a", "team-a");
    asked.ready = true;
    let mut lease = leases.acquire(asked, sandboxes(1)).unwrap();
    std::thread::scope(|scope| {
        let handing = scope.spawn(|| {
            for number in 0..300 {
                let labels = BTreeMap::from([("n".to_owned(), number.to_string())]);
                lease.hand_over(&labels).unwrap();
            }
        });
        while !handing.is_finished() {
            assert_eq!(states(&leases), [("a".into(), true)]);
            assert!(leases.claim_stale().unwrap().is_empty(), "a live lease was claimed");
            let more = leases.acquire(body("b", "team-a"), sandboxes(1));
            assert_eq!(more.unwrap_err().code(), ErrorCode::QuotaExceeded);
        }
    });
    let seen = leases.list().unwrap().leases.remove(0).body;
    assert_eq!((seen.labels["n"].as_str(), seen.ready), ("299", false));
    assert_eq!(lease.body(), &seen);
    lease.release().unwrap();
    assert_eq!(lease_files(place.path()), [""; 0]);
}

/// A child that never outlives its test.
struct KilledHolder(Child);

impl Drop for KilledHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledHolder {
    /// This test program again, in a role that waits for its input.
    fn start(role: &str, state: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(STATE_DIR_VAR, state).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// What it said up to its word `done`.
    fn said(&mut self) -> Vec<String> {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        let mut said: Vec<String> = Vec::new();
        for line in lines {
            if line == "done" {
                return said;
            }
            said.extend(line.strip_prefix("claimed ").map(str::to_owned));
        }
        panic!("the role ended early");
    }

    /// Lets a role that waits go on.
    fn go(&mut self) {
        drop(self.0.stdin.take());
    }
}

fn leases_of_role() -> Leases {
    leases_at(Path::new(
        &std::env::var_os(STATE_DIR_VAR).expect("a role is given its state directory"),
    ))
}

fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
#[ignore = "a role for processes that other tests start"]
fn role_own() {
    let leases = leases_of_role();
    let owned: Vec<Lease> =
        (0..LEASE_COUNT).map(|number| take(&leases, &format!("s{number}"))).collect();
    println!("\ndone");
    wait_for_go();
    drop(owned);
}

#[test]
#[ignore = "a role for processes that other tests start"]
fn role_own_memory() {
    let owned = leases_of_role().acquire(body_with_memory("s", 4), memory(7)).unwrap();
    println!("\ndone");
    wait_for_go();
    drop(owned);
}

#[test]
#[ignore = "a role for processes that other tests start"]
fn role_claim() {
    let leases = leases_of_role();
    println!("\ndone");
    wait_for_go();
    for stale in leases.claim_stale().unwrap() {
        println!("\nclaimed {}", stale.body().id);
        stale.finish().unwrap();
    }
    println!("\ndone");
}

#[test]
fn the_leases_of_a_killed_owner_are_dead_and_can_be_claimed() {
    let place = place();
    let leases = leases_at(place.path());
    let mut owner = KilledHolder::start("leases::role_own", place.path());
    owner.said();
    let owner_id = owner.0.id();
    let listing = leases.list().unwrap();
    assert_eq!(listing.leases.len(), LEASE_COUNT as usize);
    assert!(listing.leases.iter().all(|info| info.alive && info.body.owner == owner_id));
    assert!(leases.claim_stale().unwrap().is_empty());
    drop(owner);
    assert!(states(&leases).iter().all(|(_, alive)| !alive));
    assert_eq!(leases.claim_stale().unwrap().len(), LEASE_COUNT as usize);
}

#[test]
fn two_claimers_at_once_get_each_lease_once() {
    let place = place();
    let leases = leases_at(place.path());
    (0..LEASE_COUNT).for_each(|number| drop(take(&leases, &format!("s{number}"))));
    let mut claimers = [0, 1].map(|_| KilledHolder::start("leases::role_claim", place.path()));
    claimers.iter_mut().for_each(|claimer| drop(claimer.said()));
    claimers.iter_mut().for_each(KilledHolder::go);
    let claimed: Vec<String> = claimers.iter_mut().flat_map(KilledHolder::said).collect();
    let distinct: BTreeSet<&String> = claimed.iter().collect();
    assert_eq!((claimed.len(), distinct.len()), (LEASE_COUNT as usize, LEASE_COUNT as usize));
    assert_eq!(lease_files(place.path()), [""; 0]);
}

#[test]
fn leases_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Leases>();
    shared::<Lease>();
    shared::<StaleLease>();
}
