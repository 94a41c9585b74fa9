//! The one resolver: names to addresses, asked from the host. Programs inside never see its answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver};
use stockade_core::{Error, ErrorCode, Result};

/// How long one answer may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 32;
/// Why a name that is known cannot be connected to.
const NO_ADDRESS: &str = "no address";

/// Which name servers are asked. The operator's setting; nothing inside a sandbox changes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolverSettings {
    /// These; the host's own (`/etc/resolv.conf`, `/etc/hosts`) where none is given.
    pub servers: Vec<SocketAddr>,
}

/// Resolves names.
pub struct NameResolver {
    resolver: TokioResolver,
}

impl NameResolver {
    /// A resolver with these settings.
    pub fn new(settings: &ResolverSettings) -> Result<Self> {
        let builder = if settings.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|error| cannot_resolve(&error))?
        } else {
            let servers = settings.servers.iter().map(to_name_server).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let mut options: ResolverOpts = ResolverOpts::default();
        options.timeout = QUERY_TIMEOUT;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        let resolver =
            builder.with_options(options).build().map_err(|error| cannot_resolve(&error))?;
        Ok(Self { resolver })
    }

    /// The addresses of a name in canonical form: at least one. Otherwise why there is none, in a few words.
    pub async fn resolve(&self, name: &str) -> std::result::Result<Vec<IpAddr>, &'static str> {
        // A dot at the end: no search domain is ever added.
        let absolute = format!("{name}.");
        let found = self.resolver.lookup_ip(absolute).await;
        let found = found.map_err(|error| describe_failure(&error))?;
        let addresses: Vec<_> = found.iter().take(MAX_ADDRESSES).collect();
        if addresses.is_empty() { Err(NO_ADDRESS) } else { Ok(addresses) }
    }
}

/// Why a name has no address. What the library says about it is for its own developers.
fn describe_failure(error: &NetError) -> &'static str {
    if error.is_nx_domain() {
        return "no such name";
    }
    if error.is_no_records_found() {
        return NO_ADDRESS;
    }
    let is_silent = matches!(
        error,
        NetError::Timeout | NetError::Io(_) | NetError::NoConnections | NetError::Busy
    );
    match (is_silent, matches!(error, NetError::Dns(_))) {
        (true, _) => "the name server does not answer",
        (false, true) => "the name server answers with an error",
        (false, false) => "the name server's answer cannot be used",
    }
}

fn cannot_resolve(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorCode::System, "network", format!("no name can be resolved here: {error}"))
        .remedy("name a name server in the configuration: `[network] resolvers = [\"ADDRESS:53\"]`")
}

fn to_name_server(server: &SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = server.port();
        connection
    };
    let connections = vec![at_port(ConnectionConfig::udp()), at_port(ConnectionConfig::tcp())];
    NameServerConfig::new(server.ip(), true, connections)
}

#[cfg(test)]
mod tests {
    use hickory_resolver::net::{DnsError, NoRecords};
    use hickory_resolver::proto::op::{Query, ResponseCode};

    use super::*;

    #[test]
    fn failures_are_told_in_plain_words() {
        let no_records = |code| NetError::from(NoRecords::new(Query::default(), code));
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (error, words) in [
            (no_records(ResponseCode::NXDomain), "no such name"),
            (no_records(ResponseCode::NoError), "no address"),
            (NetError::Timeout, "the name server does not answer"),
            (NetError::NoConnections, "the name server does not answer"),
            (refused.into(), "the name server does not answer"),
            (
                DnsError::ResponseCode(ResponseCode::ServFail).into(),
                "the name server answers with an error",
            ),
            (NetError::QueryCaseMismatch, "the name server's answer cannot be used"),
        ] {
            assert_eq!(describe_failure(&error), words, "{error:?}");
        }
    }
}
