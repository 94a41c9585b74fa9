//! `[network]` of the configuration: how other hosts are reached, for sandboxes that may. A proxy is named here alone:
//! no variable sets one.

use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use stockade_core::Bytes;
use stockade_engine::{
    EgressLimits, ProxyBypass, ResolverSettings, TrustSettings, UpstreamProxySettings,
    UpstreamProxyUrl,
};

/// How other hosts are reached. Absent: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct NetworkSetting {
    /// The name servers that are asked; absent: the host's own.
    resolvers: Option<Vec<SocketAddr>>,
    /// A file of certificates that are trusted beside the host's own.
    ca_file: Option<PathBuf>,
    /// The proxy through which hosts are reached; absent: directly.
    #[serde(deserialize_with = "deserialize_parsed")]
    upstream_proxy: Option<UpstreamProxyUrl>,
    /// A file with the user and the password for it.
    upstream_proxy_credentials_file: Option<PathBuf>,
    /// Files with credentials for proxies that a later configuration has replaced. They are as private as before.
    #[serde(skip)]
    replaced_credentials_files: Vec<PathBuf>,
    /// Hosts that are reached without it.
    #[serde(deserialize_with = "deserialize_list")]
    no_proxy: Option<Vec<ProxyBypass>>,
    /// Connections of one sandbox at once.
    connections: Option<NonZeroU32>,
    /// Connections of one sandbox that begin in a second; absent: as many as there are.
    connections_per_second: Option<NonZeroU32>,
    /// Bytes that one sandbox sends and receives; absent: as many as there are.
    bytes: Option<Bytes>,
}

impl NetworkSetting {
    /// Which name servers are asked.
    pub(super) fn resolver(&self) -> ResolverSettings {
        ResolverSettings { servers: self.resolvers.clone().unwrap_or_default() }
    }

    /// Through which proxy hosts are reached, if through one.
    pub(super) fn upstream_proxy(&self) -> Option<UpstreamProxySettings> {
        let url = self.upstream_proxy.clone()?;
        let credentials_file = self.upstream_proxy_credentials_file.clone();
        let bypass = self.no_proxy.clone().unwrap_or_default();
        Some(UpstreamProxySettings { url, credentials_file, bypass })
    }

    /// Whose certificates are accepted.
    pub(super) fn trust(&self) -> TrustSettings {
        TrustSettings { ca_file: self.ca_file.clone() }
    }

    /// How much of the network each sandbox may use.
    pub(super) fn egress_limits(&self) -> EgressLimits {
        let usual = EgressLimits::default();
        EgressLimits {
            connections: self.connections.map_or(usual.connections, |most| most.get() as usize),
            connections_per_second: self.connections_per_second,
            bytes: self.bytes,
        }
    }

    /// What of the host is named here that no guest may see, and what that is.
    pub(super) fn own_paths(&self) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let files =
            self.upstream_proxy_credentials_file.iter().chain(&self.replaced_credentials_files);
        files.map(|file| (file.clone(), "the credentials of an upstream proxy"))
    }

    /// What is wrong here, if anything.
    pub(super) fn problem(&self) -> Option<String> {
        let file = self.upstream_proxy_credentials_file.as_ref()?;
        let is_relative = !file.is_absolute();
        is_relative.then(|| format!("network: `{}` is not an absolute path", file.display()))
    }

    /// These settings, with the ones left out taken from `earlier`. Credentials are for the proxy that they are configured
    /// with: another one that is named later does not get them.
    pub(super) fn merge_over(self, earlier: Self) -> Self {
        let is_same_proxy =
            self.upstream_proxy.is_none() || self.upstream_proxy == earlier.upstream_proxy;
        let mut replaced_credentials_files = self.replaced_credentials_files;
        replaced_credentials_files.extend(earlier.replaced_credentials_files);
        replaced_credentials_files.extend(earlier.upstream_proxy_credentials_file.clone());
        let earlier_file = earlier.upstream_proxy_credentials_file.filter(|_| is_same_proxy);
        Self {
            replaced_credentials_files,
            resolvers: self.resolvers.or(earlier.resolvers),
            ca_file: self.ca_file.or(earlier.ca_file),
            upstream_proxy: self.upstream_proxy.or(earlier.upstream_proxy),
            upstream_proxy_credentials_file: self.upstream_proxy_credentials_file.or(earlier_file),
            no_proxy: self.no_proxy.or(earlier.no_proxy),
            connections: self.connections.or(earlier.connections),
            connections_per_second: self.connections_per_second.or(earlier.connections_per_second),
            bytes: self.bytes.or(earlier.bytes),
        }
    }
}

/// Reads a text by its own parser, whose error is all that is told of it: a text that is refused may hold a password.
fn deserialize_parsed<'de, D, T>(given: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = String::deserialize(given)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn deserialize_list<'de, D, T>(given: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let texts = Vec::<String>::deserialize(given)?;
    let parsed: Result<Vec<T>, T::Err> = texts.iter().map(|text| text.parse()).collect();
    parsed.map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read::parse_settings;
    use super::*;

    fn from_toml(text: &str) -> stockade_core::Result<NetworkSetting> {
        let text = format!("[network]\n{text}");
        Ok(parse_settings(Path::new("/etc/x.toml"), &text, &mut |_| Ok(()))?.network)
    }

    #[test]
    fn a_proxy_is_named_with_its_credentials_and_what_is_reached_without_it() {
        assert_eq!(from_toml("bytes = \"1g\"").unwrap().upstream_proxy(), None);
        let text = "upstreamProxy = \"http://proxy.corp:3128\"\n\
            upstreamProxyCredentialsFile = \"/etc/proxy\"\nnoProxy = [\"**.corp\", \"9.9.9.9\"]";
        let setting = from_toml(text).unwrap();
        let expected = UpstreamProxySettings {
            url: "http://proxy.corp:3128".parse().unwrap(),
            credentials_file: Some("/etc/proxy".into()),
            bypass: vec!["**.corp".parse().unwrap(), "9.9.9.9".parse().unwrap()],
        };
        assert_eq!(setting.upstream_proxy(), Some(expected));
        assert_eq!(setting.own_paths().next().unwrap().0, Path::new("/etc/proxy"));
    }

    #[test]
    fn credentials_stay_with_the_proxy_that_they_are_configured_with() {
        let early = || {
            let text = "upstreamProxy = \"http://a:3128\"\nupstreamProxyCredentialsFile = \"/c\"";
            from_toml(text).unwrap()
        };
        let credentials_under = |text: &str| {
            from_toml(text).unwrap().merge_over(early()).upstream_proxy_credentials_file
        };
        assert!(credentials_under("noProxy = [\"a.org\"]").is_some());
        assert!(credentials_under("upstreamProxy = \"http://a:3128\"").is_some());
        let replaced = "upstreamProxy = \"http://b:3128\"";
        assert_eq!(credentials_under(replaced), None);
        // They are hidden from guests all the same.
        let merged = from_toml(replaced).unwrap().merge_over(early());
        assert!(merged.own_paths().any(|(file, _)| file == Path::new("/c")));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_a_password_in_the_error() {
        for (text, told) in [
            ("upstreamProxy = \"http://me:hunter2@proxy.corp:3128\"", "CredentialsFile"),
            ("upstreamProxy = \"https://me:hunter2@proxy.corp:3128\"", "`http://HOST:PORT`"),
            ("noProxy = [\"!a.org\"]", "`!a.org` names no host"),
            ("upstreamProxyCredentialsFile = \"proxy\"", "not an absolute path"),
        ] {
            let error = from_toml(text).unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("hunter2"), "{error}");
        }
    }
}
