//! A real registry with TLS behind a proxy that knows tunnels only.

use std::sync::{Arc, Mutex};

use stockade_images::{ImageStore, InProcess, RegistryProxies};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use super::make_layout;
use crate::support::registry::{Access, Registry};

/// A proxy whose tunnels all lead to one port of this host.
struct TunnelProxy {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TunnelProxy {
    async fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(join_tunnel(client, to, kept.clone()));
            }
        });
        Self { port, asked }
    }
}

async fn join_tunnel(mut client: TcpStream, to: u16, asked: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    asked.lock().unwrap().push(String::from_utf8(head).unwrap());
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    let mut far = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
    // Either side may be gone.
    let _ = copy_bidirectional(&mut client, &mut far).await;
}

#[tokio::test]
async fn a_registry_with_tls_is_read_through_a_tunnel_of_its_name() {
    let place = tempfile::tempdir().unwrap();
    let registry = Registry::start(Access::Tls).await;
    registry.fill(&make_layout(place.path()), "oci");
    let proxy = TunnelProxy::start(registry.port()).await;
    let mut options = registry.options();
    let settings = options.registries.of(&registry.name());
    options.registries.by_name.insert("registry.test".to_owned(), settings);
    let url = format!("http://u:p@127.0.0.1:{}", proxy.port);
    options.proxies =
        RegistryProxies::of_environment(|name| (name == "HTTPS_PROXY").then(|| url.clone().into()));
    let store = ImageStore::open(place.path().join("store")).unwrap();
    let reference = "registry.test/team/test:1".parse().unwrap();
    let pulled = store.pull(&reference, &options, &InProcess, &()).await.unwrap();
    assert!(pulled.root.is_dir());
    let asked = proxy.asked.lock().unwrap().clone();
    assert!(asked.len() >= 3, "{asked:?}");
    for head in asked {
        assert!(head.starts_with("CONNECT registry.test:443 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nProxy-Authorization: Basic dTpw\r\n"), "{head}");
        assert!(!head.to_lowercase().contains("\r\nauthorization"), "{head}");
    }
}
