//! The pure check of a spec against capabilities. Only what is admitted reaches a backend (C-01).

use serde::Serialize;

use crate::secrets::looks_secret;
use crate::{
    BackendName, Boundary, Capabilities, Command, EffectiveLimits, Enforcement, Feature, LimitKind,
    Limits, Network, SandboxSpec, Support, Workspace,
};

/// One thing that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// The field of the spec or command that asks for it.
    pub field: String,
    /// The feature that is missing; absent when the field itself is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature: Option<Feature>,
    /// Why it cannot be honoured.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
    /// The backend that refuses, where the caller named none and several did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendName>,
}

impl Refusal {
    /// What is refused, and by whom if that is not plain.
    pub fn subject(&self) -> String {
        let what = self.feature.map_or(self.field.as_str(), |feature| feature.name());
        match &self.backend {
            Some(backend) => format!("{backend}: {what}"),
            None => what.to_owned(),
        }
    }
}

/// Every refusal at once, never just the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusals(pub Vec<Refusal>);

impl std::fmt::Display for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, refusal) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", refusal.subject(), refusal.reason)?;
        }
        Ok(())
    }
}

/// A spec that a backend was found able to honour. Nothing else can be handed to a backend, and
/// nothing but [`admit`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    spec: SandboxSpec,
    backend: BackendName,
    boundary: Boundary,
    limits: EffectiveLimits,
    enforcement: Vec<Enforcement>,
}

impl Admitted {
    /// What was asked for.
    pub fn spec(&self) -> &SandboxSpec {
        &self.spec
    }

    /// Who was found able.
    pub fn backend(&self) -> &BackendName {
        &self.backend
    }

    /// What will stand between the guest and the host's kernel.
    pub fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// The limits to set. Absent: do not set it.
    pub fn limits(&self) -> &EffectiveLimits {
        &self.limits
    }

    /// How each limit will be enforced.
    pub fn enforcement(&self) -> &[Enforcement] {
        &self.enforcement
    }

    /// The limits of one command: its own wall time and output cap, never above what the spec names.
    /// At a terminal sits a person: there the default times do not hold, only those that were named.
    pub fn limits_for(&self, command: &Command) -> EffectiveLimits {
        let mut standing = self.limits;
        let defaults = [LimitKind::WallTime, LimitKind::CpuTime]
            .into_iter()
            .filter(|kind| command.terminal.is_some() && !self.spec.limits.asks_for(*kind));
        defaults.for_each(|kind| standing.lift(kind));
        let own = Limits {
            wall_time: tighter(command.wall_time, self.spec.limits.wall_time),
            output: tighter(command.output, self.spec.limits.output),
            ..Limits::default()
        };
        own.or(standing)
    }
}

fn tighter<T: Ord>(own: Option<T>, named: Option<T>) -> Option<T> {
    match (own, named) {
        (Some(own), Some(named)) => Some(own.min(named)),
        (own, named) => own.or(named),
    }
}

/// Checks a whole spec (C-01). Pure: the same arguments always give the same answer.
pub fn admit(spec: &SandboxSpec, capabilities: &Capabilities) -> Result<Admitted, Refusals> {
    let mut refusals = refuse_fields(spec);
    if let Some(refusal) = refuse_backend(spec, capabilities) {
        // What a backend that is not to be had does not offer either tells nobody anything.
        refusals.insert(0, refusal);
        return Err(Refusals(refusals));
    }
    let missing = |(feature, field)| refuse_feature(spec, capabilities, feature, field);
    refusals.extend(spec.needs().into_iter().filter_map(missing));
    let asked = LimitKind::ALL.into_iter().filter(|kind| spec.limits.asks_for(*kind));
    refusals.extend(asked.filter_map(|kind| {
        refuse_feature(spec, capabilities, kind.feature(), "limits")
            .map(|refusal| Refusal { field: format!("limits.{kind}"), ..refusal })
    }));
    if !refusals.is_empty() {
        return Err(Refusals(refusals));
    }
    let (limits, enforcement) = settle_limits(spec, capabilities);
    Ok(Admitted {
        spec: spec.clone(),
        backend: capabilities.backend.clone(),
        boundary: capabilities.boundary,
        limits,
        enforcement,
    })
}

/// Checks one command for a sandbox that was admitted (C-01, C-04).
pub fn admit_command(
    command: &Command,
    spec: &SandboxSpec,
    capabilities: &Capabilities,
) -> Result<(), Refusals> {
    let wrong = command.problem().map(|(field, reason)| wrong_field(field, reason, "correct it"));
    let missing = |(feature, field)| refuse_feature(spec, capabilities, feature, field);
    let refusals: Vec<_> =
        wrong.into_iter().chain(command.needs().into_iter().filter_map(missing)).collect();
    if refusals.is_empty() { Ok(()) } else { Err(Refusals(refusals)) }
}

fn wrong_field(field: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
    let (reason, remedy) = (reason.into(), remedy.into());
    Refusal { field: field.into(), feature: None, reason, remedy, backend: None }
}

fn refuse_backend(spec: &SandboxSpec, capabilities: &Capabilities) -> Option<Refusal> {
    let Capabilities { backend, boundary, unavailable, .. } = capabilities;
    if let Some((reason, remedy)) = unavailable {
        let reason = format!("{backend} is not available: {reason}");
        return Some(wrong_field("backend", reason, remedy));
    }
    if !spec.boundaries.is_empty() && !spec.boundaries.contains(boundary) {
        let reason = format!("{backend} has the boundary {boundary}, which is not accepted");
        return Some(wrong_field("boundaries", reason, "accept it, or choose another backend"));
    }
    None
}

/// What is wrong whatever the backend (C-04).
fn refuse_fields(spec: &SandboxSpec) -> Vec<Refusal> {
    let mut refusals: Vec<_> = spec
        .limits
        .zeroes()
        .map(|kind| wrong_field(&format!("limits.{kind}"), "is zero", "give it a positive value"))
        .collect();
    for (at, mount) in spec.mounts.iter().enumerate() {
        let field = format!("mounts[{at}].target");
        if !mount.target.is_absolute() {
            refusals.push(wrong_field(&field, "is not absolute", "give the whole path"));
        }
        if spec.mounts[..at].iter().any(|other| other.target == mount.target) {
            refusals.push(wrong_field(&field, "is named twice", "name each target once"));
        }
    }
    if let Workspace::Overlay(layers) = &spec.workspace
        && let Some((field, reason)) = layers.problem()
    {
        refusals.push(wrong_field(field, reason, "name two new directories in one place"));
    }
    if spec.env.values().any(|value| value.contains('\0')) {
        refusals.push(wrong_field("env", "holds a zero byte", "remove it"));
    }
    // Without the label itself, which would be told and recorded then (C-41).
    if spec.labels.iter().any(|(name, value)| looks_secret(name, value)) {
        let reason = "one looks like a secret, and labels are kept in records and listings";
        refusals.push(wrong_field("labels", reason, "leave it out; pass secrets with --env"));
    }
    if matches!(&spec.network, Network::Egress(rules) if rules.is_empty()) {
        refusals.push(wrong_field("network", "lists no host", "list hosts, or ask for `none`"));
    }
    refusals
}

fn refuse_feature(
    spec: &SandboxSpec,
    capabilities: &Capabilities,
    feature: Feature,
    field: &str,
) -> Option<Refusal> {
    if spec.without.contains(&feature) {
        return None;
    }
    let (reason, remedy) = match capabilities.support(feature) {
        Support::Full { .. } => return None,
        Support::Partial { by, gap, remedy } => (format!("only by {by}: {gap}"), remedy),
        Support::Missing { reason, remedy } => (reason, remedy),
    };
    let (field, feature) = (field.into(), Some(feature));
    Some(Refusal { field, feature, reason, remedy, backend: None })
}

/// The limits that will hold, and how (C-02): one given up without a value is not set; everything
/// else is applied as far as it goes.
fn settle_limits(
    spec: &SandboxSpec,
    capabilities: &Capabilities,
) -> (EffectiveLimits, Vec<Enforcement>) {
    let mut limits = spec.limits.or(Limits::defaults());
    for kind in LimitKind::ALL {
        if spec.without.contains(&kind.feature()) && !spec.limits.asks_for(kind) {
            limits.lift(kind);
        }
    }
    let describe = |kind| describe_limit(kind, &limits, spec, capabilities);
    let enforcement = LimitKind::ALL.into_iter().filter_map(describe).collect();
    (limits, enforcement)
}

fn describe_limit(
    limit: LimitKind,
    limits: &Limits,
    spec: &SandboxSpec,
    capabilities: &Capabilities,
) -> Option<Enforcement> {
    let Some(value) = limits.text(limit) else {
        let given_up = spec.without.contains(&limit.feature());
        return given_up.then(|| Enforcement::NotAtAll { limit, reason: "given up".into() });
    };
    Some(match capabilities.support(limit.feature()) {
        Support::Full { by } => Enforcement::Fully { limit, value, by },
        Support::Partial { by, gap, .. } => Enforcement::Partly { limit, value, by, gap },
        Support::Missing { reason, .. } => Enforcement::NotAtAll { limit, reason },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Span, TerminalSize};

    fn admitted(limits: Limits) -> Admitted {
        let none = Capabilities::none(BackendName::literal("all"), Boundary::SharedKernel);
        let all = Feature::ALL
            .iter()
            .fold(none, |all, feature| all.with(*feature, Support::full("test")));
        let spec = SandboxSpec { limits, ..SandboxSpec::default() };
        admit(&spec, &all).unwrap_or_else(|refusals| unreachable!("{refusals}"))
    }

    #[test]
    fn a_command_tightens_what_the_spec_names_and_replaces_what_it_does_not() {
        let mut command = Command::program(["true"]);
        command.wall_time = Some(Span::secs(100));
        let by_default = admitted(Limits::default()).limits_for(&command);
        assert_eq!(by_default.wall_time, Some(Span::secs(100)));
        let named = Limits { wall_time: Some(Span::secs(10)), ..Limits::default() };
        assert_eq!(admitted(named).limits_for(&command).wall_time, Some(Span::secs(10)));
    }

    #[test]
    fn at_a_terminal_only_times_that_were_named_hold() {
        let mut command = Command::program(["sh"]);
        command.terminal = Some(TerminalSize { rows: 24, cols: 80 });
        let free = admitted(Limits::default()).limits_for(&command);
        assert_eq!((free.wall_time, free.cpu_time), (None, None));
        assert_eq!(free.memory, Limits::defaults().memory);
        let named = Limits { cpu_time: Some(Span::secs(5)), ..Limits::default() };
        assert_eq!(admitted(named).limits_for(&command).cpu_time, Some(Span::secs(5)));
    }
}
