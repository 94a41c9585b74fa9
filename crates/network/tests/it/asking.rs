//! Hosts that no rule covers, and one who decides about them.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stockade_agent::protocol::network::FromHelper;
use stockade_core::EgressRule;
use stockade_network::{ConnectionVerdict, Egress, HostApprover};
use tokio::net::TcpListener;

use crate::helper::{Said, TestHelper, rule_for};

/// Answers every question alike, and keeps them.
pub struct SameAnswer {
    allows: bool,
    asked: Mutex<Vec<String>>,
}

impl SameAnswer {
    pub fn new(allows: bool) -> Arc<Self> {
        Arc::new(Self { allows, asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl HostApprover for SameAnswer {
    async fn approve(
        &self,
        _egress: &Egress,
        rule: EgressRule,
    ) -> Result<Option<EgressRule>, String> {
        self.asked.lock().unwrap().push(rule.to_string());
        if self.allows { Ok(Some(rule)) } else { Err("rather not".into()) }
    }
}

#[tokio::test]
async fn what_is_allowed_once_is_asked_about_again_and_outlives_other_rules() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let person = SameAnswer::new(true);
    let rules = ["ask".into(), rule_for(address)];
    let mut helper = TestHelper::start_asking(&rules, person.clone()).await;
    let host = format!("localhost:{}", address.port());
    helper.open(1, "localhost", address.port());
    let (first, _) = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(1)).await;
    helper.open(3, "localhost", address.port());
    let _second = server.accept().await.unwrap();
    helper.hear_until(&Said::Opened(3)).await;
    assert_eq!(person.asked(), [host.clone(), host.clone()]);
    // The answer goes with the connection; only a rule that denies takes it back.
    helper.egress.replace_rules(vec!["ask".parse().unwrap(), rule_for(address).parse().unwrap()]);
    drop(first);
    helper.hear_until(&Said::End(1)).await;
    helper.say(&FromHelper::End(1));
    let record = helper.wait_for_records(1).await.remove(0);
    assert_eq!(record.verdict, ConnectionVerdict::Allowed { rule: host.clone() });
    let denied = ["ask".into(), rule_for(address), format!("!{host}")];
    helper.egress.replace_rules(denied.iter().map(|rule| rule.parse().unwrap()).collect());
    helper.hear_until(&Said::Reset(3)).await;
}

#[tokio::test]
async fn a_no_is_a_denial_in_the_words_of_the_answer() {
    let person = SameAnswer::new(false);
    let mut helper = TestHelper::start_asking(&["ask".into()], person.clone()).await;
    helper.open(1, "A.org.", 443);
    assert_eq!(helper.hear().await, Some(Said::Refused(1, "rather not".into())));
    let record = helper.wait_for_records(1).await.remove(0);
    let denied = ConnectionVerdict::Denied { reason: "rather not".into(), missing_rule: None };
    assert_eq!(record.verdict, denied);
    assert_eq!(person.asked(), ["a.org"]);
}

#[tokio::test]
async fn special_addresses_denied_hosts_and_no_hosts_are_not_asked_about() {
    let person = SameAnswer::new(true);
    let rules = ["ask", "!b.org"].map(String::from);
    let mut helper = TestHelper::start_asking(&rules, person.clone()).await;
    let hosts = ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.1", "b.org", "127.1", "a b"];
    for (number, host) in (1..).step_by(2).zip(hosts) {
        helper.open(number, host, 443);
        let said = helper.hear().await.unwrap();
        assert!(matches!(said, Said::Refused(of, _) if of == number), "{host}: {said:?}");
    }
    assert_eq!(person.asked(), [""; 0]);
    // A name that leads to such an address is asked about, and stays closed.
    helper.open(101, "localhost", 443);
    assert!(matches!(helper.hear().await, Some(Said::Refused(101, _))));
}

#[tokio::test]
async fn a_lookup_asks_nothing() {
    let person = SameAnswer::new(false);
    let mut helper = TestHelper::start_asking(&["ask".into()], person.clone()).await;
    helper.say(&FromHelper::Lookup(1, "a.org"));
    let Some(Said::Found(1, ports)) = helper.hear().await else { panic!("no answer") };
    assert!(ports.contains(&443), "{ports:?}");
    assert!(person.asked().is_empty());
}

#[tokio::test]
async fn without_one_who_decides_it_is_denied() {
    let mut helper = TestHelper::start(&["ask".into()]).await;
    helper.open(1, "a.org", 443);
    assert!(matches!(helper.hear().await, Some(Said::Refused(1, _))));
}
