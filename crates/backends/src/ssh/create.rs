//! Builds a sandbox on the host that is asked for, or else on the one of the pool that has most room, or on the next
//! one if that cannot be reached or is full.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use stockade_core::{Admitted, Error, ErrorCode, Result, SandboxId};

use super::start::start_far;
use super::{HostedSandbox, NAME, SshWalls};
use crate::agent_sandbox::AgentSandbox;
use crate::linux::lock;
use crate::peer::client::{build_sandbox, check_workspace};

pub(super) async fn create_sandbox(
    ssh: &SshWalls,
    id: &SandboxId,
    admitted: &Admitted,
) -> Result<AgentSandbox> {
    check_workspace(&NAME, admitted)?;
    let live =
        Arc::new(HostedSandbox { host: Mutex::default(), sync: tokio::sync::Mutex::new(None) });
    lock(&ssh.live).insert(id.clone(), Arc::clone(&live));
    let mut reasons = Vec::new();
    for at in rank_hosts(ssh, id, admitted.spec().host.as_deref()) {
        let host = &ssh.hosts[at];
        let started = match start_far(host).await {
            Ok(started) => started,
            Err(error) => {
                reasons.push(error);
                continue;
            }
        };
        *lock(&live.host) = Some(at);
        match build_sandbox(host.peer(), started, id, admitted).await {
            Ok(built) => {
                *live.sync.lock().await = Some(built.sync);
                return Ok(built.sandbox);
            }
            // It is full: nothing was built there.
            Err(error) if error.code() == ErrorCode::QuotaExceeded => reasons.push(error),
            Err(error) => return Err(error),
        }
    }
    Err(no_usable_host(reasons))
}

/// The host that is asked for, or all of them, the one with the most room for its capacity first; those that are
/// alike in an order that differs from sandbox to sandbox.
fn rank_hosts(ssh: &SshWalls, id: &SandboxId, asked: Option<&str>) -> Vec<usize> {
    let live = lock(&ssh.live);
    let on = |at: usize| live.values().filter(|one| *lock(&one.host) == Some(at)).count() as u64;
    let key = |at: &usize| {
        let capacity = u64::from(ssh.hosts[*at].capacity.unwrap_or(u32::MAX));
        let free = capacity.saturating_sub(on(*at)).saturating_mul(1_000_000) / capacity.max(1);
        let mut hasher = DefaultHasher::new();
        (id.as_str(), at).hash(&mut hasher);
        (Reverse(free), on(*at), hasher.finish())
    };
    let fits = |at: &usize| asked.is_none_or(|name| ssh.hosts[*at].name == name);
    let mut all: Vec<usize> = (0..ssh.hosts.len()).filter(fits).collect();
    all.sort_by_key(key);
    all
}

fn no_usable_host(mut reasons: Vec<Error>) -> Error {
    if reasons.len() == 1
        && let Some(only) = reasons.pop()
    {
        return only;
    }
    let told: Vec<_> = reasons.iter().map(|error| error.message().to_owned()).collect();
    let remedies: Vec<_> = reasons.iter().filter_map(|error| error.hint()).collect();
    let message = match told.is_empty() {
        true => "no host is configured".to_owned(),
        false => told.join("; "),
    };
    let error = Error::new(ErrorCode::Unavailable, "create", message).backend(NAME);
    if remedies.is_empty() { error } else { error.remedy(remedies.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::super::Host;
    use super::*;

    fn host(name: &str) -> Host {
        Host { name: name.into(), config: None, options: Vec::new(), capacity: None }
    }

    #[test]
    fn a_host_that_is_asked_for_is_the_only_one() {
        let ssh = SshWalls { hosts: vec![host("a"), host("b")], live: Mutex::default() };
        let id: SandboxId = "x1".parse().unwrap();
        assert_eq!(rank_hosts(&ssh, &id, None).len(), 2);
        assert_eq!(rank_hosts(&ssh, &id, Some("b")), [1]);
        assert_eq!(rank_hosts(&ssh, &id, Some("c")), Vec::<usize>::new());
    }
}
