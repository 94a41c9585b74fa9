//! The pure check of a spec against capabilities. Only what is admitted reaches a backend (C-01).

use serde::Serialize;

use crate::secret_binding::list_secret_problems;
use crate::secrets::looks_secret;
use crate::{
    BackendName, Boundary, Capabilities, Command, EffectiveLimits, Enforcement, Feature, Image,
    LimitKind, Limits, Network, RootMode, SandboxSpec, Span, Support, Workspace, WorkspaceAt,
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
/// nothing but [`admit`] makes one out of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    spec: SandboxSpec,
    backend: BackendName,
    boundary: Boundary,
    limits: EffectiveLimits,
    enforcement: Vec<Enforcement>,
    cores: u32,
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

    /// The same with its image as an [`ImageProvider`](crate::ImageProvider) has resolved it: the name with its
    /// digest, or for the backend the directory.
    #[must_use]
    pub fn with_resolved_image(&self, image: Image) -> Self {
        Self { spec: SandboxSpec { image, ..self.spec.clone() }, ..self.clone() }
    }

    /// How each limit will be enforced.
    pub fn enforcement(&self) -> &[Enforcement] {
        &self.enforcement
    }

    /// The limits of one command: its own wall time and output cap, never above what the spec names.
    /// At a terminal sits a person, and what is detached may be a server: there the default times do not
    /// hold, only those that were named (C-03).
    pub fn limits_for(&self, command: &Command) -> EffectiveLimits {
        let spec = &self.spec;
        let mut standing = self.limits;
        let timeless = command.terminal.is_some() || command.detached;
        let defaults = [LimitKind::WallTime, LimitKind::CpuTime]
            .into_iter()
            .filter(|kind| timeless && !spec.limits.asks_for(*kind));
        defaults.for_each(|kind| standing.lift(kind));
        let wall_time = tighter_limit(command.wall_time, spec.limits.wall_time);
        let own = Limits {
            cpu_time: implied_cpu_time(wall_time, spec, self.cores),
            wall_time,
            output: tighter_limit(command.output, spec.limits.output),
            ..Limits::default()
        };
        own.or(standing)
    }

    /// How each limit of one command will be enforced, with the values that hold for it.
    pub fn enforcement_for(&self, command: &Command) -> Vec<Enforcement> {
        let limits = self.limits_for(command);
        let own = |enforcement: &Enforcement| match limits.text(enforcement.limit()) {
            Some(value) => enforcement.clone().with_value(value),
            None => enforcement.clone().lifted(),
        };
        self.enforcement.iter().map(own).collect()
    }
}

/// The processor time that a named wall time has room for, where the caller named none (C-03).
fn implied_cpu_time(wall_time: Option<Span>, spec: &SandboxSpec, cores: u32) -> Option<Span> {
    let kind = LimitKind::CpuTime;
    let open = !spec.limits.asks_for(kind) && !spec.without.contains(&kind.feature());
    let wall_time = wall_time.filter(|_| open)?;
    Some(Span::millis(wall_time.as_millis().saturating_mul(u64::from(cores))))
}

fn tighter_limit<T: Ord>(own: Option<T>, named: Option<T>) -> Option<T> {
    match (own, named) {
        (Some(own), Some(named)) => Some(own.min(named)),
        (own, named) => own.or(named),
    }
}

/// Checks a whole spec (C-01). Pure: the same arguments always give the same answer.
pub fn admit(spec: &SandboxSpec, capabilities: &Capabilities) -> Result<Admitted, Refusals> {
    let mut refusals = refuse_fields(spec);
    if let Some(refusal) = refuse_backend(spec, capabilities) {
        // Missing features of a backend that cannot be used would tell the caller nothing.
        refusals.insert(0, refusal);
        return Err(Refusals(refusals));
    }
    let missing = |(feature, field)| refuse_feature(spec, capabilities, feature, field);
    refusals.extend(spec.needs().into_iter().filter_map(missing));
    let asked = LimitKind::ALL.into_iter().filter(|kind| spec.limits.asks_for(*kind));
    refusals.extend(asked.filter_map(|kind| {
        refuse_limit(spec, capabilities, kind)
            .map(|refusal| Refusal { field: format!("limits.{kind}"), ..refusal })
    }));
    if !refusals.is_empty() {
        return Err(Refusals(refusals));
    }
    let (limits, enforcement) = settle_limits(spec, capabilities);
    Ok(Admitted {
        spec: SandboxSpec { network: settle_network(spec, capabilities), ..spec.clone() },
        backend: capabilities.backend.clone(),
        boundary: capabilities.boundary,
        limits,
        enforcement,
        cores: capabilities.cores,
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
    refuse_host(spec.host.as_deref()?, capabilities)
}

fn refuse_host(host: &str, capabilities: &Capabilities) -> Option<Refusal> {
    let Capabilities { backend, hosts, .. } = capabilities;
    if hosts.iter().any(|known| known == host) {
        return None;
    }
    let (reason, remedy) = match hosts.is_empty() {
        true => (
            format!("sandboxes of {backend} are on this host alone"),
            "leave it out, or choose a backend that has several".to_owned(),
        ),
        false => (
            format!("{backend} has no host `{}`", host.escape_debug()),
            format!("choose one of: {}", hosts.join(", ")),
        ),
    };
    Some(wrong_field("host", reason, remedy))
}

/// Refusals of a spec that hold on every backend (C-04).
fn refuse_fields(spec: &SandboxSpec) -> Vec<Refusal> {
    let mut refusals: Vec<_> = spec
        .limits
        .zeroes()
        .map(|kind| wrong_field(&format!("limits.{kind}"), "is zero", "give it a positive value"))
        .collect();
    refusals.extend(
        spec.limits
            .unusable()
            .map(|(kind, reason, remedy)| wrong_field(&format!("limits.{kind}"), reason, remedy)),
    );
    for (at, mount) in spec.all_mounts().enumerate() {
        let field = match at.checked_sub(spec.mounts.len()) {
            None => format!("mounts[{at}].target"),
            Some(at) => format!("trees[{at}].mount.target"),
        };
        if !mount.target.is_absolute() {
            refusals.push(wrong_field(&field, "is not absolute", "give the whole path"));
        }
        if spec.all_mounts().take(at).any(|other| other.target == mount.target) {
            refusals.push(wrong_field(&field, "is named twice", "name each target once"));
        }
    }
    if let Some(problem) = spec.workspace_at.as_ref().and_then(WorkspaceAt::problem) {
        refusals.push(wrong_field("workspaceAt", problem, "name another path"));
    }
    if let Workspace::Overlay(layers) = &spec.workspace
        && let Some((field, reason)) = layers.problem()
    {
        refusals.push(wrong_field(field, reason, "name two new directories beside each other"));
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
    let secrets = list_secret_problems(spec).into_iter();
    refusals.extend(secrets.map(|(reason, remedy)| wrong_field("secrets", reason, remedy)));
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

/// A limit that is watched is applied and told of; who says `strict` has it exact or not at all (C-02).
fn refuse_limit(
    spec: &SandboxSpec,
    capabilities: &Capabilities,
    limit: LimitKind,
) -> Option<Refusal> {
    let feature = limit.feature();
    match capabilities.limit_support(limit, spec) {
        Support::Full { .. } => None,
        Support::Missing { .. } => refuse_feature(spec, capabilities, feature, "limits"),
        Support::Partial { .. } if !spec.strict || spec.without.contains(&feature) => None,
        Support::Partial { by, gap, remedy } => {
            let exact_in_private = limit == LimitKind::Disk && capabilities.private_disk.is_some();
            let remedy = if exact_in_private { private_disk_remedy(spec) } else { remedy };
            let reason = format!("only watched, by {by}: {gap}");
            let remedy = format!("{remedy}, or leave --strict out");
            let (field, feature) = ("limits".into(), Some(feature));
            Some(Refusal { field, feature, reason, remedy, backend: None })
        }
    }
}

/// What would make the disk limit exact. Never what the spec says already.
fn private_disk_remedy(spec: &SandboxSpec) -> String {
    let mounts = spec.mounts.iter().any(|mount| !mount.read_only);
    let steps = [
        spec.writes_to_host_workspace().then_some("use --read-only or --no-workspace"),
        mounts.then_some("make every --mount read-only"),
        (spec.root == RootMode::CopyOnWrite).then_some("leave --writable-root out"),
    ];
    steps.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The network that a sandbox gets: by default its own loopback, which leads nowhere (C-03).
fn settle_network(spec: &SandboxSpec, capabilities: &Capabilities) -> Network {
    match &spec.network {
        Network::Auto => match capabilities.support(Feature::LoopbackNetwork) {
            Support::Full { .. } => Network::Loopback,
            Support::Partial { .. } | Support::Missing { .. } => Network::None,
        },
        asked @ (Network::None | Network::Loopback | Network::Egress(_)) => asked.clone(),
    }
}

/// The limits that will hold, and how (C-02): one given up without a value is not set; everything
/// else is applied as far as it goes.
fn settle_limits(
    spec: &SandboxSpec,
    capabilities: &Capabilities,
) -> (EffectiveLimits, Vec<Enforcement>) {
    let cpu_time = implied_cpu_time(spec.limits.wall_time, spec, capabilities.cores);
    let implied = Limits { cpu_time, ..Limits::default() };
    let mut limits = spec.limits.or(implied).or(Limits::defaults());
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
    Some(match capabilities.limit_support(limit, spec) {
        Support::Full { by } => Enforcement::Fully { limit, value, by },
        Support::Partial { by, gap, .. } => Enforcement::Partly { limit, value, by, gap },
        Support::Missing { reason, .. } => Enforcement::NotAtAll { limit, reason },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TerminalSize;

    fn admit_limits(limits: Limits) -> Admitted {
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
        let by_default = admit_limits(Limits::default()).limits_for(&command);
        assert_eq!(by_default.wall_time, Some(Span::secs(100)));
        let named = Limits { wall_time: Some(Span::secs(10)), ..Limits::default() };
        assert_eq!(admit_limits(named).limits_for(&command).wall_time, Some(Span::secs(10)));
    }

    #[test]
    fn a_host_is_admitted_only_by_a_backend_that_has_it() {
        let none = Capabilities::none(BackendName::literal("all"), Boundary::SharedKernel);
        let all = Feature::ALL
            .iter()
            .fold(none, |all, feature| all.with(*feature, Support::full("test")));
        let mut several = all.clone();
        several.hosts = vec!["alpha".into()];
        let on = |host: &str| SandboxSpec { host: Some(host.into()), ..SandboxSpec::default() };
        assert!(admit(&on("alpha"), &several).is_ok());
        for (spec, capabilities) in [(on("beta"), &several), (on("alpha"), &all)] {
            let refusals = admit(&spec, capabilities).unwrap_err();
            assert_eq!(refusals.0[0].field, "host", "{refusals}");
        }
    }

    #[test]
    fn a_named_wall_time_brings_processor_time_for_every_core() {
        let cores = u64::from(admit_limits(Limits::default()).cores);
        let wall_time = Some(Span::secs(600));
        let named = admit_limits(Limits { wall_time, ..Limits::default() });
        assert_eq!(named.limits().cpu_time, Some(Span::secs(600 * cores)));
        let both = Limits { wall_time, cpu_time: Some(Span::secs(5)), ..Limits::default() };
        assert_eq!(admit_limits(both).limits().cpu_time, Some(Span::secs(5)));
        let by_default = admit_limits(Limits::default());
        assert_eq!(by_default.limits().cpu_time, Some(Span::secs(30)));
        let mut command = Command::program(["true"]);
        command.wall_time = wall_time;
        assert_eq!(by_default.limits_for(&command).cpu_time, Some(Span::secs(600 * cores)));
    }

    #[test]
    fn a_command_is_told_the_values_that_hold_for_it() {
        let wall_of = |command: &Command| {
            let all = admit_limits(Limits::default()).enforcement_for(command);
            all.into_iter().find(|it| it.limit() == LimitKind::WallTime).unwrap()
        };
        let mut command = Command::program(["true"]);
        command.wall_time = Some(Span::secs(2));
        let own = wall_of(&command);
        assert!(matches!(&own, Enforcement::Fully { value, .. } if value == "2s"), "{own:?}");
        let detached = Command { detached: true, ..Command::program(["true"]) };
        assert!(matches!(wall_of(&detached), Enforcement::NotAtAll { .. }));
        assert_eq!(admit_limits(Limits::default()).limits_for(&detached).cpu_time, None);
    }

    fn build_watched_capabilities() -> Capabilities {
        let mut some = Capabilities::none(BackendName::literal("some"), Boundary::SharedKernel);
        for feature in Feature::ALL {
            some = some.with(*feature, Support::full("test"));
        }
        some.with(Feature::DiskLimit, Support::partial("counting", "a gap", "a remedy"))
    }

    fn with_disk(change: impl FnOnce(&mut SandboxSpec)) -> SandboxSpec {
        let limits = Limits { disk: Some(crate::Bytes::mib(64)), ..Limits::default() };
        let mut spec = SandboxSpec { limits, ..SandboxSpec::default() };
        change(&mut spec);
        spec
    }

    fn disk_of(spec: &SandboxSpec, capabilities: &Capabilities) -> Enforcement {
        let admitted =
            admit(spec, capabilities).unwrap_or_else(|refusals| unreachable!("{refusals}"));
        let disk =
            |all: &[Enforcement]| all.iter().find(|it| it.limit() == LimitKind::Disk).cloned();
        disk(admitted.enforcement()).unwrap_or_else(|| unreachable!("it was asked for"))
    }

    fn use_local_workspace(spec: &mut SandboxSpec) {
        let here = crate::HostPath::try_from(std::path::PathBuf::from("/work"));
        spec.workspace = Workspace::Local(here.unwrap());
    }

    #[test]
    fn a_limit_that_is_watched_is_applied_and_told_and_refused_only_by_strict() {
        let spec = with_disk(use_local_workspace);
        assert!(matches!(
            disk_of(&spec, &build_watched_capabilities()),
            Enforcement::Partly { .. }
        ));
        let strict = with_disk(|spec| {
            use_local_workspace(spec);
            spec.strict = true;
        });
        let refusals = admit(&strict, &build_watched_capabilities()).unwrap_err().0;
        assert_eq!(refusals[0].field, "limits.disk");
        assert_eq!(refusals[0].remedy, "a remedy, or leave --strict out");
        let given_up = SandboxSpec { without: [Feature::DiskLimit].into(), ..strict };
        assert!(matches!(
            disk_of(&given_up, &build_watched_capabilities()),
            Enforcement::Partly { .. }
        ));
    }

    #[test]
    fn the_disk_limit_is_exact_where_nothing_of_the_host_is_written() {
        let mut exact = build_watched_capabilities();
        exact.private_disk = Some("a sized one".into());
        let nowhere = with_disk(|spec| spec.strict = true);
        let read_only = with_disk(|spec| {
            use_local_workspace(spec);
            (spec.read_only, spec.strict) = (true, true);
        });
        for spec in [&nowhere, &read_only] {
            assert!(matches!(disk_of(spec, &exact), Enforcement::Fully { .. }));
        }
        assert!(matches!(
            disk_of(&with_disk(use_local_workspace), &exact),
            Enforcement::Partly { .. }
        ));
    }

    #[test]
    fn the_remedy_never_names_what_was_said() {
        let mut exact = build_watched_capabilities();
        exact.private_disk = Some("a sized one".into());
        let remedy = |spec: &SandboxSpec| admit(spec, &exact).unwrap_err().0[0].remedy.clone();
        let writable = with_disk(|spec| {
            use_local_workspace(spec);
            spec.strict = true;
        });
        assert!(remedy(&writable).contains("--read-only"));
        let said = SandboxSpec { read_only: true, root: RootMode::CopyOnWrite, ..writable };
        assert_eq!(remedy(&said), "leave --writable-root out, or leave --strict out");
    }

    #[test]
    fn the_default_network_is_the_sandboxs_own_loopback_where_there_is_one() {
        let network = |spec: &SandboxSpec, capabilities: &Capabilities| {
            let admitted = admit(spec, capabilities);
            admitted.unwrap_or_else(|refusals| unreachable!("{refusals}")).spec().network.clone()
        };
        let missing = || Support::missing("only the host's", "choose another");
        let without = build_watched_capabilities().with(Feature::LoopbackNetwork, missing());
        assert_eq!(
            network(&SandboxSpec::default(), &build_watched_capabilities()),
            Network::Loopback
        );
        assert_eq!(network(&SandboxSpec::default(), &without), Network::None);
        let none = SandboxSpec { network: Network::None, ..SandboxSpec::default() };
        assert_eq!(network(&none, &build_watched_capabilities()), Network::None);
    }

    #[test]
    fn at_a_terminal_only_times_that_were_named_hold() {
        let mut command = Command::program(["sh"]);
        command.terminal = Some(TerminalSize { rows: 24, cols: 80 });
        let free = admit_limits(Limits::default()).limits_for(&command);
        assert_eq!((free.wall_time, free.cpu_time), (None, None));
        assert_eq!(free.memory, Limits::defaults().memory);
        let named = Limits { cpu_time: Some(Span::secs(5)), ..Limits::default() };
        assert_eq!(admit_limits(named).limits_for(&command).cpu_time, Some(Span::secs(5)));
    }
}
