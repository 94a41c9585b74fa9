//! Registries behind the operator's proxy, and registries that limit how often they are asked.

use std::sync::atomic::{AtomicUsize, Ordering};

use stockade_images::{
    ImageError, ImageLimits, ImageStore, InProcess, PullOptions, RegistryProxies, RegistrySettings,
    StoredImage,
};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::server::{Reply, SeenRequest, Server, serve};
use crate::support::{leftovers, pull_options};

/// A name that only a proxy knows: none of the host's resolvers has names of `.test`.
const REGISTRY: &str = "registry.test:5000";

fn image() -> TestImage {
    TestImage::new(&[ArchiveBuilder::new().file("a", "x").finish()])
}

/// The proxies of these variables.
fn proxies(variables: &[(&str, String)]) -> RegistryProxies {
    let variables = variables.to_owned();
    RegistryProxies::of_environment(move |name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.into())
    })
}

/// Options for a registry without TLS that is reached through a proxy on this port.
fn options_through(port: u16) -> PullOptions {
    let mut options = pull_options();
    options.proxies =
        proxies(&[("HTTP_PROXY", format!("http://alice:se%40cret@127.0.0.1:{port}"))]);
    let insecure = RegistrySettings { insecure: true, ..RegistrySettings::default() };
    options.registries.by_name.insert(REGISTRY.to_owned(), insecure);
    options
}

async fn pull(
    store: &ImageStore,
    reference: &str,
    options: &PullOptions,
) -> Result<StoredImage, ImageError> {
    store.pull(&reference.parse().unwrap(), options, &InProcess, &()).await
}

#[tokio::test]
async fn a_registry_without_tls_is_asked_through_the_proxy_by_whole_urls() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let proxy = Server::of_image(image(), |_| None).await;
    let options = options_through(proxy.port);
    let pulled = pull(&store, &format!("{REGISTRY}/test:1"), &options).await.unwrap();
    assert!(pulled.root.join("a").exists());
    let requests = proxy.requests();
    assert_eq!(requests.len(), 3, "manifest, config and layer: {requests:?}");
    for request in requests {
        assert!(request.path.starts_with("http://registry.test:5000/v2/test/"), "{request:?}");
        // `alice:se@cret`
        assert_eq!(request.header("proxy-authorization"), Some("Basic YWxpY2U6c2VAY3JldA=="));
        assert_eq!(request.header("host"), Some(REGISTRY));
    }
}

#[tokio::test]
async fn what_is_excepted_and_this_host_are_reached_without_the_proxy() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let (proxy, registry) =
        (Server::of_image(image(), |_| None).await, Server::of_image(image(), |_| None).await);
    let mut options = options_through(proxy.port);
    pull(&store, &registry.reference(), &options).await.unwrap();
    options.proxies = proxies(&[
        ("HTTP_PROXY", format!("http://127.0.0.1:{}", proxy.port)),
        ("NO_PROXY", "registry.test".to_owned()),
    ]);
    let error = pull(&store, &format!("{REGISTRY}/test:1"), &options).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
    assert_eq!(proxy.requests().len(), 0);
}

#[tokio::test]
async fn a_tunnel_that_the_proxy_refuses_is_told_with_its_status() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let proxy = Server::start(|_| Reply::new(403)).await;
    let mut options = pull_options();
    options.proxies = proxies(&[("HTTPS_PROXY", format!("127.0.0.1:{}", proxy.port))]);
    let error = pull(&store, "registry.test/test:1", &options).await.unwrap_err();
    assert!(error.to_string().contains("answers 403 for registry.test:443"), "{error}");
    let requests = proxy.requests();
    assert_eq!((requests[0].method(), requests[0].path.as_str()), ("CONNECT", "registry.test:443"));
    assert_eq!(leftovers(&store), [""; 0]);
}

#[tokio::test]
async fn a_registry_behind_a_proxy_sends_nobody_to_a_private_address() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let private = Server::of_image(image(), |_| None).await;
    for host in [format!("127.0.0.1:{}", private.port), "10.0.0.1".to_owned()] {
        let image = image();
        let target = format!("http://{host}/secret");
        let proxy = Server::start(move |request| match request.path.contains("/blobs/") {
            true => Reply::new(307).header("Location", target.clone()),
            false => serve(&image, request),
        });
        let proxy = proxy.await;
        let options = options_through(proxy.port);
        let error = pull(&store, &format!("{REGISTRY}/test:1"), &options).await.unwrap_err();
        assert!(matches!(error, ImageError::Redirect { .. }), "{host}: {error}");
        let asked = proxy.requests();
        assert!(asked.iter().all(|request| !request.path.contains("secret")), "{asked:?}");
    }
    assert_eq!(private.requests().len(), 0, "the private server was asked");
}

/// The first answers to each path, by how often it was asked for before.
fn limited(
    answer: impl Fn(usize) -> Option<Reply> + Send + Sync + 'static,
) -> impl Future<Output = Server> {
    let asked = AtomicUsize::new(0);
    Server::of_image(image(), move |_: &SeenRequest| answer(asked.fetch_add(1, Ordering::SeqCst)))
}

fn too_many(after: &str) -> Reply {
    Reply::new(429).header("Retry-After", after)
}

#[tokio::test]
async fn a_registry_that_limits_its_rate_is_asked_again_when_it_says_so() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    // Two requests out of three.
    let server = limited(|asked| (asked % 3 < 2).then(|| too_many("0"))).await;
    pull(&store, &server.reference(), &pull_options()).await.unwrap();
    assert_eq!(server.requests().len(), 9);
}

#[tokio::test]
async fn one_that_limits_it_for_ever_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let server = limited(|_| Some(too_many("0"))).await;
    let error = pull(&store, &server.reference(), &pull_options()).await.unwrap_err();
    assert!(matches!(error, ImageError::RateLimited { .. }), "{error}");
    assert_eq!(server.requests().len(), 6);
    assert_eq!(leftovers(&store), [""; 0]);
}

#[tokio::test]
async fn a_wait_beyond_the_deadline_is_told_and_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let mut options = pull_options();
    options.limits = ImageLimits { stall_timeout_ms: 5_000, ..options.limits };
    let server = limited(|_| Some(too_many("6"))).await;
    let error = pull(&store, &server.reference(), &options).await.unwrap_err();
    assert!(error.to_string().contains("may be asked again in 6 s"), "{error}");
    assert_eq!(server.requests().len(), 1);
    let down = limited(|_| Some(Reply::new(503))).await;
    let error = pull(&store, &down.reference(), &options).await.unwrap_err();
    assert!(matches!(error, ImageError::Status { status: 503, .. }), "{error}");
    assert_eq!(down.requests().len(), 1, "it is down and does not say for how long");
}
