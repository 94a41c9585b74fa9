//! Connections to the hosts of secrets, and to those whose requests are judged: TLS ends here, each request is looked
//! at, and goes on over TLS of this process's own, by which the host is verified. HTTP/1.1 is spoken on both sides.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream as ServerSide;
use tokio_rustls::server::TlsStream as GuestSide;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::connection::RelayError;
use crate::http_relay::{HttpPlan, MAX_HEAD_BYTES, relay_http};
use crate::policy::EgressTarget;
use crate::secrets::SecretSet;
use crate::stream::GuestStream;

/// How long either side may take to agree on keys.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a connection and relays its requests.
pub async fn relay_intercepted(
    secrets: &SecretSet,
    guest: GuestStream,
    socket: TcpStream,
    plan: HttpPlan,
) -> Result<(), RelayError> {
    let guest = accept_guest(secrets, guest, &plan.target).await.map_err(RelayError::Failed)?;
    match connect_server(secrets, socket, &plan.target).await {
        Ok(server) => relay_http(guest, server, plan).await,
        Err(reason) => {
            let _ = timeout(HANDSHAKE_TIMEOUT, answer_failure(guest, &reason)).await;
            Err(RelayError::Failed(reason))
        }
    }
}

async fn accept_guest(
    secrets: &SecretSet,
    guest: GuestStream,
    target: &EgressTarget,
) -> Result<GuestSide<GuestStream>, String> {
    let config = secrets.authority.server_config(target).map_err(|error| error.to_string())?;
    let accepting = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(guest)).await;
    let Ok(accepted) = accepting else {
        return Err("the program did not finish its TLS handshake".into());
    };
    accepted.map_err(|error| {
        format!(
            "the program ended its TLS handshake ({error}); connections to `{target}` are opened to put \
             secrets in or to judge requests, under the certificates that SSL_CERT_FILE names inside"
        )
    })
}

async fn connect_server(
    secrets: &SecretSet,
    socket: TcpStream,
    target: &EgressTarget,
) -> Result<ServerSide<TcpStream>, String> {
    let name = ServerName::try_from(target.to_string()).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(secrets.trust.client_config());
    match timeout(HANDSHAKE_TIMEOUT, connector.connect(name, socket)).await {
        Ok(connected) => {
            connected.map_err(|error| format!("no TLS connection to `{target}`: {error}"))
        }
        Err(_) => Err(format!("`{target}` did not finish its TLS handshake")),
    }
}

/// Tells the program why it gets no answer.
async fn answer_failure(guest: GuestSide<GuestStream>, reason: &str) {
    let body = Bytes::from(format!("stockade: {reason}\n"));
    let service = service_fn(move |_: Request<Incoming>| {
        let mut response = Response::new(Full::new(body.clone()));
        *response.status_mut() = http::StatusCode::BAD_GATEWAY;
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(guest), service);
    // The program may be gone already.
    let _ = serving.await;
}
