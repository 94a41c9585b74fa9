//! Specs as callers of the API give them: over what is configured for every sandbox. The holder of a token is
//! held to the configuration, and names nothing of the host (C-05).

use serde_json::{Map, Value};
use stockade_core::{BackendChoice, ErrorCode, Limits, SandboxSpec};

use super::caller::ApiCaller;
use super::failure::ApiFailure;

/// The spec of a sandbox that a caller asks for.
pub(crate) fn build_spec(
    configured: &SandboxSpec,
    given: Map<String, Value>,
    caller: &ApiCaller,
) -> Result<SandboxSpec, ApiFailure> {
    let names_tenant = given.contains_key("tenant");
    let mut spec = merge_spec(configured, given)?;
    if let Some(tenant) = caller.tenant() {
        if names_tenant && spec.tenant != *tenant {
            let message = format!("a sandbox of this token belongs to tenant `{tenant}`");
            return Err(denied(message).remedy("leave `tenant` out"));
        }
        spec.tenant = tenant.clone();
        check_names_no_host(&spec)?;
        check_holds_to(configured, &spec)?;
    }
    Ok(spec)
}

fn merge_spec(
    configured: &SandboxSpec,
    mut given: Map<String, Value>,
) -> Result<SandboxSpec, ApiFailure> {
    let invalid = |error: serde_json::Error| {
        ApiFailure::new(ErrorCode::Invalid, format!("`spec` is not a spec: {error}"))
    };
    let mut merged = serde_json::to_value(configured).map_err(invalid)?;
    // What is left out of the limits keeps what is configured, one by one.
    if let (Some(Value::Object(limits)), Value::Object(usual)) =
        (given.get_mut("limits"), &merged["limits"])
    {
        for (name, value) in usual {
            limits.entry(name).or_insert_with(|| value.clone());
        }
    }
    if let Value::Object(merged) = &mut merged {
        merged.extend(given);
    }
    serde_json::from_value(merged).map_err(invalid)
}

fn check_names_no_host(spec: &SandboxSpec) -> Result<(), ApiFailure> {
    let named = spec.caller_only();
    if named.is_empty() {
        return Ok(());
    }
    let fields: Vec<_> = named.iter().map(|field| format!("`{field}`")).collect();
    let message = format!(
        "{} may be used by the daemon's own user alone: by that a spec names things of the host, opens the \
         network or gives up a wall",
        fields.join(", ")
    );
    Err(denied(message).remedy("leave them out, or ask the daemon's user to make the sandbox"))
}

/// Fails if a spec is laxer than what the operator has configured.
fn check_holds_to(configured: &SandboxSpec, spec: &SandboxSpec) -> Result<(), ApiFailure> {
    let laxer = (configured.strict && !spec.strict).then_some("strict");
    let outside = !configured.boundaries.is_empty()
        && (spec.boundaries.is_empty() || !spec.boundaries.is_subset(&configured.boundaries));
    let laxer = laxer.or(outside.then_some("boundaries"));
    let named = spec.backend != configured.backend && spec.backend != BackendChoice::Auto;
    let laxer = laxer.or(named.then_some("backend"));
    // By a name the daemon would pull with its user's logins, and from where that user alone gets to.
    let laxer = laxer.or((spec.image != configured.image).then_some("image"));
    let Some(field) = laxer.or_else(|| find_exceeded_limit(&configured.limits, &spec.limits))
    else {
        return Ok(());
    };
    let message = format!("`{field}` asks for more than the configuration of the daemon allows");
    Err(denied(message).remedy("ask for less, or leave it out"))
}

/// The first limit that is higher than the configured one.
fn find_exceeded_limit(most: &Limits, given: &Limits) -> Option<&'static str> {
    fn exceeds<T: PartialOrd>(given: Option<T>, most: Option<T>) -> bool {
        most.is_some_and(|most| given.is_none_or(|given| given > most))
    }
    /// What is not configured has the usual value as its maximum.
    fn exceeds_usual<T: PartialOrd>(given: Option<T>, most: Option<T>, usual: Option<T>) -> bool {
        match (given, &most) {
            (Some(given), None) => usual.is_some_and(|usual| given > usual),
            (given, _) => exceeds(given, most),
        }
    }
    let usual = Limits::defaults();
    let limits = [
        ("cpuRate", exceeds(given.cpu_rate, most.cpu_rate)),
        ("cpuTime", exceeds(given.cpu_time, most.cpu_time)),
        ("wallTime", exceeds(given.wall_time, most.wall_time)),
        ("memory", exceeds_usual(given.memory, most.memory, usual.memory)),
        ("disk", exceeds_usual(given.disk, most.disk, usual.disk)),
        ("processes", exceeds_usual(given.processes, most.processes, usual.processes)),
        ("openFiles", exceeds(given.open_files, most.open_files)),
        ("output", exceeds_usual(given.output, most.output, usual.output)),
        ("fuel", exceeds(given.fuel, most.fuel)),
    ];
    limits.into_iter().find(|(_, exceeded)| *exceeded).map(|(name, _)| name)
}

fn denied(message: impl Into<String>) -> ApiFailure {
    ApiFailure::new(ErrorCode::Denied, message)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;
    use stockade_fs::StateDir;

    use super::*;
    use crate::api::{TokenRight, TokenStore};

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn holder() -> ApiCaller {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::open(&StateDir::open(dir.path()).unwrap()).unwrap();
        let (name, tenant) = ("a".parse().unwrap(), "team".parse().unwrap());
        let issued = store.issue(name, tenant, BTreeSet::from([TokenRight::Run]));
        ApiCaller::Holder(issued.unwrap().0)
    }

    fn configured() -> SandboxSpec {
        let spec = json!({
            "limits": {"memory": "1g", "disk": "2g"}, "strict": true, "boundaries": ["hardware"]
        });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn what_is_left_out_is_what_is_configured() {
        let given = object(json!({"limits": {"memory": "64m"}, "labels": {"a": "b"}}));
        let spec = build_spec(&configured(), given, &ApiCaller::OwnUser).unwrap();
        let expected = json!({
            "limits": {"memory": "64m", "disk": "2g"}, "strict": true, "boundaries": ["hardware"],
            "labels": {"a": "b"}
        });
        assert_eq!(spec, serde_json::from_value(expected).unwrap());
        for wrong in [json!({"netwrok": 1}), json!({"limits": {"ram": 1}}), json!({"limits": 1})] {
            assert!(build_spec(&configured(), object(wrong), &ApiCaller::OwnUser).is_err());
        }
    }

    #[test]
    fn the_holder_of_a_token_names_nothing_of_the_host_and_no_other_tenant() {
        let (usual, holder) = (SandboxSpec::default(), holder());
        let spec = build_spec(&usual, Map::new(), &holder).unwrap();
        assert_eq!(spec.tenant.as_str(), "team");
        for wrong in [
            json!({"tenant": "other"}),
            json!({"tenant": "default"}),
            json!({"workspace": {"local": "/"}}),
            json!({"mounts": [{"source": "/", "target": "/x"}]}),
            json!({"image": {"directory": "/"}}),
            json!({"network": {"egress": ["127.0.0.1"]}}),
            json!({"without": ["memory-limit"]}),
            json!({"image": {"named": "debian:12"}}),
            json!({"backend": "landlock"}),
            json!({"limits": {"memory": "16000000000g"}}),
            json!({"limits": {"disk": "2g"}}),
        ] {
            assert!(build_spec(&usual, object(wrong.clone()), &holder).is_err(), "{wrong}");
            let own = build_spec(&usual, object(wrong.clone()), &ApiCaller::OwnUser);
            assert!(own.is_ok(), "{wrong}: {own:?}");
        }
    }

    #[test]
    fn the_holder_of_a_token_is_held_to_the_configuration() {
        let holder = holder();
        assert!(build_spec(&configured(), Map::new(), &holder).is_ok());
        for laxer in [
            json!({"strict": false}),
            json!({"boundaries": []}),
            json!({"boundaries": ["hardware", "shared-kernel"]}),
            json!({"limits": {"memory": "2g"}}),
            json!({"limits": {"memory": null}}),
        ] {
            let built = build_spec(&configured(), object(laxer.clone()), &holder);
            assert!(built.is_err(), "{laxer}");
        }
    }
}
