//! Has a daemon build a sandbox, and checks that what it built is what was admitted here (C-02). The sandbox ends
//! with the connection over which it was asked for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use stockade_core::{
    Admitted, BackendChoice, BackendName, Boundary, Enforcement, Error, ErrorCode, LimitKind,
    Limits, Result, SandboxId, SandboxSpec,
};

use super::client::{DaemonCall, DaemonClient, daemon_error, in_time, protocol_error};
use super::probe::FarBackend;
use super::sandbox::{DaemonHold, DaemonSandbox};
use super::sse::SseReader;

/// Timeout for building a sandbox.
const CREATE_TIMEOUT: Duration = Duration::from_secs(110);

/// A sandbox as the daemon tells of it.
#[derive(Deserialize)]
struct FarSandbox {
    id: SandboxId,
    backend: BackendName,
    boundary: Boundary,
    limits: Vec<Enforcement>,
}

pub(super) async fn create_sandbox(
    client: &DaemonClient,
    far: &FarBackend,
    id: &SandboxId,
    admitted: &Admitted,
) -> Result<(DaemonSandbox, DaemonHold)> {
    let spec = build_far_spec(admitted, far, client.token_file.is_none())?;
    let body = json!({ "name": id, "spec": spec });
    let (made, stream) = in_time("create", CREATE_TIMEOUT, async {
        let call = DaemonCall::post("create", "/v1/attached").json(&body).within(CREATE_TIMEOUT);
        let mut stream = client.open_stream(call).await?;
        Ok((read_sandbox(&mut stream).await?, stream))
    })
    .await?;
    check_walls(&made, far, admitted)?;
    check_limits(admitted.enforcement(), &made.limits)?;
    let alive = Arc::new(AtomicBool::new(true));
    let hold = DaemonHold::keep(stream, Arc::clone(&alive));
    let user = admitted.spec().user;
    Ok((DaemonSandbox::new(id.clone(), made.id, user, client.clone(), alive), hold))
}

async fn read_sandbox(stream: &mut SseReader) -> Result<FarSandbox> {
    let failed = |fault| protocol_error("create", "it tells of no sandbox").source(fault);
    let event = stream.next().await.map_err(failed)?;
    match event.kind.as_str() {
        "sandbox" => event.read().map_err(failed),
        _ => Err(protocol_error("create", "it tells of something else than a sandbox")),
    }
}

/// The spec for the daemon: what was admitted, without anything of this host. Environment, directory and user of
/// commands come with each of them. The holder of a token leaves out what the token decides.
fn build_far_spec(admitted: &Admitted, far: &FarBackend, own_user: bool) -> Result<Value> {
    let near = admitted.spec();
    let backend = match own_user {
        true => BackendChoice::Named(far.name.clone()),
        false => BackendChoice::Auto,
    };
    let spec = SandboxSpec {
        backend,
        boundaries: BTreeSet::from([admitted.boundary()]),
        root: near.root,
        user: near.user,
        network: near.network.clone(),
        deterministic: near.deterministic,
        limits: name_limits(admitted),
        strict: near.strict,
        tenant: near.tenant.clone(),
        labels: near.labels.clone(),
        without: near.without.clone(),
        ..SandboxSpec::default()
    };
    let mut spec = serde_json::to_value(spec).map_err(|error| {
        daemon_error(ErrorCode::Invalid, "create", "the spec cannot be written").source(error)
    })?;
    if let (false, Value::Object(fields)) = (own_user, &mut spec) {
        fields.remove("tenant");
    }
    Ok(spec)
}

/// The limits to name, so that no configuration of the daemon sets others. Times that were not asked for depend on
/// the command, by the same rule on both sides.
fn name_limits(admitted: &Admitted) -> Limits {
    let mut named = *admitted.limits();
    for kind in LimitKind::ALL {
        let exact =
            |held: &Enforcement| matches!(held, Enforcement::Fully { limit, .. } if *limit == kind);
        let timed = matches!(kind, LimitKind::WallTime | LimitKind::CpuTime);
        let usual = timed || !admitted.enforcement().iter().any(exact);
        if usual && !admitted.spec().limits.asks_for(kind) {
            named.lift(kind);
        }
    }
    named
}

fn check_walls(made: &FarSandbox, far: &FarBackend, admitted: &Admitted) -> Result<()> {
    if made.backend == far.name && made.boundary == admitted.boundary() {
        return Ok(());
    }
    let message = format!(
        "the daemon built walls by {} ({}), and not by {} ({})",
        made.backend,
        made.boundary,
        far.name,
        admitted.boundary()
    );
    Err(refused(message).remedy("name what it chooses with `backend` in the table [remote]"))
}

/// Fails unless each limit is held there as it was admitted here.
fn check_limits(near: &[Enforcement], far: &[Enforcement]) -> Result<()> {
    for wanted in near {
        let (Enforcement::Fully { limit, value, .. } | Enforcement::Partly { limit, value, .. }) =
            wanted
        else {
            continue;
        };
        if !far.iter().any(|held| is_held_as(wanted, held)) {
            let message = format!("the daemon does not hold the limit of {limit} to {value}");
            let remedy = "name the value that its configuration has: `stockade config show` there";
            return Err(refused(message).remedy(remedy));
        }
    }
    Ok(())
}

fn is_held_as(wanted: &Enforcement, held: &Enforcement) -> bool {
    match (wanted, held) {
        (Enforcement::NotAtAll { .. }, _) => true,
        (
            Enforcement::Fully { limit, value, .. } | Enforcement::Partly { limit, value, .. },
            Enforcement::Fully { limit: far_limit, value: far_value, .. },
        )
        | (
            Enforcement::Partly { limit, value, .. },
            Enforcement::Partly { limit: far_limit, value: far_value, .. },
        ) => limit == far_limit && value == far_value,
        (Enforcement::Fully { .. }, Enforcement::Partly { .. } | Enforcement::NotAtAll { .. })
        | (Enforcement::Partly { .. }, Enforcement::NotAtAll { .. }) => false,
    }
}

fn refused(message: String) -> Error {
    daemon_error(ErrorCode::Refused, "create", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fully(value: &str) -> Enforcement {
        let (value, by) = (value.to_owned(), "a group".to_owned());
        Enforcement::Fully { limit: LimitKind::Memory, value, by }
    }

    fn partly(value: &str) -> Enforcement {
        let (value, by, gap) = (value.to_owned(), "a timer".to_owned(), "a moment".to_owned());
        Enforcement::Partly { limit: LimitKind::Memory, value, by, gap }
    }

    #[test]
    fn a_limit_that_is_held_otherwise_there_is_refused() {
        let unheld = Enforcement::NotAtAll { limit: LimitKind::Memory, reason: "no".into() };
        assert!(check_limits(&[fully("1g")], &[fully("1g")]).is_ok());
        assert!(check_limits(&[partly("1g")], &[fully("1g")]).is_ok());
        assert!(check_limits(std::slice::from_ref(&unheld), &[]).is_ok());
        for far in [vec![fully("2g")], vec![partly("1g")], vec![unheld.clone()], vec![]] {
            let error = check_limits(&[unheld.clone(), fully("1g")], &far).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Refused, "{far:?}");
        }
    }
}
