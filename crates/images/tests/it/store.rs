//! The store: names, leases, removal, import and export.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use stockade_images::{
    Digest, ImageError, ImageLimits, ImageStore, ImportName, InProcess, PruneOptions, PullPolicy,
    StoredImage,
};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::server::Server;
use crate::support::tree::describe_tree;
use crate::support::{import, leftovers, platform, pull_options};

struct Place {
    dir: tempfile::TempDir,
    store: ImageStore,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path().join("store")).unwrap();
        Self { dir, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn import_as(&self, image: &TestImage, name: &str) -> StoredImage {
        let layout = self.path(&format!("layout-{}", name.replace([':', '/'], "-")));
        image.write_layout(&layout);
        let limits = ImageLimits::default();
        let name = name.parse().unwrap();
        self.store
            .import(
                (&layout, None),
                ImportName::Given(&name),
                &platform(),
                &limits,
                &InProcess,
                &(),
            )
            .await
            .unwrap()
    }
}

fn image(text: &str) -> TestImage {
    let base = ArchiveBuilder::new().file("base", "the same in all").finish();
    TestImage::new(&[base, ArchiveBuilder::new().file("file", text).finish()])
}

#[tokio::test]
async fn an_image_is_found_by_name_and_by_id_with_what_its_config_says() {
    let place = Place::new();
    let stored = place.import_as(&image("1"), "tool:1").await;
    assert_eq!(stored.config.command(), ["/bin/tool", "--help"]);
    assert_eq!(stored.config.env, ["PATH=/bin"]);
    assert_eq!(stored.created.as_deref(), Some("2024-01-01T00:00:00Z"));
    assert_eq!(fs::read_to_string(stored.root.join("file")).unwrap(), "1");
    let hex = stored.manifest.hex();
    for name in
        ["tool:1", "docker.io/library/tool:1", &stored.manifest.to_string(), &hex, &hex[..6]]
    {
        assert_eq!(place.store.find(name).unwrap().unwrap().manifest, stored.manifest, "{name}");
    }
    for name in ["tool", "tool:2", &hex[..5], "no name at all"] {
        assert_eq!(place.store.find(name).unwrap(), None, "{name}");
    }
    assert!(matches!(place.store.inspect("tool:2"), Err(ImageError::NotStored(_))));
}

#[tokio::test]
async fn the_store_is_its_users_alone() {
    let place = Place::new();
    place.import_as(&image("1"), "tool:1").await;
    for directory in ["", "blobs", "trees", "drafts"] {
        let mode =
            fs::metadata(place.store.directory().join(directory)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{directory}");
    }
}

#[tokio::test]
async fn a_leased_image_stays_in_every_process_until_its_lease_ends() {
    let place = Place::new();
    let stored = place.import_as(&image("1"), "tool:1").await;
    assert_eq!(stored.last_used, None);
    let lease = place.store.lease(&stored).unwrap();
    // Another store is what another process has: locks are of open files.
    let other = ImageStore::open(place.store.directory()).unwrap();
    assert!(matches!(other.remove("tool:1"), Err(ImageError::InUse(_))));
    let pruned = other.prune(&PruneOptions { all: true, unused_for: None }).unwrap();
    assert_eq!((pruned.images.len(), pruned.in_use), (0, vec!["tool:1".to_owned()]));
    assert!(lease.root().join("file").is_file());
    assert!(other.inspect("tool:1").unwrap().last_used.is_some());
    drop(lease);
    assert_eq!(other.remove("tool:1").unwrap().images, ["tool:1"]);
    assert_eq!(leftovers(&other), [""; 0]);
    assert!(matches!(place.store.lease(&stored), Err(ImageError::NotStored(_))));
}

#[tokio::test]
async fn removing_a_name_leaves_the_image_and_what_others_share() {
    let place = Place::new();
    let (one, two) = (image("1"), image("2"));
    place.import_as(&one, "tool:1").await;
    place.import_as(&one, "tool:latest").await;
    place.import_as(&two, "tool:2").await;
    assert_eq!(place.store.list().unwrap().len(), 3);
    assert_eq!(place.store.remove("tool:1").unwrap().names, ["tool:1"]);
    let removed = place.store.remove("tool:latest").unwrap();
    assert_eq!(removed.images, ["tool:latest"]);
    assert!(removed.bytes > 0);
    // The lower layer is the same in both.
    let left = place.store.inspect("tool:2").unwrap();
    let blobs = fs::read_dir(place.store.directory().join("blobs")).unwrap().count();
    assert_eq!(blobs, 4, "manifest, config and two layers");
    assert!(left.root.join("base").is_file());
    let removed = place.store.remove(&left.manifest.hex()[..12]).unwrap();
    assert_eq!(removed.images, [left.manifest.to_string()]);
    assert_eq!(leftovers(&place.store), [""; 0]);
}

#[tokio::test]
async fn prune_takes_images_without_a_name_and_named_ones_only_when_told() {
    let place = Place::new();
    place.import_as(&image("1"), "tool:1").await;
    place.import_as(&image("2"), "tool:1").await;
    assert_eq!(place.store.list().unwrap().len(), 2, "the first has lost its name");
    assert_eq!(place.store.prune(&PruneOptions::default()).unwrap().images.len(), 1);
    let hour = Some(Duration::from_secs(3600));
    let young = place.store.prune(&PruneOptions { all: true, unused_for: hour }).unwrap();
    assert_eq!(young.images.len(), 0);
    let all = place.store.prune(&PruneOptions { all: true, unused_for: None }).unwrap();
    assert_eq!(all.images, ["tool:1"]);
    assert_eq!(leftovers(&place.store), [""; 0]);
}

#[tokio::test]
async fn an_exported_image_is_imported_as_the_same() {
    let place = Place::new();
    let stored = place.import_as(&image("1"), "tool:1").await;
    let archive = place.path("tool.tar");
    place.store.export("tool:1", &archive).unwrap();
    assert!(place.store.export("tool:1", &archive).is_err(), "it overwrites nothing");
    let other = ImageStore::open(place.path("other")).unwrap();
    let limits = ImageLimits::default();
    let again = other
        .import((&archive, None), ImportName::Own, &platform(), &limits, &InProcess, &())
        .await
        .unwrap();
    assert_eq!(again.manifest, stored.manifest);
    assert_eq!(again.reference, stored.reference, "its name is in the archive");
    assert_eq!(describe_tree(&again.root), describe_tree(&stored.root));
    let listed = Command::new("tar").arg("-tf").arg(&archive).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("manifest.json"));
}

#[tokio::test]
async fn an_archive_that_is_none_is_refused() {
    let place = Place::new();
    for (name, bytes) in
        [("empty", Vec::new()), ("zeros", vec![0; 4096]), ("text", vec![b'x'; 4096])]
    {
        fs::write(place.path(name), bytes).unwrap();
        let error = import(&place.store, &place.path(name)).await.unwrap_err();
        assert!(matches!(error, ImageError::Refused(_)), "{name}: {error}");
    }
}

#[tokio::test]
async fn what_is_stored_is_used_without_its_registry() {
    let place = Place::new();
    let server = Server::of_image(image("1"), |_| None).await;
    let reference = server.reference().parse().unwrap();
    let pull = |policy| {
        let (store, reference) = (place.store.clone(), &reference);
        let options = stockade_images::PullOptions { policy, ..pull_options() };
        async move { store.pull(reference, &options, &InProcess, &()).await }
    };
    assert!(matches!(pull(PullPolicy::Never).await, Err(ImageError::NotStored(_))));
    let pulled = pull(PullPolicy::Missing).await.unwrap();
    assert_eq!(pulled.manifest, Digest::of(&image("1").manifest));
    let asked = server.requests().len();
    for policy in [PullPolicy::Never, PullPolicy::Missing] {
        assert_eq!(pull(policy).await.unwrap().manifest, pulled.manifest);
    }
    assert_eq!(server.requests().len(), asked);
    pull(PullPolicy::Always).await.unwrap();
    assert_eq!(server.requests().len(), asked + 1, "the manifest alone");
}

#[tokio::test]
async fn two_pulls_at_once_make_one_image_and_fetch_each_layer_once() {
    let place = Place::new();
    let server = Server::of_image(image("1"), |_| None).await;
    let reference = server.reference().parse().unwrap();
    let options = pull_options();
    let other = ImageStore::open(place.store.directory()).unwrap();
    let (one, two) = tokio::join!(
        place.store.pull(&reference, &options, &InProcess, &()),
        other.pull(&reference, &options, &InProcess, &())
    );
    assert_eq!(one.unwrap().manifest, two.unwrap().manifest);
    let blobs = server.requests().into_iter().filter(|request| request.path.contains("/blobs/"));
    let mut layers: Vec<_> = blobs
        .map(|request| request.path)
        .filter(|path| image("1").layers.iter().any(|layer| path.ends_with(layer.as_str())))
        .collect();
    layers.sort();
    let asked = layers.len();
    layers.dedup();
    assert_eq!((asked, layers.len()), (2, 2));
    assert_eq!(fs::read_dir(place.store.directory().join("trees")).unwrap().count(), 1);
}

#[test]
fn a_pull_can_be_spawned() {
    fn assert_send<T: Send>(_: T) {}
    let place = Place::new();
    let (reference, options) = ("tool:1".parse().unwrap(), pull_options());
    assert_send(place.store.pull(&reference, &options, &InProcess, &()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn three_layers_are_fetched_at_once() {
    let archives = ["a", "b", "c"].map(|name| ArchiveBuilder::new().file(name, name).finish());
    let image = TestImage::new(&archives);
    let (layers, all) = (image.layers.clone(), std::sync::Barrier::new(3));
    let server = Server::of_image(image, move |request| {
        // None is answered before all of them are asked for.
        if layers.iter().any(|layer| request.path.ends_with(layer)) {
            all.wait();
        }
        None
    });
    let (server, place) = (server.await, Place::new());
    let reference = server.reference().parse().unwrap();
    let pulled = place.store.pull(&reference, &pull_options(), &InProcess, &()).await.unwrap();
    assert_eq!(pulled.layers.len(), 3);
    assert!(["a", "b", "c"].iter().all(|name| pulled.root.join(name).exists()));
}
