//! A pull that is killed at any instant, alone or beside another: nothing half-published, and the next one completes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stockade_images::{ImageStore, InProcess};

use crate::sample::pick_rounds;
use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::pull_options;
use crate::support::server::Server;
use crate::support::tree::describe_tree;

/// How many instants: a sample, and all of them with `--long`.
const KILLED_ALONE: [u64; 2] = [50, 200];
const KILLED_BESIDE_ANOTHER: [u64; 2] = [10, 50];

/// An image that takes a while: layers with many files, which replace and hide each other.
fn image() -> TestImage {
    let layers: Vec<_> = (0..4)
        .map(|layer| {
            let mut archive = ArchiveBuilder::new().dir("d", 0o755);
            for file in 0..150 {
                let text = format!("{layer} {file} ").repeat(200);
                archive = archive
                    .file(&format!("d/{layer}-{file}"), &text)
                    .file(&format!("d/{file}"), &text);
            }
            let archive = if layer > 0 {
                archive.whiteout(&format!("d/.wh.{}-0", layer - 1))
            } else {
                archive
            };
            archive.finish()
        })
        .collect();
    TestImage::new(&layers)
}

fn start_pull(store: &Path, reference: &str) -> Child {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples/pull");
    let mut command = Command::new(program);
    command
        .arg(store)
        .arg(reference)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Numbers that are the same each time.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Whatever is published is whole.
fn assert_whole(store: &ImageStore, expected: &BTreeMap<String, String>) {
    for image in store.list().unwrap() {
        assert_eq!(describe_tree(&image.root), *expected);
    }
    for tree in std::fs::read_dir(store.directory().join("trees")).unwrap() {
        assert_eq!(describe_tree(&tree.unwrap().path().join("root")), *expected);
    }
}

/// A directory in memory where there is such a place: what is written does not have to survive more than a process, and
/// waiting for a disk fifty times takes minutes.
fn create_place() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    place.unwrap()
}

async fn wait_for_success(mut pull: Child) {
    let ended = tokio::task::spawn_blocking(move || pull.wait().unwrap());
    assert!(ended.await.unwrap().success());
}

/// The tree that a whole pull makes, and how long it takes.
async fn pull_whole(store: &Path, reference: &str) -> (BTreeMap<String, String>, Duration) {
    let started = Instant::now();
    wait_for_success(start_pull(store, reference)).await;
    let taken = started.elapsed();
    let store = ImageStore::open(store).unwrap();
    (describe_tree(&store.inspect(reference).unwrap().root), taken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_is_killed_publishes_nothing_half_and_the_next_completes() {
    let place = create_place();
    let server = Server::of_image(image(), |_| None).await;
    let reference = server.reference();
    let parsed = reference.parse().unwrap();
    let (expected, mut whole_time) = pull_whole(&place.path().join("whole"), &reference).await;
    let directory = place.path().join("store");
    let (mut random, mut interrupted) = (7, 0);
    let instants = pick_rounds(KILLED_ALONE);
    for round in 0..instants {
        let after = whole_time.mul_f64((next_random(&mut random) % 1000) as f64 / 1000.0);
        let mut child = start_pull(&directory, &reference);
        tokio::time::sleep(after).await;
        // The first was slower than those that follow, or faster: kept to what they take.
        match child.try_wait().unwrap() {
            None => {
                interrupted += 1;
                whole_time = whole_time.mul_f64(1.05);
            }
            Some(_) => whole_time = whole_time.mul_f64(0.8),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let store = ImageStore::open(&directory).unwrap();
        assert_whole(&store, &expected);
        // Some go on from what several have left, and every fifth from nothing.
        if round % 3 == 0 {
            let pulled = store.pull(&parsed, &pull_options(), &InProcess, &()).await.unwrap();
            assert_eq!(describe_tree(&pulled.root), expected);
            let drafts = std::fs::read_dir(directory.join("drafts")).unwrap().count();
            assert_eq!(drafts, 0, "what the killed one left is removed");
            store.remove(&reference).unwrap();
        }
        if round % 5 == 0 {
            stockade_fs::remove_tree(&directory).unwrap();
        }
    }
    // Killed instants that came too late would prove nothing.
    assert!(interrupted > instants / 4, "{interrupted} of {instants} within {whole_time:?}");
    let store = ImageStore::open(&directory).unwrap();
    store.pull(&parsed, &pull_options(), &InProcess, &()).await.unwrap();
    assert_whole(&store, &expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_pulls_at_once_one_completes_whenever_the_other_is_killed() {
    let place = create_place();
    let server = Server::of_image(image(), |_| None).await;
    let reference = server.reference();
    let (expected, whole_time) = pull_whole(&place.path().join("whole"), &reference).await;
    let instants = pick_rounds(KILLED_BESIDE_ANOTHER);
    let mut random = 11;
    for round in 0..instants {
        let directory = place.path().join(round.to_string());
        let mut killed = start_pull(&directory, &reference);
        let other = start_pull(&directory, &reference);
        // Both share two cores: together they take about twice as long.
        let thousandths = (round * 1000 + next_random(&mut random) % 1000) / instants;
        tokio::time::sleep(whole_time.mul_f64(thousandths as f64 / 500.0)).await;
        killed.kill().unwrap();
        killed.wait().unwrap();
        wait_for_success(other).await;
        let store = ImageStore::open(&directory).unwrap();
        assert_eq!(store.list().unwrap().len(), 1);
        assert_whole(&store, &expected);
        for left in ["drafts", "partial"] {
            let left = std::fs::read_dir(directory.join(left)).unwrap().count();
            assert_eq!(left, 0, "something is left at instant {thousandths}");
        }
        stockade_fs::remove_tree(&directory).unwrap();
    }
}
