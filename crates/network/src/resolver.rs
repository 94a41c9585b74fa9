//! The one resolver: names to addresses, asked from the host. Programs inside never see its answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver};
use stockade_core::{Error, ErrorCode, Result};

/// How long one answer may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 32;

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

    /// The addresses of a name in canonical form.
    pub async fn resolve(&self, name: &str) -> std::result::Result<Vec<IpAddr>, String> {
        // A dot at the end: no search domain is ever added.
        let absolute = format!("{name}.");
        let found = self.resolver.lookup_ip(absolute).await.map_err(|error| error.to_string())?;
        Ok(found.iter().take(MAX_ADDRESSES).collect())
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
