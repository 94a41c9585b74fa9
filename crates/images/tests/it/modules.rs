//! WebAssembly modules as artifacts: stored as they are, taken by those who want a module, and refused where they are not
//! exactly that.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};
use stockade_core::ImageForm;
use stockade_images::{
    ImageError, ImageStore, InProcess, MODULE_FILE, PullOptions, PullPolicy, StoredImage,
};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::{GZIP_LAYER, OCI_INDEX, OCI_MANIFEST, TestImage, digest_of, gzip};
use crate::support::server::{Reply, SeenRequest, Server};
use crate::support::{import, leftovers, pull_options};

const CNCF_CONFIG: &str = "application/vnd.wasm.config.v0+json";
const CNCF_LAYER: &str = "application/wasm";
/// The smallest module there is.
const EMPTY_MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// An artifact of these layers, each with its media type.
fn artifact(config_type: &str, config: &Value, layers: &[(&str, &[u8])]) -> TestImage {
    let config = config.to_string().into_bytes();
    let describe = |media_type: &str, blob: &[u8]| json!({ "mediaType": media_type, "digest": digest_of(blob), "size": blob.len() });
    let listed: Vec<_> = layers.iter().map(|&(kind, blob)| describe(kind, blob)).collect();
    let manifest = json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": describe(config_type, &config), "layers": listed });
    let manifest = manifest.to_string().into_bytes();
    let all = layers.iter().map(|&(_, blob)| blob.to_vec()).chain([config]);
    TestImage {
        blobs: all.map(|blob| (digest_of(&blob), blob)).collect::<BTreeMap<_, _>>(),
        digest: digest_of(&manifest),
        manifest,
        layers: layers.iter().map(|&(_, blob)| digest_of(blob)).collect(),
    }
}

fn module() -> TestImage {
    let config = json!({ "architecture": "wasm", "os": "wasip1",
        "layerDigests": [digest_of(EMPTY_MODULE)] });
    artifact(CNCF_CONFIG, &config, &[(CNCF_LAYER, EMPTY_MODULE)])
}

fn root() -> TestImage {
    TestImage::new(&[ArchiveBuilder::new().file("file", "x").finish()])
}

struct ModulePlace {
    dir: tempfile::TempDir,
    store: ImageStore,
}

impl ModulePlace {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(dir.path().join("store")).unwrap();
        Self { dir, store }
    }

    async fn pull(
        &self,
        server: &Server,
        form: Option<ImageForm>,
        policy: PullPolicy,
    ) -> Result<StoredImage, ImageError> {
        let options = PullOptions { form, policy, ..pull_options() };
        let reference = server.reference().parse().unwrap();
        self.store.pull(&reference, &options, &InProcess, &()).await
    }
}

fn read_module(image: &StoredImage) -> Vec<u8> {
    assert_eq!(image.form, ImageForm::Module);
    fs::read(image.root.join(MODULE_FILE)).unwrap()
}

#[tokio::test]
async fn a_module_of_each_layout_is_stored_as_it_is_and_removed_whole() {
    for (config, layer) in [
        (CNCF_CONFIG, CNCF_LAYER),
        ("application/vnd.wasm.config.v1+json", "application/vnd.wasm.content.layer.v1+wasm"),
        (
            "application/vnd.module.wasm.config.v1+json",
            "application/vnd.module.wasm.content.layer.v1+wasm",
        ),
    ] {
        let place = ModulePlace::new();
        let image = artifact(config, &json!({}), &[(layer, EMPTY_MODULE)]);
        let server = Server::of_image(image.clone(), |_| None).await;
        let pulled = place.pull(&server, Some(ImageForm::Module), PullPolicy::Always).await;
        let pulled = pulled.unwrap();
        assert_eq!(read_module(&pulled), EMPTY_MODULE);
        assert_eq!(pulled.manifest.to_string(), image.digest);
        assert_eq!(pulled.config.command(), [MODULE_FILE]);
        drop(server);
        let lease = place.store.lease(&pulled).unwrap();
        let name = pulled.manifest.to_string();
        assert!(matches!(place.store.remove(&name), Err(ImageError::InUse(_))));
        drop(lease);
        place.store.remove(&name).unwrap();
        assert_eq!(leftovers(&place.store), [""; 0]);
    }
}

#[tokio::test]
async fn a_module_of_a_layout_is_imported_and_exported_again() {
    let place = ModulePlace::new();
    let layout = place.dir.path().join("layout");
    module().write_layout(&layout);
    let imported = import(&place.store, &layout).await.unwrap();
    assert_eq!(read_module(&imported), EMPTY_MODULE);
    let archive = place.dir.path().join("module.tar");
    place.store.export(&imported.manifest.to_string(), &archive).unwrap();
    let other = ImageStore::open(place.dir.path().join("other")).unwrap();
    let again = import(&other, &archive).await.unwrap();
    assert_eq!(
        (again.manifest.clone(), read_module(&again)),
        (imported.manifest, EMPTY_MODULE.to_vec())
    );
}

#[tokio::test]
async fn what_is_not_exactly_one_module_is_refused_by_name_and_nothing_stays() {
    let layer = gzip(&ArchiveBuilder::new().file("module.wasm", "x").finish());
    let other = digest_of(b"another module");
    let one = (CNCF_LAYER, EMPTY_MODULE);
    let text = (CNCF_LAYER, &b"(module (func (export \"_start\")))"[..]);
    let empty = json!({});
    for (image, reason) in [
        (artifact(CNCF_CONFIG, &empty, &[]), "0 layers"),
        (artifact(CNCF_CONFIG, &empty, &[one, text]), "2 layers"),
        (artifact(CNCF_CONFIG, &empty, &[(GZIP_LAYER, &layer)]), "tar+gzip"),
        (artifact(CNCF_CONFIG, &empty, &[("application/wasm+gzip", EMPTY_MODULE)]), "wasm+gzip"),
        (artifact(CNCF_CONFIG, &empty, &[text]), "no WebAssembly module"),
        (artifact(CNCF_CONFIG, &empty, &[(CNCF_LAYER, b"\0as")]), "no WebAssembly module"),
        (artifact(CNCF_CONFIG, &json!({ "layerDigests": [other] }), &[one]), "other layers"),
        (artifact(CNCF_CONFIG, &json!({ "architecture": "amd64" }), &[one]), "amd64"),
        (artifact("application/vnd.unknown.config.v1+json", &empty, &[one]), "vnd.unknown"),
    ] {
        let (place, server) = (ModulePlace::new(), Server::of_image(image, |_| None).await);
        for form in [Some(ImageForm::Module), None] {
            let error = place.pull(&server, form, PullPolicy::Always).await.unwrap_err();
            assert!(error.to_string().contains(reason), "{error}, not {reason}");
            assert_eq!(leftovers(&place.store), [""; 0], "{reason}");
        }
    }
}

#[tokio::test]
async fn a_module_with_another_digest_is_refused_and_nothing_stays() {
    let server = Server::of_image(module(), |request| {
        let is_module = request.path.ends_with(&digest_of(EMPTY_MODULE));
        is_module.then(|| Reply::ok(b"\0asm\x02\0\0\0"))
    });
    let (server, place) = (server.await, ModulePlace::new());
    let error = place.pull(&server, None, PullPolicy::Always).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
    assert_eq!(leftovers(&place.store), [""; 0]);
}

#[tokio::test]
async fn an_image_of_another_form_is_refused_whether_it_is_stored_or_not() {
    for (image, form, other) in [
        (module(), ImageForm::Module, ImageForm::Root),
        (root(), ImageForm::Root, ImageForm::Module),
    ] {
        let (place, server) = (ModulePlace::new(), Server::of_image(image, |_| None).await);
        let refused = |pulled: Result<StoredImage, ImageError>| {
            let error = pulled.unwrap_err();
            assert!(matches!(error, ImageError::Form { found } if found == form), "{error}");
        };
        refused(place.pull(&server, Some(other), PullPolicy::Missing).await);
        assert_eq!(leftovers(&place.store), [""; 0]);
        place.pull(&server, None, PullPolicy::Missing).await.unwrap();
        for policy in [PullPolicy::Always, PullPolicy::Missing, PullPolicy::Never] {
            refused(place.pull(&server, Some(other), policy).await);
            assert_eq!(place.pull(&server, Some(form), policy).await.unwrap().form, form);
        }
    }
}

#[tokio::test]
async fn an_index_leads_to_the_module_or_to_the_root_by_what_is_wanted() {
    let (root, module) = (root(), module());
    let entry = |image: &TestImage, os: &str, architecture: &str| {
        json!({ "mediaType": OCI_MANIFEST, "digest": image.digest, "size": image.manifest.len(),
                "platform": { "os": os, "architecture": architecture } })
    };
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
        entry(&root, "linux", "amd64"), entry(&module, "wasip1", "wasm") ]});
    let (index, other) = (index.to_string().into_bytes(), root.clone());
    let answer = move |request: &SeenRequest| {
        let of = |kind: &str, bytes: &[u8]| Some(Reply::ok(bytes).header("Content-Type", kind));
        let name = request.path.rsplit('/').next().unwrap_or_default();
        match name {
            "1" => of(OCI_INDEX, &index),
            name if name == other.digest => of(OCI_MANIFEST, &other.manifest),
            name => other.blobs.get(name).map(|blob| Reply::ok(blob)),
        }
    };
    let server = Server::of_image(module.clone(), answer).await;
    for (form, digest) in [
        (Some(ImageForm::Module), &module.digest),
        (Some(ImageForm::Root), &root.digest),
        (None, &root.digest),
    ] {
        let pulled = ModulePlace::new().pull(&server, form, PullPolicy::Always).await.unwrap();
        assert_eq!(pulled.manifest.to_string(), *digest, "{form:?}");
    }
}
