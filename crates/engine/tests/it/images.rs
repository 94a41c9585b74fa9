//! Images by name on a backend that takes directories or modules: resolved once, handed on as a path, recorded by digest,
//! and held as long as the sandbox.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stockade_backends::mock::{Mock, Script};
use stockade_core::{
    Admitted, Backend, BackendChoice, BackendName, Boundary, Capabilities, Command, Error,
    ErrorCode, Feature, HostPath, Image, ImageDefaults, ImageForm, ImageName, ImageProvider,
    ResolvedImage, Result, Sandbox, SandboxId, SandboxSpec, SnapshotKind, Support,
};
use stockade_engine::{Engine, EngineConfig, Event, Filter, OwnPath};

const STORED_ROOT: &str = "/var/lib/stockade-images/one";

/// A mock that notes which image it was handed, and may have a store of its own.
struct Watched {
    mock: Mock,
    has_store: bool,
    handed: Arc<Mutex<Vec<Image>>>,
}

#[async_trait]
impl Backend for Watched {
    fn name(&self) -> BackendName {
        self.mock.name()
    }

    async fn probe(&self) -> Capabilities {
        let mut measured = self.mock.probe().await;
        // One that may be chosen automatically.
        measured.boundary = Boundary::Bytecode;
        measured
    }

    async fn resolve_image(&self, _: &ImageName) -> Result<Option<ResolvedImage>> {
        let image = || ResolvedImage {
            name: pinned(),
            contents: Image::Named(pinned()),
            defaults: ImageDefaults { user: "7".into(), ..ImageDefaults::default() },
            lease: Box::new(()),
        };
        Ok(self.has_store.then(image))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.handed.lock().unwrap().push(admitted.spec().image.clone());
        self.mock.create(id, admitted).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.mock.list().await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.mock.destroy(id).await
    }
}

/// A provider of one image, `a:1`, that counts its leases.
#[derive(Debug, Default)]
struct OneImage {
    resolved: AtomicUsize,
    imported: Mutex<Vec<HostPath>>,
    leases: Arc<()>,
}

impl OneImage {
    fn leases(&self) -> usize {
        Arc::strong_count(&self.leases) - 1
    }
}

fn pinned() -> ImageName {
    format!("a:1@sha256:{}", "0f".repeat(32)).parse().unwrap()
}

#[async_trait]
impl ImageProvider for OneImage {
    fn mechanism(&self, _: ImageForm) -> Option<String> {
        Some("a provider of tests".into())
    }

    async fn resolve(&self, name: &ImageName, form: ImageForm) -> Result<ResolvedImage> {
        self.resolved.fetch_add(1, Ordering::SeqCst);
        if !name.as_str().starts_with("a:1") {
            return Err(Error::new(ErrorCode::NotFound, "use an image", "there is none"));
        }
        Ok(ResolvedImage {
            name: pinned(),
            contents: match form {
                ImageForm::Root => stored_directory(),
                ImageForm::Module => stored_module(),
            },
            defaults: ImageDefaults::default(),
            lease: Box::new(Arc::clone(&self.leases)),
        })
    }

    fn import_mechanism(&self) -> Option<String> {
        Some("a provider of tests".into())
    }

    async fn import(&self, layout: &HostPath) -> Result<ResolvedImage> {
        self.imported.lock().unwrap().push(layout.clone());
        Ok(ResolvedImage {
            name: pinned(),
            contents: stored_directory(),
            defaults: ImageDefaults::default(),
            lease: Box::new(Arc::clone(&self.leases)),
        })
    }
}

struct ImageBench {
    engine: Engine,
    provider: Arc<OneImage>,
    handed: Arc<Mutex<Vec<Image>>>,
    _state: tempfile::TempDir,
}

async fn bench(mock: Mock) -> ImageBench {
    bench_of(mock, false).await
}

async fn bench_of(mock: Mock, has_store: bool) -> ImageBench {
    let state = tempfile::tempdir().unwrap();
    let provider = Arc::new(OneImage::default());
    let images: Arc<dyn ImageProvider> = Arc::<OneImage>::clone(&provider);
    let config = EngineConfig {
        images: Some(images),
        own_paths: vec![OwnPath::fixed("/var/lib/stockade-images", "the image store")],
        ..EngineConfig::at(state.path().join("state"))
    };
    let handed = Arc::new(Mutex::new(Vec::new()));
    let mock = mock.with_program("true", Script::default());
    let watched = Watched { mock, has_store, handed: Arc::clone(&handed) };
    let engine = Engine::open(config, vec![Arc::new(watched)]).await.unwrap();
    ImageBench { engine, provider, handed, _state: state }
}

fn taking_directories() -> Mock {
    Mock::new().with_support(Feature::DirectoryImage, Support::full("simulation"))
}

fn spec(image: &str) -> SandboxSpec {
    let image = Image::Named(image.parse().unwrap());
    SandboxSpec { backend: "mock".parse().unwrap(), image, ..SandboxSpec::default() }
}

impl ImageBench {
    fn handed(&self) -> Vec<Image> {
        self.handed.lock().unwrap().clone()
    }

    /// The images that the journal names, in the order of its records.
    fn recorded(&self) -> Vec<Option<ImageName>> {
        let records = self.engine.journal().records(Filter::default()).unwrap();
        let image = |event: Event| {
            let (Event::Started { image, .. } | Event::Created { image, .. }) = event else {
                return None;
            };
            Some(image)
        };
        records.filter_map(|record| image(record.unwrap().event)).collect()
    }
}

fn stored_directory() -> Image {
    Image::Directory(STORED_ROOT.parse::<HostPath>().unwrap())
}

fn stored_module() -> Image {
    Image::Wasm(format!("{STORED_ROOT}/module.wasm").parse::<HostPath>().unwrap())
}

#[tokio::test]
async fn a_backend_is_handed_the_directory_and_the_record_has_the_digest() {
    let bench = bench(taking_directories()).await;
    let run = bench.engine.run(spec("a:1"), Command::program(["true"])).await.unwrap();
    assert!(run.outcome().await.success());
    run.close().await.unwrap();
    drop(run);
    assert_eq!(bench.handed(), [stored_directory()]);
    assert_eq!(bench.recorded(), [Some(pinned())]);
    assert_eq!(bench.provider.resolved.load(Ordering::SeqCst), 1, "a tag is resolved once");
}

#[tokio::test]
async fn an_image_is_held_until_its_sandbox_is_destroyed() {
    let bench = bench(taking_directories()).await;
    let id = bench.engine.create(spec("a:1")).await.unwrap();
    assert_eq!(bench.provider.leases(), 1);
    bench.engine.destroy(&id).await.unwrap();
    assert_eq!(bench.provider.leases(), 0);
    assert_eq!(bench.recorded(), [Some(pinned())]);
}

#[tokio::test]
async fn a_snapshot_has_the_digest_and_no_directory() {
    let bench = bench(taking_directories()).await;
    let id = bench.engine.create(spec("a:1")).await.unwrap();
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    assert_eq!(snapshot.spec.image, Image::Named(pinned()));
    let copies = bench.engine.fork(&id, 2).await.unwrap();
    assert_eq!(bench.provider.leases(), 3, "each copy holds the image for itself");
    assert_eq!(bench.handed(), vec![stored_directory(); 3]);
    for id in copies.iter().chain([&id]) {
        bench.engine.destroy(id).await.unwrap();
    }
    assert_eq!(bench.provider.leases(), 0);
}

#[tokio::test]
async fn a_backend_with_a_store_of_its_own_gets_the_name() {
    let own = taking_directories().with_support(Feature::NamedImage, Support::full("its own"));
    let bench = bench(own).await;
    bench.engine.create(spec("a:1")).await.unwrap();
    assert_eq!(bench.handed(), [spec("a:1").image]);
    assert_eq!(bench.engine.provides_images(&spec("a:1")).await, Some(false));
    assert_eq!(bench.provider.resolved.load(Ordering::SeqCst), 0);
    bench.engine.close().await.unwrap();
}

#[tokio::test]
async fn a_store_of_the_backends_own_says_what_a_name_means() {
    let own = taking_directories().with_support(Feature::NamedImage, Support::full("its own"));
    let bench = bench_of(own, true).await;
    let resolved = bench.engine.resolve_image(&spec("a:1")).await.unwrap().unwrap();
    assert_eq!((resolved.name, resolved.defaults.user.as_str()), (pinned(), "7"));
    bench.engine.create(spec("a:1")).await.unwrap();
    assert_eq!(bench.handed(), [Image::Named(pinned())]);
    assert_eq!(bench.recorded(), [Some(pinned())]);
    assert_eq!(bench.provider.resolved.load(Ordering::SeqCst), 0);
    bench.engine.close().await.unwrap();
}

#[tokio::test]
async fn an_archive_is_imported_for_a_backend_that_takes_directories() {
    let bench = bench(taking_directories()).await;
    let layout: HostPath = "/srv/image.tar".parse().unwrap();
    let spec = SandboxSpec { image: Image::Oci(layout.clone()), ..spec("a:1") };
    let id = bench.engine.create(spec).await.unwrap();
    assert_eq!(*bench.provider.imported.lock().unwrap(), [layout]);
    assert_eq!(bench.handed(), [stored_directory()]);
    assert_eq!(bench.recorded(), [Some(pinned())], "the record has the digest");
    let snapshot = bench.engine.snapshot(&id, SnapshotKind::Files).await.unwrap();
    assert_eq!(snapshot.spec.image, Image::Named(pinned()), "no path of this host");
    assert_eq!(bench.provider.leases(), 1);
    bench.engine.destroy(&id).await.unwrap();
    assert_eq!(bench.provider.leases(), 0);
}

#[tokio::test]
async fn a_backend_that_takes_archives_gets_the_path() {
    let own = taking_directories().with_support(Feature::OciImage, Support::full("its own"));
    let bench = bench(own).await;
    let image = Image::Oci("/srv/image.tar".parse().unwrap());
    bench.engine.create(SandboxSpec { image: image.clone(), ..spec("a:1") }).await.unwrap();
    assert_eq!(bench.handed(), [image]);
    assert!(bench.provider.imported.lock().unwrap().is_empty());
    bench.engine.close().await.unwrap();
}

#[tokio::test]
async fn a_backend_that_takes_no_directory_goes_on_refusing() {
    let bench = bench(Mock::new()).await;
    assert_eq!(bench.engine.provides_images(&spec("a:1")).await, None);
    let error = bench.engine.create(spec("a:1")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Refused);
    assert!(error.to_string().contains("named-image"), "{error}");
    assert_eq!(bench.provider.resolved.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_backend_of_modules_is_handed_the_module_where_it_is_named_only() {
    let modules = Mock::new().with_support(Feature::WasmImage, Support::full("simulation"));
    let bench = bench(modules).await;
    let id = bench.engine.create(spec("a:1")).await.unwrap();
    assert_eq!(bench.handed(), [stored_module()]);
    assert_eq!(bench.recorded(), [Some(pinned())]);
    assert_eq!(bench.provider.leases(), 1);
    bench.engine.destroy(&id).await.unwrap();
    let unnamed = SandboxSpec { backend: BackendChoice::Auto, ..spec("a:1") };
    let told = bench.engine.explain(&unnamed).await;
    assert_eq!(told.chosen, None);
    assert!(told.choices[0].why.contains("named-image"), "{told:?}");
    assert!(bench.engine.create(unnamed).await.is_err());
    assert_eq!(bench.handed().len(), 1);
}

#[tokio::test]
async fn no_spec_can_name_the_directory_of_a_stored_image() {
    let bench = bench(taking_directories()).await;
    let spec = SandboxSpec { image: stored_directory(), ..spec("a:1") };
    let error = bench.engine.create(spec).await.unwrap_err();
    assert!(error.to_string().contains("the image store"), "{error}");
    assert_eq!(bench.handed(), []);
}

#[tokio::test]
async fn an_image_that_is_not_to_be_had_builds_nothing() {
    let bench = bench(taking_directories()).await;
    let error = bench.engine.create(spec("b:1")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert_eq!(bench.handed(), []);
    assert_eq!(bench.recorded(), []);
}
