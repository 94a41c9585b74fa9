//! Secrets bound to hosts (C-53): which, for which hosts, and where in a request. A spec names them; their values
//! are handed to the engine beside it, and are in no spec, record or snapshot (C-41).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::lists_host;
use crate::secrets::looks_secret;
use crate::{EgressRule, EnvName, Network, SandboxSpec, canonical_host};

/// The most secrets of one sandbox, and the most hosts of one secret.
const MAX_SECRETS: usize = 32;
/// The least bytes of a value: a shorter one could not be told from other text in an answer.
const MIN_VALUE_BYTES: usize = 8;
/// The most bytes of a value: it has to fit into the head of a request, with room for others.
const MAX_VALUE_BYTES: usize = 4096;

/// A secret that is put into requests to its hosts, outside the walls: `NAME=HOST[,HOST…][:header|:body]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretBinding {
    name: EnvName,
    hosts: Vec<String>,
    place: SecretPlace,
}

/// Where in a request a secret may stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecretPlace {
    /// In values of headers.
    #[default]
    Header,
    /// In values of headers and in the body.
    Body,
}

impl SecretBinding {
    /// The variable that holds the placeholder inside.
    pub fn name(&self) -> &EnvName {
        &self.name
    }

    /// The hosts that get the value, in canonical form.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Where in a request it may stand.
    pub fn place(&self) -> SecretPlace {
        self.place
    }
}

/// What is wrong with the secrets of a spec, each with its remedy.
pub(crate) fn list_secret_problems(spec: &SandboxSpec) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    if spec.secrets.len() > MAX_SECRETS {
        let reason = format!("there are more than {MAX_SECRETS}");
        problems.push((reason, "bind fewer".to_owned()));
    }
    for (at, secret) in spec.secrets.iter().enumerate() {
        let name = &secret.name;
        if spec.secrets[..at].iter().any(|other| other.name == *name) {
            let remedy = format!("give all its hosts at once: `--secret {name}=HOST,HOST`");
            problems.push((format!("`{name}` is bound twice"), remedy));
        }
        if spec.env.contains_key(name) {
            let reason = format!("`{name}` is in the environment too, and would be seen inside");
            problems.push((reason, format!("leave out `--env {name}`")));
        }
        // A host that is not connected to gets no secret: then nothing is in force that was promised (C-52).
        for host in secret.hosts.iter().filter(|host| !is_listed(&spec.network, host)) {
            let reason = format!("`{name}` is bound to `{host}`, which no rule allows");
            problems.push((reason, format!("allow it as well: `--net {host}`")));
        }
    }
    problems
}

/// The first secret that is bound to a host which these rules do not list, and that host.
pub fn find_unreached_secret<'a>(
    secrets: &'a [SecretBinding],
    rules: &[EgressRule],
) -> Option<(&'a EnvName, &'a str)> {
    secrets.iter().find_map(|secret| {
        let host = secret.hosts.iter().find(|host| !lists_host(rules, host))?;
        Some((&secret.name, host.as_str()))
    })
}

fn is_listed(network: &Network, host: &str) -> bool {
    match network {
        Network::Egress(rules) => lists_host(rules, host),
        Network::Auto | Network::None | Network::Loopback => false,
    }
}

fn parse_host(given: &str) -> Option<String> {
    let bare = given.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(given);
    match bare.parse::<IpAddr>() {
        Ok(address) => Some(address.to_string()),
        Err(_) => canonical_host(given),
    }
}

impl FromStr for SecretBinding {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        // Only what stands before the first `=` is ever shown: the rest may be the secret itself (C-41).
        let (name, rest) = given
            .split_once('=')
            .ok_or("a secret is bound by `NAME=HOST[,HOST…][:header|:body]`, with an `=`")?;
        let name: EnvName = name.parse().map_err(|_| "the part before `=` names no variable")?;
        // A value that happens to be a host's name in form must not be shown as one later.
        if rest.split(',').any(|host| !host.contains('.') && looks_secret("", host)) {
            return Err(format!("what follows `{name}=` looks like a secret, not like its hosts"));
        }
        let (hosts, place) = match rest.rsplit_once(':') {
            Some((hosts, "header")) => (hosts, SecretPlace::Header),
            Some((hosts, "body")) => (hosts, SecretPlace::Body),
            Some(_) | None => (rest, SecretPlace::Header),
        };
        let hosts: Option<Vec<_>> = hosts.split(',').map(parse_host).collect();
        let hosts = hosts.filter(|hosts| hosts.len() <= MAX_SECRETS).ok_or_else(|| {
            format!(
                "what follows `{name}=` is not a list of hosts: give up to {MAX_SECRETS} names or addresses, \
                 without ports and wildcards, and `:header` or `:body` at the end"
            )
        })?;
        Ok(Self { name, hosts, place })
    }
}

impl TryFrom<String> for SecretBinding {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl From<SecretBinding> for String {
    fn from(secret: SecretBinding) -> String {
        secret.to_string()
    }
}

impl fmt::Display for SecretBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            SecretPlace::Header => "header",
            SecretPlace::Body => "body",
        };
        write!(f, "{}={}:{place}", self.name, self.hosts.join(","))
    }
}

/// The value of a secret. It is never shown: what prints it prints stars. It is serialised for the pipe to the
/// process that supervises a sandbox, and for nothing else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretValue(String);

impl SecretValue {
    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SecretValue {
    type Error = &'static str;

    fn try_from(value: String) -> Result<Self, &'static str> {
        if value.len() < MIN_VALUE_BYTES {
            return Err("its value has fewer than 8 bytes: it could not be told from other text");
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err("its value has more than 4096 bytes");
        }
        if value.chars().any(char::is_control) || value.trim() != value {
            return Err("its value has more than one line, or spaces around it");
        }
        Ok(Self(value))
    }
}

impl From<SecretValue> for String {
    fn from(value: SecretValue) -> String {
        value.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &str) -> SecretBinding {
        given.parse().unwrap()
    }

    #[test]
    fn a_binding_names_a_variable_its_hosts_and_a_place() {
        let plain = parse("KEY=API.example.org.,10.0.0.1");
        assert_eq!(plain.name().as_str(), "KEY");
        assert_eq!(plain.hosts(), ["api.example.org", "10.0.0.1"]);
        assert_eq!(plain.place(), SecretPlace::Header);
        assert_eq!(parse("KEY=a.org:body").place(), SecretPlace::Body);
        assert_eq!(parse("KEY=::1:header").hosts(), ["::1"]);
        assert_eq!(parse("KEY=[::1]").hosts(), ["::1"]);
        for given in ["KEY=a.org,::1:header", "KEY=a.org:body"] {
            assert_eq!(parse(given).to_string(), given);
        }
    }

    #[test]
    fn what_is_no_binding_is_refused_without_showing_it() {
        for given in [
            "sk-0123456789",
            "=a.org",
            "1KEY=a.org",
            "KEY=",
            "KEY=*.a.org",
            "KEY=a.org:443",
            "KEY=a.org:url",
            "KEY=a.org,",
            "KEY=hunter2 hunter2",
            "KEY=sk-proj-0123456789abcdefghijklmnopqrstuvwxyz",
        ] {
            let error = given.parse::<SecretBinding>().unwrap_err();
            assert!(!error.contains("sk-") && !error.contains("hunter2"), "{given}: {error}");
        }
    }

    #[test]
    fn a_value_is_checked_and_never_printed() {
        let value = SecretValue::try_from("correct horse".to_owned()).unwrap();
        assert_eq!((format!("{value:?}").as_str(), value.expose()), ("***", "correct horse"));
        for wrong in ["short", "two\nlines of it", " spaces around ", "a\0bcdefghi"] {
            assert!(SecretValue::try_from(wrong.to_owned()).is_err(), "{wrong:?}");
        }
        assert!(SecretValue::try_from("x".repeat(MAX_VALUE_BYTES + 1)).is_err());
    }

    #[test]
    fn a_secret_needs_a_rule_for_each_of_its_hosts() {
        let problems = |json: &str| {
            let spec: SandboxSpec = serde_json::from_str(json).unwrap();
            list_secret_problems(&spec).into_iter().map(|(reason, _)| reason).collect::<Vec<_>>()
        };
        let fine = r#"{"secrets": ["K=a.org,::1"], "network": {"egress": ["a.org", "::1"]}}"#;
        assert_eq!(problems(fine), Vec::<String>::new());
        assert_eq!(problems(r#"{"secrets": ["K=a.org"]}"#).len(), 1);
        let denied = r#"{"secrets": ["K=a.org"], "network": {"egress": ["a.org", "!a.org"]}}"#;
        assert_eq!(problems(denied).len(), 1);
        // A host that is let through with all others, or asked about, is not listed.
        for word in ["observe", "ask"] {
            let unlisted = format!(
                r#"{{"secrets": ["K=a.org,8.8.8.8"], "network": {{"egress": ["{word}", "b.org"]}}}}"#
            );
            assert_eq!(problems(&unlisted).len(), 2, "{word}");
            let listed = unlisted.replace("b.org", "a.org").replace(",8.8.8.8", "");
            assert_eq!(problems(&listed), Vec::<String>::new(), "{word}");
        }
        let twice = r#"{"secrets": ["K=a.org", "K=a.org"], "network": {"egress": ["a.org"]}}"#;
        assert_eq!(problems(twice), ["`K` is bound twice"]);
        let shown =
            r#"{"secrets": ["K=a.org"], "env": {"K": "v"}, "network": {"egress": ["a.org"]}}"#;
        assert_eq!(problems(shown).len(), 1);
    }
}
