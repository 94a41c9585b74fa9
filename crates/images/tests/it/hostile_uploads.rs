//! Registries that send a push elsewhere, lie about what they have stored, or do not answer.

use std::path::Path;

use serde_json::json;
use stockade_images::{CredentialFiles, ImageError, ImageStore, PullOptions, StoredImage};

use crate::support::archive::ArchiveBuilder;
use crate::support::image::TestImage;
use crate::support::server::{Reply, SeenRequest, Server};
use crate::support::{import, pull_options};

const UPLOAD_PATH: &str = "/upload?state=1";

async fn stored(dir: &Path) -> (ImageStore, StoredImage) {
    let archive = ArchiveBuilder::new().file("a", "contents").finish();
    let layout = dir.join("layout");
    TestImage::new(&[archive]).write_layout(&layout);
    let store = ImageStore::open(dir.join("store")).unwrap();
    let image = import(&store, &layout).await.unwrap();
    (store, image)
}

async fn push(
    store: &ImageStore,
    server: &Server,
    options: &PullOptions,
) -> Result<StoredImage, ImageError> {
    let target = server.reference().parse().unwrap();
    store.push("example.org/test:1", Some(&target), options, &()).await
}

/// A registry that has nothing, takes everything, and names this place for uploads.
fn take_all(request: &SeenRequest, location: &str) -> Reply {
    match request.method() {
        "HEAD" => Reply::new(404),
        "POST" => Reply::new(202).header("Location", location),
        _ => Reply::new(201),
    }
}

fn count(server: &Server, method: &str) -> usize {
    server.requests().iter().filter(|request| request.method() == method).count()
}

#[tokio::test]
async fn blobs_go_first_and_the_manifest_last_and_what_is_there_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (store, image) = stored(dir.path()).await;
    let server = Server::start(|request| take_all(request, UPLOAD_PATH)).await;
    let pushed = push(&store, &server, &pull_options()).await.unwrap();
    assert_eq!(pushed.manifest, image.manifest);
    let paths: Vec<_> = server.requests().into_iter().map(|request| request.path).collect();
    assert!(paths.last().unwrap().ends_with("/manifests/1"), "{paths:?}");
    assert!(paths.iter().any(|path| path.starts_with("/upload?state=1&digest=sha256:")));
    assert_eq!(count(&server, "PUT"), 3, "config, layer and manifest");

    let full = Server::start(|request| match request.method() {
        "HEAD" => Reply::new(200),
        _ => Reply::new(201),
    });
    let full = full.await;
    push(&store, &full, &pull_options()).await.unwrap();
    assert_eq!((count(&full, "PUT"), count(&full, "POST")), (1, 0));
}

#[tokio::test]
async fn another_host_gets_the_blob_without_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = stored(dir.path()).await;
    let other = Server::start(|_| Reply::new(201)).await;
    let location = format!("http://127.0.0.1:{}{UPLOAD_PATH}", other.port);
    let server = Server::start(move |request| match request.header("authorization") {
        Some(_) => take_all(request, &location),
        None => Reply::new(401).header("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let server = server.await;
    let file = dir.path().join("auth.json");
    let name = format!("127.0.0.1:{}", server.port);
    let auths = json!({ "auths": { name: { "auth": "YWxpY2U6c2VjcmV0" } } });
    std::fs::write(&file, auths.to_string()).unwrap();
    let credentials = CredentialFiles::at([file]);
    push(&store, &server, &PullOptions { credentials, ..pull_options() }).await.unwrap();
    let sent = other.requests();
    assert_eq!(sent.len(), 2, "config and layer");
    assert!(sent.iter().all(|request| request.header("authorization").is_none()), "{sent:?}");
    let error = push(&store, &server, &pull_options()).await.unwrap_err();
    assert!(matches!(error, ImageError::PushDenied { .. }), "{error}");
}

#[tokio::test]
async fn no_upload_goes_to_a_metadata_service_or_to_no_place_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = stored(dir.path()).await;
    for location in ["http://169.254.169.254/x", "file:///etc/x", "//example.org/x", ""] {
        let server = Server::start(move |request| take_all(request, location)).await;
        let error = push(&store, &server, &pull_options()).await.unwrap_err();
        assert!(matches!(error, ImageError::Redirect { .. }), "{location}: {error}");
        assert_eq!(count(&server, "PUT"), 0);
    }
    let moved = Server::start(|request| match request.method() {
        "HEAD" => Reply::new(404),
        _ => Reply::new(307).header("Location", "/elsewhere"),
    });
    let error = push(&store, &moved.await, &pull_options()).await.unwrap_err();
    assert!(matches!(error, ImageError::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn a_registry_that_stores_something_else_or_answers_nothing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = stored(dir.path()).await;
    let lying = Server::start(|request| {
        let digest = format!("sha256:{}", "0".repeat(64));
        take_all(request, UPLOAD_PATH).header("Docker-Content-Digest", digest)
    });
    let error = push(&store, &lying.await, &pull_options()).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");

    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let target = format!("127.0.0.1:{}/test:1", silent.local_addr().unwrap().port());
    let mut options = pull_options();
    options.limits.stall_timeout_ms = 300;
    let target = target.parse().unwrap();
    let pushed = store.push("example.org/test:1", Some(&target), &options, &()).await;
    assert!(matches!(pushed, Err(ImageError::Stalled { .. })), "{pushed:?}");
}
