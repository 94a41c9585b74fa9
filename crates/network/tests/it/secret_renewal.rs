//! Values of secrets that change while connections are open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stockade_core::{RenewalCause, SecretValue};
use stockade_network::{
    ConnectionVerdict, IssuedSecret, SecretIssuer, SecretSet, SecretSupply, TrustStore,
};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_rustls::client::TlsStream;

use crate::helper::{KeptLog, TestHelper, rule_for};
use crate::tls_server::{TlsServer, connect_tls, exchange, open_stream};

const FIRST: &str = "correct-horse-battery-staple";
const SECOND: &str = "another-horse-another-staple";

/// Answers in order, and then that it failed.
struct ListedIssuer(Mutex<VecDeque<&'static str>>);

#[async_trait]
impl SecretIssuer for ListedIssuer {
    async fn issue(&self) -> Result<IssuedSecret, String> {
        let next = self.0.lock().unwrap().pop_front();
        next.map(issue).ok_or_else(|| "its command failed: exit status: 3".to_owned())
    }
}

fn issue(value: &str) -> IssuedSecret {
    IssuedSecret { value: SecretValue::try_from(value.to_owned()).unwrap(), expires: None }
}

struct RenewedConnection {
    stream: TlsStream<DuplexStream>,
    set: Arc<SecretSet>,
    placeholder: String,
    log: Arc<KeptLog>,
}

/// A connection to a server that a secret is bound to, whose later values are these.
async fn open_renewed(server: &TlsServer, later: &[&'static str]) -> RenewedConnection {
    let issuer = ListedIssuer(Mutex::new(later.iter().copied().collect()));
    let supply = Arc::new(SecretSupply::new(issue(FIRST), Arc::new(issuer)));
    let trust = TrustStore::from_pem(server.root_pem.clone().into_bytes()).unwrap();
    let held = vec![("KEY=127.0.0.1".parse().unwrap(), supply)];
    let set = Arc::new(SecretSet::new(held, trust).unwrap());
    let placeholder = set.placeholders().next().unwrap().1.to_owned();
    let rules = [rule_for(server.address)];
    let helper = TestHelper::start_with_secrets(&rules, Some(Arc::clone(&set))).await;
    let log = Arc::clone(&helper.log);
    let stream = open_stream(helper, server.address);
    let stream = connect_tls(stream, &set.bundle(), server.address).await.unwrap();
    RenewedConnection { stream, set, placeholder, log }
}

impl RenewedConnection {
    /// Sends a request with this as the value of a header, and reads the answer.
    async fn get(&mut self, server: &TlsServer, sent: &str) -> String {
        let host = server.address;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Key: {sent}\r\n\r\n");
        exchange(&mut self.stream, &request).await
    }

    async fn get_with_secret(&mut self, server: &TlsServer) -> String {
        let sent = self.placeholder.clone();
        self.get(server, &sent).await
    }
}

/// Takes no other value than the second, and says what it was sent.
fn answer_second(request: &str) -> String {
    let sent = request.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap_or_default();
    let is_second = sent == SECOND;
    let status = if is_second { "200 OK" } else { "401 Unauthorized" };
    let body = if is_second { format!("{sent} not {FIRST}") } else { format!("not {sent}") };
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_value_that_its_host_refuses_is_another_in_the_next_request() {
    let mut server = TlsServer::start(answer_second).await;
    let mut opened = open_renewed(&server, &[SECOND]).await;
    let placeholder = opened.placeholder.clone();
    // A client that asks without it first is no reason.
    let answer = opened.get(&server, "nothing").await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && opened.log.renewals().is_empty(), "{answer}");
    let answer = opened.get_with_secret(&server).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.ends_with(&format!("not {placeholder}")), "{answer}");
    let answer = opened.get_with_secret(&server).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Both values are masked.
    assert!(answer.ends_with(&format!("{placeholder} not {placeholder}")), "{answer}");
    for expected in ["nothing", FIRST, SECOND] {
        let seen = server.request().await;
        assert!(seen.contains(&format!("x-key: {expected}\r\n")), "{seen}");
    }
    let renewals = opened.log.renewals();
    assert_eq!(renewals.len(), 1);
    assert_eq!((renewals[0].secret.as_str(), renewals[0].failure.as_ref()), ("KEY", None));
    assert_eq!(renewals[0].cause, RenewalCause::Unauthorized);
}

#[tokio::test]
async fn a_request_without_a_value_that_holds_is_refused_and_told() {
    let mut server = TlsServer::start(answer_second).await;
    let mut opened = open_renewed(&server, &[]).await;
    opened.set.mark_stale(RenewalCause::Restored);
    let answer = opened.get_with_secret(&server).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("`KEY`") && answer.contains("exit status: 3"), "{answer}");
    // It may have been closed by the other side already.
    let _ = opened.stream.shutdown().await;
    let record = opened.log.wait_for_records(1).await.remove(0);
    let ConnectionVerdict::Denied { reason, .. } = &record.verdict else { panic!("{record:?}") };
    assert!(reason.contains("its command failed") && !reason.contains(FIRST), "{reason}");
    assert!(server.requests.try_recv().is_err(), "the server was asked");
    let renewals = opened.log.renewals();
    assert_eq!((renewals.len(), renewals[0].cause), (1, RenewalCause::Restored));
    assert!(renewals[0].failure.is_some());
}
