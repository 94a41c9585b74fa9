//! Which backend a spec takes: the strongest boundary that can honour it, among those the caller
//! allows, with a reason for each one not taken.

use serde::Serialize;
use stockade_core::{
    Admitted, BackendChoice, BackendName, Boundary, Capabilities, Refusal, Refusals, SandboxSpec,
    admit,
};

/// What was chosen and why nothing else was.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// The backend taken, if any.
    pub chosen: Option<BackendName>,
    /// One for each backend there is, the strongest boundary first.
    pub choices: Vec<Choice>,
    #[serde(skip)]
    pub(crate) admitted: Option<Admitted>,
}

/// Why one backend was taken or not.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// Which backend.
    pub backend: BackendName,
    /// Its boundary.
    pub boundary: Boundary,
    /// Whether it was taken.
    pub taken: bool,
    /// The reason, in one sentence.
    pub why: String,
    /// Everything it cannot honour.
    pub refusals: Vec<Refusal>,
}

/// Chooses among backends that were measured. Pure: the same arguments always give the same choice.
pub fn select(spec: &SandboxSpec, measured: &[Capabilities]) -> Selection {
    let mut ordered: Vec<_> = measured.iter().collect();
    // Stable: backends with the same boundary keep the order of the registry.
    ordered.sort_by_key(|capabilities| std::cmp::Reverse(capabilities.boundary));
    let mut selection = Selection { chosen: None, choices: Vec::new(), admitted: None };
    for capabilities in ordered {
        let verdict = judge_backend(spec, capabilities, &mut selection);
        selection.choices.push(verdict);
    }
    selection
}

fn judge_backend(
    spec: &SandboxSpec,
    capabilities: &Capabilities,
    selection: &mut Selection,
) -> Choice {
    let verdict = |taken, why: String, refusals| Choice {
        backend: capabilities.backend.clone(),
        boundary: capabilities.boundary,
        taken,
        why,
        refusals,
    };
    if let Some(why) = passed_over(spec, capabilities) {
        return verdict(false, why, Vec::new());
    }
    match (admit(spec, capabilities), &selection.chosen) {
        (Err(Refusals(refusals)), _) => verdict(
            false,
            format!("cannot honour the spec: {}", Refusals(refusals.clone())),
            refusals,
        ),
        (Ok(_), Some(taken)) => verdict(false, format!("{taken} is preferred"), Vec::new()),
        (Ok(admitted), None) => {
            selection.chosen = Some(capabilities.backend.clone());
            selection.admitted = Some(admitted);
            verdict(true, taken_because(spec), Vec::new())
        }
    }
}

fn taken_because(spec: &SandboxSpec) -> String {
    match spec.backend {
        BackendChoice::Auto => "the strongest boundary that can honour the spec".into(),
        BackendChoice::Named(_) => "named by the caller".into(),
    }
}

/// Why a backend is not even considered.
fn passed_over(spec: &SandboxSpec, capabilities: &Capabilities) -> Option<String> {
    match &spec.backend {
        BackendChoice::Named(name) if *name == capabilities.backend => None,
        BackendChoice::Named(name) => Some(format!("{name} was named")),
        // Why it cannot be had says more than what it would be.
        BackendChoice::Auto if capabilities.unavailable.is_some() => None,
        BackendChoice::Auto => explain_reserved(capabilities),
    }
}

/// Why a backend that can be had is not chosen automatically.
fn explain_reserved(capabilities: &Capabilities) -> Option<String> {
    let boundary = capabilities.boundary;
    match &capabilities.only_by_name {
        Some(reason) => Some(format!("it is used only when named: {reason}")),
        None if boundary.makes_a_security_claim() => None,
        None => {
            Some(format!("the boundary {boundary} is never chosen automatically; name the backend"))
        }
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::{Feature, Support};

    use super::*;

    fn build_able_capabilities(name: &'static str, boundary: Boundary) -> Capabilities {
        let none = Capabilities::none(BackendName::literal(name), boundary);
        Feature::ALL.iter().fold(none, |all, feature| all.with(*feature, Support::full("test")))
    }

    fn select_backend_name(spec: &SandboxSpec, measured: &[Capabilities]) -> Option<String> {
        select(spec, measured).chosen.map(String::from)
    }

    #[test]
    fn the_strongest_boundary_that_can_honour_the_spec_is_taken() {
        let weak = build_able_capabilities("weak", Boundary::SharedKernel);
        let strong = build_able_capabilities("strong", Boundary::Hardware);
        let spec = SandboxSpec::default();
        assert_eq!(
            select_backend_name(&spec, &[weak.clone(), strong.clone()]).as_deref(),
            Some("strong")
        );
        let lacking = strong.with(Feature::EphemeralWorkspace, Support::missing("none", "none"));
        assert_eq!(select_backend_name(&spec, &[weak, lacking]).as_deref(), Some("weak"));
    }

    #[test]
    fn no_boundary_and_an_emulated_one_are_never_chosen_automatically() {
        let spec = SandboxSpec {
            boundaries: Boundary::ALL.into_iter().collect(),
            ..SandboxSpec::default()
        };
        let measured = [
            build_able_capabilities("mock", Boundary::None),
            build_able_capabilities("vm", Boundary::Emulated),
        ];
        assert_eq!(select_backend_name(&spec, &measured), None);
        let named = SandboxSpec { backend: "vm".parse().unwrap(), ..spec };
        assert_eq!(select_backend_name(&named, &measured).as_deref(), Some("vm"));
    }

    #[test]
    fn what_is_to_be_had_only_by_its_name_is_not_chosen_automatically() {
        let mut odd = build_able_capabilities("odd", Boundary::Hardware);
        odd.only_by_name = Some("`ls` fails in it".into());
        let measured = [build_able_capabilities("plain", Boundary::SharedKernel), odd];
        let spec = SandboxSpec::default();
        assert_eq!(select_backend_name(&spec, &measured).as_deref(), Some("plain"));
        assert!(select(&spec, &measured).choices[0].why.contains("`ls` fails"));
        let named = SandboxSpec { backend: "odd".parse().unwrap(), ..spec };
        assert_eq!(select_backend_name(&named, &measured).as_deref(), Some("odd"));
    }

    #[test]
    fn every_backend_not_taken_has_a_reason() {
        let measured = [
            build_able_capabilities("one", Boundary::SharedKernel),
            build_able_capabilities("two", Boundary::SharedKernel),
            Capabilities::unavailable(
                BackendName::literal("gone"),
                Boundary::Hardware,
                "no daemon",
                "start it",
            ),
            build_able_capabilities("mock", Boundary::None),
        ];
        let selection = select(&SandboxSpec::default(), &measured);
        let why: Vec<_> =
            selection.choices.iter().map(|v| (v.backend.as_str(), v.why.as_str())).collect();
        assert_eq!(selection.chosen.as_ref().map(BackendName::as_str), Some("one"));
        assert_eq!(selection.choices.len(), 4);
        assert!(
            why.iter().any(|(name, why)| *name == "gone" && why.contains("no daemon")),
            "{why:?}"
        );
        assert!(why.iter().any(|(name, why)| *name == "two" && why.contains("one")), "{why:?}");
        let nowhere = Capabilities::unavailable(
            BackendName::literal("nowhere"),
            Boundary::None,
            "no host is configured",
            "name one",
        );
        let told = &select(&SandboxSpec::default(), &[nowhere]).choices[0].why;
        assert!(told.contains("no host is configured"), "{told}");
        assert!(why.iter().any(|(name, why)| *name == "mock" && why.contains("never")), "{why:?}");
    }
}
