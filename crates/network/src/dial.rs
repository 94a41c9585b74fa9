//! Connecting: resolved once, every address checked, and connected to exactly what was checked, directly or through
//! the operator's proxy.

use std::net::SocketAddr;
use std::time::Duration;

use stockade_core::EgressRule;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::asking::add_grant;
use crate::limits::TenantPlace;
use crate::policy::{Denial, Egress, EgressTarget, SharedNetwork, check_address, check_target};
use crate::special::OwnAddresses;

/// How long one address may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// The most addresses that are tried.
const MAX_ATTEMPTS: usize = 6;

/// A connection to the host that was asked for.
pub struct Dialed {
    pub socket: TcpStream,
    pub address: SocketAddr,
    /// The rule that allows it.
    pub rule: String,
    /// That rule, where it was granted for this connection alone.
    pub grant: Option<EgressRule>,
    /// Its place among the connections of its tenant, for as long as it lasts.
    pub place: Option<TenantPlace>,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialError {
    /// The policy does not allow it.
    Denied(Denial),
    /// It is allowed by this rule, and cannot be done.
    Failed { rule: String, reason: String },
}

/// Connects to a host, if the rules and limits allow it.
pub async fn dial(egress: &Egress, target: &EgressTarget, port: u16) -> Result<Dialed, DialError> {
    let grant = egress.ask_about(target, port).await.map_err(DialError::Denied)?;
    let rules = add_grant(egress.rules(), grant.as_ref());
    let rule = check_target(&rules, target, port).map_err(DialError::Denied)?;
    let place = egress.meter.admit_connection().map_err(DialError::Denied)?;
    let found = match target {
        EgressTarget::Address(address) => Ok(vec![*address]),
        EgressTarget::Name(name) => egress.shared.resolver.resolve(name).await,
    };
    let found = match found {
        Ok(found) => found,
        Err(reason) => return Err(DialError::Failed { rule, reason: reason.into() }),
    };
    let own = OwnAddresses::list();
    let (mut allowed, mut refusal) = (Vec::new(), None);
    for address in found {
        match check_address(&rules, address, port, &own) {
            Ok(()) => allowed.push(SocketAddr::new(address, port)),
            Err(denial) => refusal = Some(denial.reason),
        }
    }
    if let (true, Some(reason)) = (allowed.is_empty(), refusal) {
        return Err(DialError::Denied(
            format!("`{target}` leads to a closed address: {reason}").into(),
        ));
    }
    let route = DialRoute { shared: &egress.shared, target, own: &own };
    match route.connect_first(&alternate_families(allowed)).await {
        Ok((socket, address)) => Ok(Dialed { socket, address, rule, grant, place }),
        Err(reason) => Err(DialError::Failed { rule, reason }),
    }
}

/// One address of each family after the other: a host without the one still reaches the other.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    let pairs = (0..v4.len().max(v6.len())).flat_map(|at| [v4.get(at), v6.get(at)]);
    pairs.flatten().copied().collect()
}

/// How the addresses of one host are connected to.
struct DialRoute<'a> {
    shared: &'a SharedNetwork,
    target: &'a EgressTarget,
    own: &'a OwnAddresses,
}

impl DialRoute<'_> {
    async fn connect_first(
        &self,
        addresses: &[SocketAddr],
    ) -> Result<(TcpStream, SocketAddr), String> {
        let mut last = "no address".to_owned();
        for address in addresses.iter().take(MAX_ATTEMPTS) {
            match self.connect(*address).await {
                Ok(socket) => {
                    // Small messages do not wait for others. A socket that refuses it works as well.
                    let _ = socket.set_nodelay(true);
                    return Ok((socket, *address));
                }
                Err(reason) => last = reason,
            }
        }
        Err(last)
    }

    /// An address that the proxy serves is never connected to directly, also where the proxy fails.
    async fn connect(&self, address: SocketAddr) -> Result<TcpStream, String> {
        let proxy = self.shared.proxy.as_ref();
        match proxy.filter(|proxy| proxy.serves(self.target, address, self.own)) {
            Some(proxy) => proxy.open_tunnel(&self.shared.resolver, address).await,
            None => connect_directly(address).await,
        }
    }
}

async fn connect_directly(address: SocketAddr) -> Result<TcpStream, String> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|error| format!("{address}: {error}")),
        Err(_) => Err(format!("{address} did not answer in {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_among_the_first_that_are_tried() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = ["[2a00::1]:1", "[2a00::2]:1", "[2a00::3]:1", "1.1.1.1:1"].map(parse);
        let order = alternate_families(all.to_vec());
        assert_eq!(order, ["1.1.1.1:1", "[2a00::1]:1", "[2a00::2]:1", "[2a00::3]:1"].map(parse));
    }
}
