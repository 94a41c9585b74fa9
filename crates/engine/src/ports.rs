//! The network of a live sandbox as its owner uses it: connections to its ports, and rules that change while it
//! runs.
//!
//! A sandbox that may reach nothing gets a helper for ports alone when the first port is asked for. That helper
//! offers no name server and no proxy, and no environment names one; its relay has nothing that could connect to
//! another host (C-50).

use std::sync::Arc;

use stockade_core::{
    EgressRule, Error, ErrorCode, Feature, Network, Result, SandboxId, SecretBinding,
    find_unreached_secret,
};
use stockade_network::{PortStream, Relay};

use crate::egress::SandboxNetwork;
use crate::engine::{Engine, EngineInner, lock_mutex};
use crate::journal::Event;
use crate::lifecycle::{RunningSandbox, in_a_task, too_slow};

/// The most rules of one sandbox: twice as many fit a record.
const MAX_RULES: usize = 1000;

const CONNECT_OPERATION: &str = "connect";
const RULES_OPERATION: &str = "net";

impl Engine {
    /// Connects to a port on the own loopback of a live sandbox of this engine. Requires `loopback-network`.
    ///
    /// - Each direction of the stream ends by itself; dropping it early resets the connection.
    /// - `not-found` where nothing listens there.
    pub async fn connect_port(&self, id: &SandboxId, port: u16) -> Result<PortStream> {
        let live = self.inner.live(id)?;
        let relay = self.inner.open_ports(&live).await?;
        relay.connect(port).await
    }

    /// Makes sure that [`Engine::connect_port`] can be used on a sandbox, or says why not.
    pub async fn prepare_ports(&self, id: &SandboxId) -> Result<()> {
        let live = self.inner.live(id)?;
        self.inner.open_ports(&live).await.map(drop)
    }

    /// What a live sandbox of this engine may reach now.
    pub fn network(&self, id: &SandboxId) -> Result<Network> {
        self.inner.live(id).map(|live| live.network_policy())
    }

    /// The rules that would have been enough for what a live sandbox of this engine has reached so far. Nothing where
    /// it was not observed.
    pub fn observed_rules(&self, id: &SandboxId) -> Result<Option<Vec<EgressRule>>> {
        self.inner.live(id).map(|live| live.denials.observed.list())
    }

    /// Puts other rules in force in a sandbox that was made with a list of rules. Connections that they do not
    /// allow are cut, and no others. Recorded before it is done (C-40).
    pub async fn replace_network_rules(
        &self,
        id: &SandboxId,
        rules: Vec<EgressRule>,
    ) -> Result<()> {
        self.change_network_rules(id, |_| rules).await.map(drop)
    }

    /// Like [`Engine::replace_network_rules`], with rules that are made of those in force: no other change
    /// comes between. Answers the new ones.
    pub async fn change_network_rules(
        &self,
        id: &SandboxId,
        change: impl FnOnce(&[EgressRule]) -> Vec<EgressRule> + Send + 'static,
    ) -> Result<Vec<EgressRule>> {
        let (inner, live) = (Arc::clone(&self.inner), self.inner.live(id)?);
        // In a task: a caller who goes away between record and change must not leave the one without the other.
        in_a_task(async move { inner.change_rules(&live, change).await }).await
    }
}

impl EngineInner {
    /// The relay of a sandbox; where it has none because it reaches no other host, one for ports alone.
    async fn open_ports(&self, live: &RunningSandbox) -> Result<Arc<Relay>> {
        let policy = &live.order.admitted.spec().network;
        if matches!(policy, Network::Auto | Network::None) {
            return Err(self.no_loopback(live).await);
        }
        let _changes = live.network_changes.lock().await;
        if let Some(relay) = live.find_relay() {
            return Ok(relay);
        }
        // A helper of a sandbox with rules is never started anew: what ended it was inside (C-52).
        live.check_network()?;
        let start = async {
            let helper = live.sandbox.open_network().await?;
            Relay::start_for_ports(helper).await.map(Arc::new)
        };
        let started = tokio::time::timeout(self.config.create_deadline, start).await;
        let relay = started
            .unwrap_or_else(|_| Err(too_slow(CONNECT_OPERATION, live.order.backend.as_ref())))?;
        let network = SandboxNetwork::for_ports(Arc::clone(&relay));
        *lock_mutex(&live.network) = Some(network);
        Ok(relay)
    }

    async fn no_loopback(&self, live: &RunningSandbox) -> Error {
        let backend = live.order.admitted.backend();
        let measured = self.registry.capabilities(backend).await;
        if !measured.is_some_and(|it| it.has(Feature::LoopbackNetwork)) {
            let error = Error::unsupported(CONNECT_OPERATION, Feature::LoopbackNetwork);
            return error.backend(backend.clone());
        }
        let message = "the sandbox was made without a network, and so it has no ports";
        Error::new(ErrorCode::Denied, CONNECT_OPERATION, message)
            .remedy("make one with `--net loopback`, which is the default")
    }

    /// Puts other rules in force, made of those that are, after they were recorded (C-40).
    pub(crate) async fn change_rules(
        &self,
        live: &RunningSandbox,
        change: impl FnOnce(&[EgressRule]) -> Vec<EgressRule> + Send,
    ) -> Result<Vec<EgressRule>> {
        if !matches!(live.order.admitted.spec().network, Network::Egress(_)) {
            let message = "the sandbox was made without rules, and has no way to other hosts";
            return Err(Error::new(ErrorCode::Denied, RULES_OPERATION, message)
                .remedy("make one with `--net RULE[,RULE…]`"));
        }
        let _changes = live.network_changes.lock().await;
        let old = lock_mutex(&live.rules).clone();
        let new = change(&old);
        check_rule_count(&new)?;
        check_secret_hosts(&live.order.admitted.spec().secrets, &new)?;
        check_authority(live.order.secrets.is_some(), &new)?;
        if let Some(refusal) = self.refuse_asking(new.iter().any(EgressRule::asks)) {
            return Err(Error::new(ErrorCode::Denied, RULES_OPERATION, refusal.reason)
                .remedy(refusal.remedy));
        }
        if new == old {
            return Ok(new);
        }
        let sandbox = live.sandbox.id().clone();
        self.record(Event::RulesReplaced { sandbox, old, new: new.clone() }).await?;
        lock_mutex(&live.rules).clone_from(&new);
        if live.network_policy().observes() {
            live.denials.observed.begin();
        }
        let relay = live.find_relay();
        if let Some(egress) = relay.as_ref().and_then(|relay| relay.egress()) {
            egress.replace_rules(new.clone());
        }
        Ok(new)
    }
}

/// A secret stays bound to hosts that can be reached, as at admission (C-53). Rules that allow nothing are another
/// thing: they cut everything off, and no secret goes anywhere.
fn check_secret_hosts(secrets: &[SecretBinding], rules: &[EgressRule]) -> Result<()> {
    if rules.iter().all(EgressRule::denies) {
        return Ok(());
    }
    match find_unreached_secret(secrets, rules) {
        None => Ok(()),
        Some((name, host)) => {
            let message =
                format!("the secret `{name}` is bound to `{host}`, which these rules do not allow");
            Err(Error::new(ErrorCode::Denied, RULES_OPERATION, message).remedy(format!(
                "keep a rule for `{host}`; or cut off everything, `--set '!0.0.0.0/0,!::/0'`; or end the \
                 sandbox"
            )))
        }
    }
}

/// Requests are judged where TLS can be ended: programs inside have to trust an authority, which they learn at their
/// start (C-52).
fn check_authority(has_authority: bool, rules: &[EgressRule]) -> Result<()> {
    let Some(rule) = rules.iter().find(|rule| rule.names_requests() && !has_authority) else {
        return Ok(());
    };
    let message = format!(
        "`{rule}` is about some requests to its host, and this sandbox was made without the authority by which \
         TLS is opened to judge them"
    );
    Err(Error::new(ErrorCode::Denied, RULES_OPERATION, message).remedy(
        "make a sandbox with at least one such rule, `--net GET@host/path`; it can be changed then",
    ))
}

fn check_rule_count(rules: &[EgressRule]) -> Result<()> {
    let wrong = |message: &str| Error::new(ErrorCode::Invalid, RULES_OPERATION, message);
    match rules.len() {
        0 => Err(wrong("a list without a rule is none")
            .remedy("to cut off everything, deny it: `!0.0.0.0/0,!::/0`")),
        1..=MAX_RULES => Ok(()),
        _ => Err(wrong("there are too many rules")
            .remedy(format!("give at most {MAX_RULES}; `*.host` and ranges cover many at once"))),
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::parse_egress_list;

    use super::*;

    #[test]
    fn rules_that_leave_a_secret_without_its_host_are_refused() {
        let secrets = ["KEY=a.test,b.test".parse().unwrap()];
        let check = |rules: &str| check_secret_hosts(&secrets, &parse_egress_list(rules).unwrap());
        for rules in ["a.test,b.test:8443", "*.test", "a.test,b.test,!c.test", "!0.0.0.0/0,!::/0"] {
            assert!(check(rules).is_ok(), "{rules}");
        }
        assert!(check("ask,observe,a.test,b.test").is_ok());
        for rules in
            ["a.test", "*.test,!b.test", "a.test,**.b.test", "0.0.0.0/0", "observe", "ask,a.test"]
        {
            let error = check(rules).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Denied);
            assert!(error.message().contains("`KEY`"), "{error}");
        }
        assert!(check_secret_hosts(&[], &parse_egress_list("c.test").unwrap()).is_ok());
    }

    #[test]
    fn rules_for_requests_need_an_authority() {
        let check =
            |has: bool, rules: &str| check_authority(has, &parse_egress_list(rules).unwrap());
        assert!(check(true, "GET@a.test/v1").is_ok() && check(false, "a.test,!b.test").is_ok());
        for rules in ["GET@a.test", "a.test,!a.test/v1"] {
            let error = check(false, rules).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Denied, "{error}");
        }
    }
}
