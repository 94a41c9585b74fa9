//! Registries that lie, stall, drop connections and send elsewhere.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::json;
use stockade_images::{
    CredentialFiles, ImageError, ImageLimits, ImageStore, InProcess, PullOptions, RegistrySettings,
    StoredImage,
};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::{OCI_INDEX, OCI_MANIFEST, TestImage, digest_of};
use crate::support::server::{Reply, SeenRequest, Server, Then, serve};
use crate::support::{leftovers, pull_options};

struct Puller {
    place: tempfile::TempDir,
    store: ImageStore,
    options: PullOptions,
}

impl Puller {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = ImageStore::open(place.path().join("store")).unwrap();
        Self { place, store, options: pull_options() }
    }

    fn with_stall_timeout(mut self, milliseconds: u64) -> Self {
        self.options.limits = ImageLimits { stall_timeout_ms: milliseconds, ..self.options.limits };
        self
    }

    /// `alice` with the password `secret`, for one registry.
    fn with_credentials(mut self, registry: &str) -> Self {
        let path = self.place.path().join("auth.json");
        let auths = json!({ "auths": { registry: { "auth": "YWxpY2U6c2VjcmV0" } } });
        fs::write(&path, auths.to_string()).unwrap();
        self.options.credentials = CredentialFiles::at([path]);
        self
    }

    async fn pull(&self, reference: &str) -> Result<StoredImage, ImageError> {
        self.store.pull(&reference.parse().unwrap(), &self.options, &InProcess, &()).await
    }
}

/// An image whose layer does not compress: about 200 KiB on the wire.
fn image() -> TestImage {
    static IMAGE: OnceLock<TestImage> = OnceLock::new();
    let build = || {
        let mut state = 1_u32;
        let noise: String = (0..200 << 10)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b' ' + (state >> 24) as u8 % 95)
            })
            .collect();
        TestImage::new(&[ArchiveBuilder::new().file("noise", &noise).finish()])
    };
    IMAGE.get_or_init(build).clone()
}

fn is_layer(request: &SeenRequest) -> bool {
    request.path.ends_with(&image().layers[0])
}

#[tokio::test]
async fn a_layer_with_another_digest_is_refused_and_nothing_of_it_stays() {
    let server = Server::of_image(image(), |request| {
        let mut blob = image().blobs[&image().layers[0]].clone();
        blob[100] ^= 1;
        is_layer(request).then(|| Reply::ok(&blob))
    });
    let (server, puller) = (server.await, Puller::new());
    let error = puller.pull(&server.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
    assert_eq!(leftovers(&puller.store), [""; 0]);
}

#[tokio::test]
async fn a_manifest_with_another_digest_is_refused() {
    let server = Server::of_image(image(), |_| None).await;
    let (puller, other) = (Puller::new(), digest_of(b"another"));
    let reference = format!("127.0.0.1:{}/test@{other}", server.port);
    let error = puller.pull(&reference).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
    let lying = Server::of_image(image(), |request| {
        let honest =
            serve(&image(), request).header("Docker-Content-Digest", digest_of(b"another"));
        request.path.contains("/manifests/").then_some(honest)
    });
    let error = puller.pull(&lying.await.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn a_layer_that_is_longer_or_shorter_than_announced_is_refused() {
    let longer = Server::of_image(image(), |request| {
        let mut blob = image().blobs[&image().layers[0]].clone();
        blob.extend([0; 100]);
        is_layer(request).then(|| Reply { sized: false, ..Reply::ok(&blob) })
    });
    let (longer, puller) = (longer.await, Puller::new());
    let error = puller.pull(&longer.reference()).await.unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
    let shorter = Server::of_image(image(), |request| {
        let blob = &image().blobs[&image().layers[0]][..1000];
        is_layer(request).then(|| Reply::ok(blob))
    });
    let shorter = shorter.await;
    let error = puller.pull(&shorter.reference()).await.unwrap_err();
    assert!(error.to_string().contains("ended after 1000 of"), "{error}");
    assert!(shorter.requests().len() < 6, "it is not asked for ever");
}

#[tokio::test]
async fn a_registry_that_stalls_is_given_up_at_the_deadline() {
    for then in [Then::Stall(0), Then::Stall(5000), Then::Drip] {
        let server = Server::of_image(image(), move |request| {
            is_layer(request).then(|| serve(&image(), request).then(then))
        });
        let (server, puller) = (server.await, Puller::new().with_stall_timeout(300));
        let error = puller.pull(&server.reference()).await.unwrap_err();
        assert!(matches!(error, ImageError::Stalled { .. }), "{then:?}: {error}");
    }
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let reference = format!("127.0.0.1:{}/test:1", silent.local_addr().unwrap().port());
    let error = Puller::new().with_stall_timeout(300).pull(&reference).await.unwrap_err();
    assert!(matches!(error, ImageError::Stalled { .. }), "{error}");
}

#[tokio::test]
async fn a_dropped_connection_is_resumed_where_it_was_cut() {
    let count = Arc::new(AtomicUsize::new(0));
    let server = Server::of_image(image(), move |request| {
        if !is_layer(request) {
            return None;
        }
        let reply = serve(&image(), request);
        Some(match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => reply.then(Then::Cut(60_000)),
            _ => reply,
        })
    });
    let (server, puller) = (server.await, Puller::new());
    let stored = puller.pull(&server.reference()).await.unwrap();
    assert!(stored.root.join("noise").is_file());
    let layers = server.requests().into_iter().filter(is_layer);
    let starts: Vec<_> = layers.map(|request| request.range_start()).collect();
    assert_eq!(starts.len(), 3);
    assert!(starts[0] == 0 && starts[1] > 0 && starts[2] > starts[1], "{starts:?}");
}

#[tokio::test]
async fn the_next_pull_goes_on_where_the_last_one_gave_up() {
    let failing = Arc::new(AtomicUsize::new(1));
    let switch = failing.clone();
    let server = Server::of_image(image(), move |request| {
        let fails = switch.load(Ordering::Relaxed) == 1;
        (fails && is_layer(request)).then(|| serve(&image(), request).then(Then::Stall(100_000)))
    });
    let (server, mut puller) = (server.await, Puller::new().with_stall_timeout(500));
    let hex = image().layers[0].strip_prefix("sha256:").unwrap().to_owned();
    let partial = puller.store.directory().join("partial").join(hex);
    let arrived = || fs::metadata(&partial).map_or(0, |metadata| metadata.len());
    // On a busy host it may be given up before the layer.
    while arrived() == 0 {
        assert!(puller.pull(&server.reference()).await.is_err());
    }
    let arrived = arrived();
    failing.store(0, Ordering::Relaxed);
    puller.options.limits = ImageLimits::default();
    puller.pull(&server.reference()).await.unwrap();
    let last = server.requests().into_iter().rfind(is_layer).unwrap();
    assert_eq!(last.range_start() as u64, arrived);
}

#[tokio::test]
async fn a_registry_without_ranges_is_read_from_the_start() {
    let count = Arc::new(AtomicUsize::new(0));
    let server = Server::of_image(image(), move |request| {
        let whole = Reply::ok(&image().blobs[&image().layers[0]]);
        is_layer(request).then(|| match count.fetch_add(1, Ordering::Relaxed) {
            0 => whole.then(Then::Cut(60_000)),
            _ => whole,
        })
    });
    let (server, puller) = (server.await, Puller::new());
    assert!(puller.pull(&server.reference()).await.is_ok());
    let lying = Server::of_image(image(), move |request| {
        let reply = serve(&image(), request);
        is_layer(request).then(|| match request.range_start() {
            0 => reply.then(Then::Cut(60_000)),
            _ => Reply { headers: vec![("Content-Range".into(), "bytes 7-9/10".into())], ..reply },
        })
    });
    let (lying, puller) = (lying.await, Puller::new());
    let error = puller.pull(&lying.reference()).await.unwrap_err();
    assert!(error.to_string().contains("another part"), "{error}");
}

#[tokio::test]
async fn no_redirect_leads_to_a_metadata_service_or_without_end() {
    for (location, reason) in [
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://169.254.7.7/", "link-local"),
        ("file:///etc/passwd", "no place"),
        ("http://user@127.0.0.1/", "no place"),
        ("", "no place"),
    ] {
        let server = Server::of_image(image(), move |request| {
            is_layer(request).then(|| Reply::new(307).header("Location", location))
        });
        let (server, puller) = (server.await, Puller::new());
        let error = puller.pull(&server.reference()).await.unwrap_err();
        assert!(matches!(error, ImageError::Redirect { .. }), "{location}: {error}");
        assert!(error.to_string().contains(reason), "{location}: {error}");
    }
    let endless = Server::of_image(image(), |request| {
        is_layer(request).then(|| Reply::new(302).header("Location", request.path.clone()))
    });
    let (endless, puller) = (endless.await, Puller::new());
    let error = puller.pull(&endless.reference()).await.unwrap_err();
    assert!(error.to_string().contains("redirects without end"), "{error}");
}

#[tokio::test]
async fn a_redirect_to_another_host_does_not_carry_the_authorization() {
    let elsewhere = Server::of_image(image(), |_| None).await;
    let port = elsewhere.port;
    let server = Server::of_image(image(), move |request| {
        if request.header("authorization").is_none() {
            return Some(Reply::new(401).header("WWW-Authenticate", "Basic realm=\"x\""));
        }
        let location = format!("http://127.0.0.1:{port}{}", request.path);
        is_layer(request).then(|| Reply::new(307).header("Location", location))
    })
    .await;
    let puller = Puller::new().with_credentials(&format!("127.0.0.1:{}", server.port));
    puller.pull(&server.reference()).await.unwrap();
    let basic = Some("Basic YWxpY2U6c2VjcmV0");
    assert_eq!(server.requests().last().unwrap().header("authorization"), basic);
    let followed = elsewhere.requests();
    assert_eq!(followed.len(), 1);
    assert_eq!(followed[0].header("authorization"), None);
}

#[tokio::test]
async fn wrong_or_missing_credentials_are_told_as_such() {
    let server = Server::start(|_| Reply::new(401).header("WWW-Authenticate", "Basic realm=\"x\""));
    let server = server.await;
    let name = format!("127.0.0.1:{}", server.port);
    for puller in [Puller::new(), Puller::new().with_credentials(&name)] {
        let error = puller.pull(&server.reference()).await.unwrap_err();
        assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
        assert!(!error.to_string().contains("secret"));
    }
}

/// A registry whose tokens are had at `realm`.
fn with_tokens(realm: String) -> impl Fn(&SeenRequest) -> Option<Reply> + Send + Sync + 'static {
    move |request| {
        if request.path.starts_with("/token") {
            return Some(Reply::ok(br#"{"token":"opaque"}"#));
        }
        let challenge =
            format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"repository:other:push\"");
        (request.header("authorization") != Some("Bearer opaque"))
            .then(|| Reply::new(401).header("WWW-Authenticate", challenge))
    }
}

#[tokio::test]
async fn a_token_is_asked_for_one_repository_and_used() {
    // The realm has the port, which is known only once the server listens.
    let realm = Arc::new(OnceLock::new());
    let known: Arc<OnceLock<String>> = realm.clone();
    let server = Server::of_image(image(), move |request| {
        with_tokens(known.get().cloned().unwrap_or_default())(request)
    })
    .await;
    realm.set(format!("http://127.0.0.1:{}/token", server.port)).unwrap();
    let puller = Puller::new().with_credentials(&format!("127.0.0.1:{}", server.port));
    puller.pull(&server.reference()).await.unwrap();
    let requests = server.requests();
    let tokens: Vec<_> =
        requests.iter().filter(|request| request.path.starts_with("/token")).collect();
    assert_eq!(tokens.len(), 1, "one for all layers");
    assert_eq!(tokens[0].path, "/token?service=s&scope=repository:test:pull");
    assert_eq!(tokens[0].header("authorization"), Some("Basic YWxpY2U6c2VjcmV0"));
}

#[tokio::test]
async fn credentials_go_to_no_other_host_without_tls() {
    let thief = Server::start(|_| Reply::ok(br#"{"token":"opaque"}"#)).await;
    let realm = format!("http://127.0.0.1:{}/token", thief.port);
    let server = Server::of_image(image(), with_tokens(realm)).await;
    let puller = Puller::new().with_credentials(&format!("127.0.0.1:{}", server.port));
    let error = puller.pull(&server.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::Redirect { .. }), "{error}");
    assert_eq!(thief.requests().len(), 0);
    let server = Server::of_image(image(), with_tokens("https://169.254.169.254/t".into())).await;
    let error = puller.pull(&server.reference()).await.unwrap_err();
    assert!(error.to_string().contains("metadata"), "{error}");
}

/// A registry that has these documents, and one by the tag.
async fn serve_documents(documents: Vec<(String, Vec<u8>)>, first: (String, Vec<u8>)) -> Server {
    Server::of_image(image(), move |request| {
        let name = request.path.strip_prefix("/v2/test/manifests/")?;
        let by_digest = documents.iter().find(|(_, bytes)| digest_of(bytes) == name);
        let (media_type, bytes) = if name == "1" { &first } else { by_digest? };
        Some(Reply::ok(bytes).header("Content-Type", media_type.clone()))
    })
    .await
}

fn index_of(media_type: &str, bytes: &[u8]) -> Vec<u8> {
    let entry = json!({ "mediaType": media_type, "digest": digest_of(bytes), "size": bytes.len() });
    json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry] }).to_string().into()
}

#[tokio::test]
async fn indexes_in_indexes_end_somewhere() {
    let manifest = (OCI_MANIFEST.to_owned(), image().manifest);
    let mut documents = vec![manifest.clone()];
    let mut top = manifest;
    for depth in 1..=5 {
        top = (OCI_INDEX.to_owned(), index_of(&top.0, &top.1));
        documents.push(top.clone());
        let server = serve_documents(documents.clone(), top.clone()).await;
        let pulled = Puller::new().pull(&server.reference()).await;
        match depth {
            1..=3 => assert!(pulled.is_ok(), "{depth}: {pulled:?}"),
            _ => assert!(pulled.unwrap_err().to_string().contains("indexes in each other")),
        }
    }
}

#[tokio::test]
async fn an_index_that_leads_back_to_itself_is_refused() {
    // Its digest cannot be in it, so a registry has to lie about what the digest names.
    let top = index_of(OCI_INDEX, b"whatever");
    let loops = top.clone();
    let server = Server::start(move |_| Reply::ok(&loops).header("Content-Type", OCI_INDEX)).await;
    let error = Puller::new().pull(&server.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
}

#[tokio::test]
async fn a_document_of_another_type_than_announced_is_refused() {
    let manifest = image().manifest;
    for (announced, bytes) in [
        (OCI_INDEX, manifest.clone()),
        ("text/html", manifest.clone()),
        ("", manifest.clone()),
        ("application/vnd.docker.distribution.manifest.v2+json", manifest.clone()),
        (OCI_MANIFEST, b"{".to_vec()),
    ] {
        let server = serve_documents(Vec::new(), (announced.to_owned(), bytes)).await;
        let error = Puller::new().pull(&server.reference()).await.unwrap_err();
        assert!(matches!(error, ImageError::Refused(_)), "{announced}: {error}");
    }
    // Listed as one kind, sent as another.
    let index = index_of("application/vnd.docker.distribution.manifest.v2+json", &manifest);
    let documents = vec![(OCI_MANIFEST.to_owned(), manifest)];
    let server = serve_documents(documents, (OCI_INDEX.to_owned(), index)).await;
    let error = Puller::new().pull(&server.reference()).await.unwrap_err();
    assert!(error.to_string().contains("sent as"), "{error}");
}

#[tokio::test]
async fn a_manifest_without_end_is_cut_at_its_limit() {
    let mut puller = Puller::new();
    puller.options.limits.manifest_bytes = 100;
    let server = Server::of_image(image(), |_| None).await;
    let error = puller.pull(&server.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { limit: 100, .. }), "{error}");
}

#[tokio::test]
async fn an_image_for_another_machine_or_of_no_registry_is_told_as_such() {
    let server = Server::of_image(image(), |_| None).await;
    let mut puller = Puller::new();
    puller.options.platform = "linux/s390x".parse().unwrap();
    let error = puller.pull(&server.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::NoPlatform { .. }), "{error}");
    let empty = Server::start(|_| Reply::new(404)).await;
    let error = Puller::new().pull(&empty.reference()).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound(_)), "{error}");
}

#[tokio::test]
async fn mirrors_are_asked_first_and_the_registry_for_what_they_lack() {
    let registry = Server::of_image(image(), |_| None).await;
    let partial =
        Server::of_image(image(), |request| is_layer(request).then(|| Reply::new(500))).await;
    let gone = {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut puller = Puller::new();
    let mirrors = vec![format!("127.0.0.1:{gone}"), format!("127.0.0.1:{}/cache", partial.port)];
    let settings = RegistrySettings { mirrors, ..RegistrySettings::default() };
    puller.options.registries.by_name.insert(format!("127.0.0.1:{}", registry.port), settings);
    puller.pull(&registry.reference()).await.unwrap();
    let asked = partial.requests();
    assert_eq!(asked[0].path, "/v2/cache/test/manifests/1");
    let left: Vec<_> = registry.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(left, [format!("/v2/test/blobs/{}", image().layers[0])], "the layer alone");
}
