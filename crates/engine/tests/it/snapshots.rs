//! Stored snapshots: kept by content, carried as one file, and refused when anything about them is off.

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use stockade_backends::mock::Mock;
use stockade_core::{
    BackendName, Bytes, Command, ErrorCode, FilesExt, SandboxId, SandboxSpec, SnapshotKind,
};
use stockade_engine::{Engine, EngineConfig, Snapshot, Snapshots, StateDir};
use tempfile::TempDir;

const MAX_IMPORT_SIZE: Bytes = Bytes(1 << 30);

struct SnapshotBench {
    state: TempDir,
    engine: Engine,
}

impl SnapshotBench {
    async fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let config = EngineConfig::at(state.path().join("state"));
        let engine = Engine::open(config, vec![Arc::new(Mock::new())]).await.unwrap();
        Self { state, engine }
    }

    fn store(&self) -> &Arc<Snapshots> {
        self.engine.snapshots()
    }

    fn below(&self, name: &str) -> PathBuf {
        self.state.path().join("state/snapshots").join(name)
    }

    async fn sandbox(&self, content: &'static str) -> SandboxId {
        let id = self.engine.create(spec()).await.unwrap();
        self.write(&id, content).await;
        id
    }

    async fn write(&self, id: &SandboxId, content: &'static str) {
        let sandbox = self.engine.sandbox(id).unwrap();
        sandbox.files().unwrap().write_all(&path(), content.into()).await.unwrap();
    }

    async fn read(&self, id: &SandboxId) -> String {
        let sandbox = self.engine.sandbox(id).unwrap();
        let bytes = sandbox.files().unwrap().read_all(&path(), 100).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    async fn taken(&self, content: &'static str) -> Snapshot {
        let id = self.sandbox(content).await;
        let snapshot = self.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
        self.engine.destroy(&id).await.unwrap();
        snapshot
    }

    fn exported(&self, snapshot: &Snapshot) -> Vec<u8> {
        let mut out = Vec::new();
        self.store().export(snapshot, &mut out).unwrap();
        out
    }

    fn import(&self, bytes: &[u8]) -> stockade_core::Result<Snapshot> {
        self.store().import(&mut Cursor::new(bytes), MAX_IMPORT_SIZE)
    }

    fn nothing_stored(&self) {
        for part in ["objects", "named", "drafts"] {
            assert_eq!(names(&self.below(part)), Vec::<String>::new(), "{part}");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn spec() -> SandboxSpec {
    SandboxSpec { backend: "mock".parse().unwrap(), ..SandboxSpec::default() }
}

fn path() -> stockade_core::SandboxPath {
    "file".parse().unwrap()
}

#[tokio::test]
async fn a_state_is_captured_brought_back_and_made_into_another_sandbox() {
    let bench = SnapshotBench::new().await;
    let id = bench.sandbox("before").await;
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    bench.write(&id, "after").await;
    let copy = bench.engine.create_from(&snapshot.id, spec()).await.unwrap();
    assert_eq!(bench.read(&copy).await, "before");
    bench.engine.restore(&id, &snapshot.id).await.unwrap();
    assert_eq!(bench.read(&id).await, "before");
    let found = bench.store().list().unwrap();
    assert_eq!(found.snapshots, std::slice::from_ref(&snapshot));
    bench.store().remove(&snapshot.id).unwrap();
    bench.nothing_stored();
    let gone = bench.engine.restore(&id, &snapshot.id).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::NotFound);
    bench.engine.close().await.unwrap();
}

#[tokio::test]
async fn copies_are_all_or_none_and_leave_no_snapshot() {
    let bench = SnapshotBench::new().await;
    let id = bench.sandbox("same").await;
    let copies = bench.engine.fork(&id, 20).await.unwrap();
    assert_eq!(copies.len(), 20);
    for (copy, content) in copies.iter().zip(["a", "b", "c"]) {
        assert_eq!(bench.read(copy).await, "same");
        bench.write(copy, content).await;
    }
    assert_eq!(bench.read(&id).await, "same");
    bench.nothing_stored();
    for count in [0, 1001] {
        let refused = bench.engine.fork(&id, count).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Invalid);
    }
    bench.engine.close().await.unwrap();
    assert_eq!(bench.engine.list().await.unwrap().leases, []);
}

#[tokio::test]
async fn copies_that_a_quota_forbids_leave_nothing() {
    let state = tempfile::tempdir().unwrap();
    let mut config = EngineConfig::at(state.path().join("state"));
    config.default_quota.sandboxes = Some(3);
    let engine = Engine::open(config, vec![Arc::new(Mock::new())]).await.unwrap();
    let id = engine.create(spec()).await.unwrap();
    let refused = engine.fork(&id, 3).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    assert_eq!(engine.list().await.unwrap().leases.len(), 1);
    assert_eq!(engine.fork(&id, 2).await.unwrap().len(), 2);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn the_same_bytes_are_kept_once() {
    let bench = SnapshotBench::new().await;
    let (one, two) = (bench.taken("same").await, bench.taken("same").await);
    assert_eq!(names(&bench.below("objects")).len(), 1);
    bench.store().remove(&one.id).unwrap();
    bench.store().parts(&two).unwrap();
    bench.store().remove(&two.id).unwrap();
    bench.nothing_stored();
}

#[tokio::test]
async fn an_environment_is_never_part_of_it() {
    let bench = SnapshotBench::new().await;
    let mut secret = spec();
    secret.env.insert("TOKEN".parse().unwrap(), "hushhush".into());
    let id = bench.engine.create(secret).await.unwrap();
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    let kept = fs::read(bench.below("named").join(snapshot.id.as_str())).unwrap();
    for bytes in [kept, bench.exported(&snapshot)] {
        assert!(!bytes.windows(8).any(|window| window == b"hushhush"));
    }
    bench.engine.close().await.unwrap();
}

/// The same file with another manifest, sealed as a forger can.
fn forged(file: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let head = b"stockade-snapshot 1\n".len();
    let length = u32::from_le_bytes(file[head..head + 4].try_into().unwrap()) as usize;
    let (sealed, rest) = file[head + 4..].split_at(length);
    let mut manifest = serde_json::from_slice(&sealed[65..]).unwrap();
    change(&mut manifest);
    let json = serde_json::to_vec(&manifest).unwrap();
    let mut made = file[..head].to_vec();
    made.extend(u32::try_from(json.len() + 65).unwrap().to_le_bytes());
    let hash: String = Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect();
    made.extend(format!("{hash}\n").into_bytes());
    made.extend(json);
    made.extend(&rest[..rest.len() - 32]);
    let seal = Sha256::digest(&made);
    made.extend(seal);
    made
}

/// What a forger would like a snapshot to say about the host it is brought back on.
fn host_things() -> [(&'static str, serde_json::Value); 6] {
    let mount = json!({ "source": "/", "target": "/host", "readOnly": false });
    [
        ("mounts", json!([mount])),
        ("workspace", json!({ "local": "/root" })),
        ("workspace", json!({ "overlay": { "lower": "/", "upper": "/u", "work": "/w" } })),
        ("image", json!({ "directory": "/" })),
        ("without", json!(["memory-limit"])),
        ("network", json!({ "egress": ["example.org"] })),
    ]
}

#[tokio::test]
async fn one_that_names_things_of_the_host_is_refused_however_well_it_is_sealed() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let file = here.exported(&here.taken("content").await);
    for (field, value) in host_things() {
        let forged = forged(&file, |manifest| manifest["spec"][field] = value);
        let refused = there.import(&forged).unwrap_err();
        assert!(refused.to_string().contains(field), "{field}: {refused}");
        assert_eq!(refused.code(), ErrorCode::Invalid);
    }
    there.nothing_stored();
}

#[tokio::test]
async fn one_of_the_format_that_named_things_of_the_host_is_read_without_them() {
    let here = SnapshotBench::new().await;
    let file = here.exported(&here.taken("content").await);
    for (field, value) in host_things() {
        let there = SnapshotBench::new().await;
        let old = forged(&file, |manifest| {
            manifest["format"] = json!(1);
            manifest["spec"][field] = value;
        });
        let read = there.import(&old).unwrap();
        assert_eq!(read.spec.caller_only(), Vec::<&str>::new(), "{field}");
        assert_eq!(there.store().get(&read.id).unwrap(), read, "{field}");
    }
}

#[tokio::test]
async fn what_was_shown_of_the_host_is_not_captured_with_the_rest() {
    let bench = SnapshotBench::new().await;
    let mut asked = spec();
    asked.without.insert(stockade_core::Feature::DiskLimit);
    let id = bench.engine.create(asked).await.unwrap();
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    assert_eq!(snapshot.spec.caller_only(), Vec::<&str>::new());
    bench.engine.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_refused_although_its_snapshot_is_stored() {
    let bench = SnapshotBench::new().await;
    let snapshot = bench.taken("content").await;
    let file = bench.exported(&snapshot);
    for at in file.len() / 2..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 1;
        assert!(bench.import(&changed).is_err(), "byte {at} of {}", file.len());
        assert!(bench.import(&file[..at]).is_err(), "{at} bytes of {}", file.len());
    }
    assert!(bench.import(&[&file[..], b"x"].concat()).is_err());
    assert_eq!(bench.store().list().unwrap().snapshots, std::slice::from_ref(&snapshot));
    bench.store().parts(&snapshot).unwrap();
}

#[tokio::test]
async fn it_travels_as_one_file_and_arrives_the_same() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let snapshot = here.taken("content").await;
    let file = here.exported(&snapshot);
    assert_eq!(there.import(&file).unwrap(), snapshot);
    assert_eq!(there.import(&file).unwrap(), snapshot, "twice is once");
    let id = there.engine.create_from(&snapshot.id, spec()).await.unwrap();
    assert_eq!(there.read(&id).await, "content");
    assert_eq!(there.exported(&snapshot), file);
    there.engine.close().await.unwrap();
}

#[tokio::test]
async fn a_file_in_which_any_byte_is_different_is_refused_and_leaves_nothing() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let file = here.exported(&here.taken("content").await);
    for at in 0..file.len() {
        for flip in [1, 0x80] {
            let mut changed = file.clone();
            changed[at] ^= flip;
            assert!(there.import(&changed).is_err(), "byte {at} of {}", file.len());
        }
    }
    there.nothing_stored();
}

#[tokio::test]
async fn a_file_that_ends_early_or_late_is_refused_and_leaves_nothing() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let file = here.exported(&here.taken("content").await);
    for length in 0..file.len() {
        let cut = there.import(&file[..length]).unwrap_err();
        assert_eq!(cut.code(), ErrorCode::Invalid, "{length} of {}: {cut}", file.len());
    }
    assert!(there.import(&[&file[..], b"x"].concat()).is_err());
    there.nothing_stored();
}

#[tokio::test]
async fn what_is_newer_larger_or_something_else_is_refused_by_name() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let snapshot = here.taken("content").await;
    let file = here.exported(&snapshot);
    let newer = [b"stockade-snapshot 2\n", &file[20..]].concat();
    assert_eq!(there.import(&newer).unwrap_err().code(), ErrorCode::Unsupported);
    let other = there.import(b"PK\x03\x04 and so on, a stranger's file").unwrap_err();
    assert!(other.to_string().contains("not an exported snapshot"), "{other}");
    let little = Bytes(snapshot.size().0 - 1);
    let large = there.store().import(&mut Cursor::new(&file), little).unwrap_err();
    assert_eq!(large.code(), ErrorCode::TooLarge);
    there.nothing_stored();
}

#[tokio::test]
async fn a_stored_one_that_was_changed_is_never_brought_back() {
    let bench = SnapshotBench::new().await;
    let id = bench.sandbox("before").await;
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    bench.write(&id, "after").await;
    let object = bench.below("objects").join(&names(&bench.below("objects"))[0]);
    // Found right once, so that a change after that is noticed as well.
    bench.store().parts(&snapshot).unwrap();
    let whole = fs::read(&object).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::remove_file(&object).unwrap();
        fs::write(&object, changed).unwrap();
        let refused = bench.engine.restore(&id, &snapshot.id).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Invalid, "byte {at}: {refused}");
    }
    assert_eq!(bench.read(&id).await, "after");
    fs::remove_file(&object).unwrap();
    let missing = bench.engine.create_from(&snapshot.id, spec()).await.unwrap_err();
    assert_eq!(missing.code(), ErrorCode::Invalid);
    let named = bench.below("named").join(snapshot.id.as_str());
    let whole = fs::read(&named).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&named, changed).unwrap();
        assert!(bench.store().get(&snapshot.id).is_err(), "byte {at}");
    }
    assert_eq!(bench.store().list().unwrap().damaged.len(), 1);
    bench.engine.close().await.unwrap();
    assert_eq!(bench.engine.list().await.unwrap().leases, []);
}

#[tokio::test]
async fn nothing_is_collected_while_nobody_knows_what_is_needed() {
    let bench = SnapshotBench::new().await;
    let (one, two) = (bench.taken("one").await, bench.taken("two").await);
    fs::write(bench.below("named").join(one.id.as_str()), "nonsense").unwrap();
    bench.store().collect().unwrap();
    assert_eq!(names(&bench.below("objects")).len(), 2);
    bench.store().remove(&one.id).unwrap();
    assert_eq!(names(&bench.below("objects")).len(), 1);
    bench.store().parts(&two).unwrap();
}

#[tokio::test]
async fn one_that_is_passing_goes_with_its_holder() {
    let (here, there) = (SnapshotBench::new().await, SnapshotBench::new().await);
    let snapshot = here.taken("passing").await;
    let bytes = here.exported(&snapshot);
    let held = here.store().hold_transient(snapshot.clone()).unwrap();
    here.store().collect().unwrap();
    assert_eq!(here.store().get(&snapshot.id).unwrap(), snapshot);
    drop(held);
    here.nothing_stored();
    let held = there.store().import_transient(&mut Cursor::new(&bytes), MAX_IMPORT_SIZE).unwrap();
    there.store().collect().unwrap();
    assert_eq!(there.store().get(&held.snapshot().id).unwrap(), snapshot);
    held.end().unwrap();
    there.nothing_stored();
    // One that was there before is not the holder's to remove.
    there.import(&bytes).unwrap();
    drop(there.store().import_transient(&mut Cursor::new(&bytes), MAX_IMPORT_SIZE).unwrap());
    assert_eq!(there.store().list().unwrap().snapshots, [snapshot]);
}

#[tokio::test]
async fn one_whose_holder_was_killed_goes_with_the_next_collection() {
    let bench = SnapshotBench::new().await;
    let (passing, kept) = (bench.taken("passing").await, bench.taken("kept").await);
    for (draft, id) in [("one", passing.id.as_str()), ("two", ""), ("three", "../../named/x")] {
        let left = bench.below("drafts").join(draft);
        fs::create_dir_all(left.join("parts")).unwrap();
        fs::write(left.join("held"), "").unwrap();
        fs::write(left.join("passing"), id).unwrap();
    }
    bench.store().collect().unwrap();
    assert_eq!(bench.store().list().unwrap().snapshots, [kept]);
    assert_eq!(names(&bench.below("drafts")), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_take_remove_and_collect_at_once() {
    let bench = Arc::new(SnapshotBench::new().await);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                for content in ["a", "b", "c", "d"] {
                    let snapshot = bench.taken(content).await;
                    bench.store().parts(&snapshot).unwrap();
                    bench.store().remove(&snapshot.id).unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    bench.nothing_stored();
}

/// Plays a process that stores snapshots for ever, if this test program was started as one.
const STORE_AT: &str = "STOCKADE_TEST_STORE_AT";

#[tokio::test]
async fn whoever_is_killed_at_any_instant_leaves_whole_snapshots_and_nothing_else() {
    if let Some(place) = std::env::var_os(STORE_AT) {
        store_for_ever(Path::new(&place)).await;
    }
    let place = tempfile::tempdir().unwrap();
    let state = StateDir::open(place.path().join("state")).unwrap();
    let store = Snapshots::open(&state).unwrap();
    for round in 0..30u32 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("snapshots::whoever_is_killed_at_any_instant_leaves_whole_snapshots_and_nothing_else")
            .env(STORE_AT, place.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Each line is one that was stored: the kill comes somewhere after a few of them.
        let mut out = child.stdout.take().unwrap();
        let mut seen = 0;
        let mut byte = [0];
        while seen <= round % 7 && out.read(&mut byte).unwrap() == 1 {
            seen += u32::from(byte[0] == b'!');
        }
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 131));
        child.kill().unwrap();
        child.wait().unwrap();
        let listing = store.list().unwrap();
        assert!(listing.damaged.is_empty(), "{:?}", listing.damaged);
        for snapshot in &listing.snapshots {
            store.parts(snapshot).unwrap();
        }
        store.collect().unwrap();
        assert_eq!(names(&place.path().join("state/snapshots/drafts")), Vec::<String>::new());
    }
    for snapshot in store.list().unwrap().snapshots {
        store.remove(&snapshot.id).unwrap();
    }
    for part in ["objects", "named", "drafts"] {
        let left = names(&place.path().join("state/snapshots").join(part));
        assert_eq!(left, Vec::<String>::new(), "{part}");
    }
}

async fn store_for_ever(place: &Path) {
    let config = EngineConfig::at(place.join("state"));
    let engine = Engine::open(config, vec![Arc::new(Mock::new())]).await.unwrap();
    let id = engine.create(spec()).await.unwrap();
    for number in 0u64.. {
        let sandbox = engine.sandbox(&id).unwrap();
        let content = format!("{number} {}", std::process::id()).into_bytes();
        sandbox.files().unwrap().write_all(&path(), content.into()).await.unwrap();
        let snapshot = engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
        println!("!");
        if number % 3 == 0 {
            engine.snapshots().remove(&snapshot.id).unwrap();
        }
    }
}

#[tokio::test]
async fn a_running_program_does_not_keep_its_sandbox_from_being_captured() {
    let bench = SnapshotBench::new().await;
    let id = bench.sandbox("busy").await;
    let execution = bench.engine.exec(&id, Command::program(["tick", "60000"])).await;
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    assert_eq!(snapshot.backend, BackendName::literal("mock"));
    drop(execution);
    bench.engine.close().await.unwrap();
}
