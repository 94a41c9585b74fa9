//! What is asked about the network of a sandbox: its rules, and connections to its ports.

use stockade_core::{EgressRule, Result};
use stockade_engine::PortStream;

use super::host::SupervisorHost;
use super::session::ClientSession;
use crate::daemon::frame::SupervisorFrameError;
use crate::daemon::message::{NetworkState, RuleChange, SandboxNetworkRequest, SupervisorReply};
use crate::daemon::port_stream::carry_stream;

const CONNECT_OPERATION: &str = "connect";

/// Answers one request.
pub async fn answer_network_request(
    host: &SupervisorHost,
    request: SandboxNetworkRequest,
) -> Result<SupervisorReply> {
    match request {
        SandboxNetworkRequest::Show => {}
        SandboxNetworkRequest::Change(change) => {
            let change = |old: &[EgressRule]| change.apply(old);
            host.engine.change_network_rules(&host.id, change).await?;
        }
        SandboxNetworkRequest::PreparePorts => {
            host.refuse_paused(CONNECT_OPERATION)?;
            host.engine.prepare_ports(&host.id).await?;
            return Ok(SupervisorReply::Done);
        }
    }
    let policy = host.engine.network(&host.id)?;
    let observed = host.engine.observed_rules(&host.id)?;
    Ok(SupervisorReply::Network(NetworkState { policy, observed }))
}

/// Connects to a port, and carries its bytes until both directions have ended.
pub async fn serve_port(
    mut session: ClientSession,
    port: u16,
) -> std::result::Result<(), SupervisorFrameError> {
    let stream = match connect(&session.host, port).await {
        Ok(stream) => stream,
        Err(error) => return session.fail(&error).await,
    };
    session.reply(&SupervisorReply::Done).await?;
    tokio::select! {
        // Where it breaks, both ends see a reset: the stream is dropped, and the connection closed early.
        _ = carry_stream(&mut session.reader, &mut session.writer, stream) => {}
        _ = session.host.ended() => {}
    }
    Ok(())
}

async fn connect(host: &SupervisorHost, port: u16) -> Result<PortStream> {
    host.refuse_paused(CONNECT_OPERATION)?;
    host.engine.connect_port(&host.id, port).await
}

impl RuleChange {
    /// The rules after the change.
    fn apply(self, old: &[EgressRule]) -> Vec<EgressRule> {
        match self {
            Self::Set(rules) => rules,
            Self::Add(more) => {
                let replaced = |rule: &EgressRule| {
                    let opposite = rule.clone().with_denial(!rule.denies());
                    more.contains(rule) || more.contains(&opposite)
                };
                let kept: Vec<_> = old.iter().filter(|rule| !replaced(rule)).cloned().collect();
                kept.into_iter().chain(more).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_rules(rules: &[&str]) -> Vec<EgressRule> {
        rules.iter().map(|rule| rule.parse().unwrap()).collect()
    }

    #[test]
    fn a_rule_takes_the_place_of_its_opposite() {
        let old = parse_rules(&["a.org", "!b.org", "c.org:22"]);
        for (more, new) in [
            (&["d.org"][..], &["a.org", "!b.org", "c.org:22", "d.org"][..]),
            (&["!a.org", "b.org"], &["c.org:22", "!a.org", "b.org"]),
            (&["a.org"], &["!b.org", "c.org:22", "a.org"]),
            (&["!c.org"], &["a.org", "!b.org", "c.org:22", "!c.org"]),
        ] {
            let change = RuleChange::Add(parse_rules(more));
            assert_eq!(change.apply(&old), parse_rules(new), "{more:?}");
        }
        let set = RuleChange::Set(parse_rules(&["x.org"]));
        assert_eq!(set.apply(&old), parse_rules(&["x.org"]));
    }
}
