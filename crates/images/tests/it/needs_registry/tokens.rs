//! A real registry that takes tokens alone. It gives none itself: a gateway before it does, and forwards all else.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use stockade_images::{CredentialFiles, ImageError, ImageStore, InProcess, PullOptions};

use super::make_layout;
use crate::support::pull_options;
use crate::support::registry::{Registry, TOKEN_ISSUER, TOKEN_SERVICE, run};
use crate::support::server::{Reply, SeenRequest, Server};

/// `alice` with the password `secret`.
const CREDENTIALS: &str = "YWxpY2U6c2VjcmV0";

fn make_key(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-batch", "-days", "2"];
    let files = ["-keyout", &path("token-key.pem"), "-out", &path("token-certificate.pem")];
    run("openssl", &[&new[..], &["-subj", "/CN=tokens"], &files].concat());
}

/// A token for one repository, signed as registries check it.
fn make_token(dir: &Path) -> String {
    let path = |name: &str| dir.join(name).display().to_string();
    let certificate = fs::read_to_string(path("token-certificate.pem")).unwrap();
    let chain: String = certificate.lines().filter(|line| !line.starts_with("-----")).collect();
    let header = json!({ "typ": "JWT", "alg": "RS256", "x5c": [chain] });
    let access = json!({ "type": "repository", "name": "team/test", "actions": ["pull", "push"] });
    let claims = json!({ "iss": TOKEN_ISSUER, "sub": "alice", "aud": TOKEN_SERVICE, "nbf": 0, "iat": 0,
        "exp": 4_000_000_000_u64, "jti": "1", "access": [access] });
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let [header, claims] = [header, claims].map(|part| encode(part.to_string().as_bytes()));
    let unsigned = format!("{header}.{claims}");
    fs::write(path("unsigned"), &unsigned).unwrap();
    let (key, signature) = (path("token-key.pem"), path("signature"));
    let sign = ["dgst", "-sha256", "-sign", &key, "-out", &signature, &path("unsigned")];
    run("openssl", &sign);
    format!("{unsigned}.{}", encode(&fs::read(signature).unwrap()))
}

/// Gives the token for the password, and has the registry answer all else.
fn answer(request: &SeenRequest, registry: u16, token: &str) -> Reply {
    if !request.path.starts_with("/token") {
        return forward(request, registry);
    }
    match request.header("authorization").and_then(|given| given.strip_prefix("Basic ")) {
        Some(CREDENTIALS) => Reply::ok(json!({ "token": token }).to_string().as_bytes()),
        Some(_) | None => Reply::new(401),
    }
}

fn forward(request: &SeenRequest, registry: u16) -> Reply {
    let (method, path) = (request.method(), &request.path);
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{registry}\r\n");
    for name in ["Accept", "Authorization"] {
        if let Some(value) = request.header(name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    let mut stream = TcpStream::connect(("127.0.0.1", registry)).unwrap();
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    parse_reply(&reply)
}

fn parse_reply(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&bytes[..end]);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let reply = Reply { body: bytes[end + 4..].to_vec(), ..Reply::new(status) };
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    // These two are the gateway's own.
    let kept = headers.filter(|(name, _)| !matches!(*name, "Content-Length" | "Connection"));
    kept.fold(reply, |reply, (name, value)| reply.header(name, value))
}

/// Options with the password for the gateway.
fn options_for(dir: &Path, gateway: &str) -> PullOptions {
    let path = dir.join("auth.json");
    let auths = json!({ "auths": { gateway: { "auth": CREDENTIALS } } });
    fs::write(&path, auths.to_string()).unwrap();
    PullOptions { credentials: CredentialFiles::at([path]), ..pull_options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_takes_tokens_is_read_with_one_for_its_repository() {
    let dir = tempfile::tempdir().unwrap();
    make_key(dir.path());
    let token = make_token(dir.path());
    // Each has to know the port of the other.
    let port: Arc<OnceLock<u16>> = Arc::default();
    let known = Arc::clone(&port);
    let gateway =
        Server::start(move |request| answer(request, *known.get().unwrap(), &token)).await;
    let name = format!("127.0.0.1:{}", gateway.port);
    let realm = format!("http://{name}/token");
    let certificate = dir.path().join("token-certificate.pem");
    let registry = Registry::start_with_tokens(&realm, &certificate).await;
    port.set(registry.port()).unwrap();
    registry.fill(&make_layout(dir.path()), "oci");

    let store = ImageStore::open(dir.path().join("store")).unwrap();
    let options = options_for(dir.path(), &name);
    let reference = format!("{name}/team/test:1").parse().unwrap();
    store.pull(&reference, &options, &InProcess, &()).await.unwrap();
    let asked = format!("/token?service={TOKEN_SERVICE}&scope=repository:team/test:pull");
    let requests = gateway.requests();
    assert!(requests.iter().any(|request| request.path == asked), "{requests:?}");
    // The token is for that one, and nobody gets it without the password.
    let other = format!("{name}/team/other:1").parse().unwrap();
    for (reference, options) in [(&other, &options), (&reference, &pull_options())] {
        let error = store.pull(reference, options, &InProcess, &()).await.unwrap_err();
        assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    }
}
