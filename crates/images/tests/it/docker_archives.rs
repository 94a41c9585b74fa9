//! Archives with Docker's list of images: what they stand for, and what is refused.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stockade_images::{ImageError, ImageLimits, ImageStore, ImportName, InProcess, StoredImage};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::digest_of;
use crate::support::{leftovers, platform};

/// An archive before it is written: its list, its config and its layer, which a test may change.
struct DockerArchive {
    list: Value,
    config: Value,
    layer: String,
}

impl DockerArchive {
    fn new() -> Self {
        let layer = ArchiveBuilder::new().file("release", "one").finish();
        let config = json!({
            "os": "linux", "architecture": "amd64", "config": { "Cmd": ["/bin/tool"] },
            "rootfs": { "type": "layers", "diff_ids": [digest_of(&layer)] },
        });
        let image =
            json!({ "Config": "c.json", "RepoTags": ["own/name:1"], "Layers": ["l/layer.tar"] });
        Self { list: json!([image]), config, layer: String::from_utf8(layer).unwrap() }
    }

    fn write(&self, file: &Path) {
        let (list, config) = (self.list.to_string(), self.config.to_string());
        let archive =
            ArchiveBuilder::new().file("c.json", &config).file("l/layer.tar", &self.layer);
        fs::write(file, archive.file("manifest.json", &list).finish()).unwrap();
    }

    async fn import(
        &self,
        store: &ImageStore,
        name: ImportName<'_>,
    ) -> Result<StoredImage, ImageError> {
        let file = store.directory().with_extension("tar");
        self.write(&file);
        let limits = ImageLimits::default();
        store.import((&file, None), name, &platform(), &limits, &InProcess, &()).await
    }
}

#[tokio::test]
async fn an_archive_of_docker_is_the_same_image_each_time() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let archive = DockerArchive::new();
    let unnamed = archive.import(&store, ImportName::Unnamed).await.unwrap();
    assert_eq!((unnamed.reference, &*unnamed.config.cmd), (None, &["/bin/tool".to_owned()][..]));
    assert_eq!(fs::read_to_string(unnamed.root.join("release")).unwrap(), "one");
    let named = archive.import(&store, ImportName::Own).await.unwrap();
    assert_eq!(named.manifest, unnamed.manifest);
    assert_eq!(named.reference.unwrap().familiar(), "own/name:1");
    let exported = place.path().join("exported.tar");
    store.export("own/name:1", &exported).unwrap();
    let (limits, platform) = (ImageLimits::default(), platform());
    let (layout, name) = ((exported.as_path(), None), ImportName::Unnamed);
    let again = store.import(layout, name, &platform, &limits, &InProcess, &()).await.unwrap();
    assert_eq!(again.manifest, named.manifest, "it is a layout now");
}

#[tokio::test]
async fn a_list_that_says_anything_else_is_refused_and_leaves_nothing() {
    let changed = |change: fn(&mut DockerArchive)| {
        let mut archive = DockerArchive::new();
        change(&mut archive);
        archive
    };
    for (archive, reason) in [
        (changed(|a| a.list = json!([])), "has 0 images, not one"),
        (changed(|a| a.list = json!([a.list[0], a.list[0]])), "has 2 images, not one"),
        (changed(|a| a.list = json!({})), "its list cannot be read"),
        (changed(|a| a.list[0]["Layers"] = json!([])), "0 layers and 1 diff ids"),
        (changed(|a| a.list[0]["Layers"] = json!(["../../etc/passwd"])), "lacks"),
        (changed(|a| a.list[0]["Config"] = json!("/etc/passwd")), "lacks"),
        (changed(|a| a.config = json!(1)), "its config cannot be read"),
        (changed(|a| a.config["rootfs"]["diff_ids"] = json!(["sha256:x"])), "cannot be read"),
        (changed(|a| a.config["os"] = json!("plan9")), "nothing for linux/amd64"),
        (changed(|a| a.layer.push('x')), "has the digest"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let store = ImageStore::open(place.path().join("store")).unwrap();
        let error = archive.import(&store, ImportName::Own).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        assert_eq!(leftovers(&store), [""; 0], "{reason}");
    }
}

#[tokio::test]
async fn a_list_of_more_layers_than_are_taken_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let mut archive = DockerArchive::new();
    let digest = archive.config["rootfs"]["diff_ids"][0].clone();
    archive.config["rootfs"]["diff_ids"] = json!(vec![digest; 257]);
    archive.list[0]["Layers"] = json!(vec!["l/layer.tar"; 257]);
    let error = archive.import(&store, ImportName::Own).await.unwrap_err();
    assert!(error.to_string().contains("257 layers and 257 diff ids, of at most 256"), "{error}");
    assert_eq!(leftovers(&store), [""; 0]);
}
