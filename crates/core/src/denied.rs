//! Hosts that the network of a sandbox did not let its programs reach, as the outcome of an execution tells them.

use serde::{Deserialize, Serialize};

/// The most hosts that one outcome tells of: a program asks for as many as it likes.
pub const MAX_DENIED_HOSTS: usize = 20;

/// A host that a program asked for and was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeniedHost {
    /// Its name or address.
    pub host: String,
    /// The port; absent where only the name was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The request that was denied, by its method and path, where the host itself was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// What `--net` has to list for it to be reached; absent where another rule denies it, or none can allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_with: Option<String>,
    /// Why it was denied.
    pub reason: String,
}

impl DeniedHost {
    fn asked_for(&self) -> String {
        let host = match self.port {
            Some(port) if self.host.contains(':') => format!("[{}]:{port}", self.host),
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        };
        match &self.request {
            Some(request) => format!("{request} at {host}"),
            None => host,
        }
    }

    fn remedy(&self) -> String {
        match &self.allow_with {
            Some(rule) => format!("allow with --net {rule}"),
            None => self.reason.clone(),
        }
    }
}

/// What is told of a program that failed after it had tried to reach the network of a sandbox that has none.
pub const NO_NETWORK_HINT: &str = "a program tried to reach the network, and the sandbox has none: name what it needs, \
     as in --net HOST, or --net preset:node for packages (also python, rust, go, debian, github)";

/// What was denied, in one sentence with the flag that would allow the first; nothing where nothing was.
pub fn describe_denied_hosts(denied: &[DeniedHost]) -> Option<String> {
    let shown = denied.iter().find(|host| host.allow_with.is_some()).or_else(|| denied.first())?;
    let others = match denied.len() - 1 {
        0 => String::new(),
        // The list is full: there may have been others that it has no room for.
        more if denied.len() >= MAX_DENIED_HOSTS => format!(" and at least {more} more"),
        more => format!(" and {more} more"),
    };
    Some(format!("the network denied {}{others} ({})", shown.asked_for(), shown.remedy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(host: &str, port: Option<u16>, allow_with: Option<&str>) -> DeniedHost {
        let allow_with = allow_with.map(str::to_owned);
        let (request, reason) = (None, "a rule denies it".into());
        DeniedHost { host: host.into(), port, request, allow_with, reason }
    }

    #[test]
    fn a_denial_is_told_in_one_sentence_with_the_flag() {
        let told = |hosts: &[DeniedHost]| describe_denied_hosts(hosts);
        assert_eq!(told(&[]), None);
        let one = denied("nothere.example", Some(443), Some("nothere.example"));
        let flag = "(allow with --net nothere.example)";
        let sentence = format!("the network denied nothere.example:443 {flag}");
        assert_eq!(told(std::slice::from_ref(&one)), Some(sentence));
        let blocked = denied("2001:db8::1", Some(22), None);
        let sentence = "the network denied [2001:db8::1]:22 (a rule denies it)";
        assert_eq!(told(std::slice::from_ref(&blocked)).as_deref(), Some(sentence));
        // One that a flag would allow is of more use than the first.
        let three = [blocked, denied("a.example", None, None), one.clone()];
        let sentence = format!("the network denied nothere.example:443 and 2 more {flag}");
        assert_eq!(told(&three), Some(sentence));
        let request = DeniedHost { request: Some("GET /v2".into()), ..one.clone() };
        let sentence = format!("the network denied GET /v2 at nothere.example:443 {flag}");
        assert_eq!(told(&[request]), Some(sentence));
        let full = vec![one; MAX_DENIED_HOSTS];
        assert!(told(&full).unwrap().contains("and at least 19 more"));
    }
}
