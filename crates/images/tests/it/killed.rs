//! A pull that is killed at any instant: nothing half-published, and the next one completes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use stockade_images::{ImageStore, InProcess};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::pull_options;
use crate::support::server::Server;
use crate::support::tree::describe_tree;

/// How many instants: all of them with `--long`.
fn instants() -> u64 {
    if std::env::var_os("STOCKADE_TEST_LONG").is_some() { 200 } else { 50 }
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_is_killed_publishes_nothing_half_and_the_next_completes() {
    // In memory where there is such a place: what is written does not have to survive more than a process, and
    // waiting for a disk fifty times takes minutes.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let place = place.unwrap();
    let server = Server::of_image(image(), |_| None).await;
    let reference = server.reference();
    let parsed = reference.parse().unwrap();
    let (whole, started) = (place.path().join("whole"), Instant::now());
    let ended = tokio::task::spawn_blocking({
        let (whole, reference) = (whole.clone(), reference.clone());
        move || start_pull(&whole, &reference).wait().unwrap()
    });
    assert!(ended.await.unwrap().success());
    let mut whole_time = started.elapsed();
    let expected =
        describe_tree(&ImageStore::open(&whole).unwrap().inspect(&reference).unwrap().root);
    let directory = place.path().join("store");
    let (mut random, mut interrupted) = (7, 0);
    for round in 0..instants() {
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
    assert!(interrupted > instants() / 4, "{interrupted} of {} within {whole_time:?}", instants());
    let store = ImageStore::open(&directory).unwrap();
    store.pull(&parsed, &pull_options(), &InProcess, &()).await.unwrap();
    assert_whole(&store, &expected);
}
