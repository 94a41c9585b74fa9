//! Connecting: resolved once, every address checked, and connected to exactly what was checked.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::policy::{Egress, Target, check_address, check_target};

/// How long one address may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most addresses that are tried.
const MAX_ATTEMPTS: usize = 4;

/// A connection to the host that was asked for.
pub struct Dialed {
    pub socket: TcpStream,
    pub address: SocketAddr,
    /// The rule that allows it.
    pub rule: String,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialError {
    /// The policy does not allow it.
    Denied(String),
    /// It is allowed, and cannot be done.
    Failed(String),
}

/// Connects to a host, if the rules allow it.
pub async fn dial(egress: &Egress, target: &Target, port: u16) -> Result<Dialed, DialError> {
    let rules = egress.rules();
    let rule = check_target(&rules, target, port).map_err(DialError::Denied)?;
    let found = match target {
        Target::Address(address) => vec![*address],
        Target::Name(name) => egress.resolver.resolve(name).await.map_err(DialError::Failed)?,
    };
    let (mut allowed, mut refusal) = (Vec::new(), None);
    for address in found {
        match check_address(&rules, address, port) {
            Ok(()) => allowed.push(SocketAddr::new(address, port)),
            Err(reason) => refusal = Some(reason),
        }
    }
    if let (true, Some(reason)) = (allowed.is_empty(), refusal) {
        return Err(DialError::Denied(format!("`{target}` leads to {reason}")));
    }
    let (socket, address) = connect_first(target, &allowed).await?;
    Ok(Dialed { socket, address, rule })
}

async fn connect_first(
    target: &Target,
    addresses: &[SocketAddr],
) -> Result<(TcpStream, SocketAddr), DialError> {
    let mut last = format!("`{target}` has no address");
    for address in addresses.iter().take(MAX_ATTEMPTS) {
        last = match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => {
                // Small messages do not wait for others. A socket that refuses it works as well.
                let _ = socket.set_nodelay(true);
                return Ok((socket, *address));
            }
            Ok(Err(error)) => format!("{address}: {error}"),
            Err(_) => format!("{address} did not answer in {} s", CONNECT_TIMEOUT.as_secs()),
        };
    }
    Err(DialError::Failed(last))
}
