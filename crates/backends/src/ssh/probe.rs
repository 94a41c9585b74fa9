//! What the hosts of a pool let their native backends enforce, together: a feature is there if it is on
//! every host that can be reached, because a sandbox may land on any of them.

use stockade_core::{Boundary, Capabilities, Error, Feature, Support};

use super::NAME;
use super::host::Host;

/// One host and what was measured there.
pub(super) type MeasuredHost = (Host, Result<Capabilities, Error>);

const NO_HOST: &str = "no host is configured";
const NO_HOST_REMEDY: &str =
    "name one in the configuration: `[[ssh.hosts]]` with `name = \"user@host\"`";

/// Why it is used by name only: files never leave this host just because another backend is missing.
pub(super) const ONLY_BY_NAME: &str = "the workspace would be copied to another host";

/// Features that native offers and a copy on another host cannot.
const MISSING_FEATURES: [(Feature, &str, &str); 6] = [
    (
        Feature::DirectoryImage,
        "a directory of this host is not on the other one",
        "use that host's own system directories",
    ),
    (
        Feature::ExtraMounts,
        "directories of this host are not on the other one",
        "put what is needed into the workspace",
    ),
    (
        Feature::HostTrees,
        "directories of this host are not on the other one",
        "leave --toolchain out: the other host's own programs are used",
    ),
    (
        Feature::WorkspacePath,
        "its copy of the workspace is at /workspace",
        "leave --workspace-at out",
    ),
    (
        Feature::OverlayWorkspace,
        "layers of this host are not on the other one",
        "use a local workspace, or an ephemeral one",
    ),
    (
        Feature::Pause,
        "the peer ends a sandbox whose connection is idle, and cannot freeze it",
        "choose a backend that has it",
    ),
];

pub(super) fn nothing_configured() -> Capabilities {
    Capabilities::unavailable(NAME, Boundary::None, NO_HOST, NO_HOST_REMEDY)
}

/// Why a host is not used, and the remedy.
type SkippedHost = (String, String);

/// What all that can be reached have.
pub(super) fn combine_hosts(measured: Vec<MeasuredHost>) -> Capabilities {
    let hosts: Vec<String> = measured.iter().map(|(host, _)| host.name.clone()).collect();
    let (mut usable, mut skipped) = (Vec::new(), Vec::new());
    for (host, measured) in measured {
        match check_usable(&host, measured) {
            Ok(found) => usable.push((host.name, found)),
            Err(reason) => skipped.push(reason),
        }
    }
    let joined =
        |at: fn(&SkippedHost) -> &str| skipped.iter().map(at).collect::<Vec<_>>().join("; ");
    let (reasons, remedies) = (joined(|host| &host.0), joined(|host| &host.1));
    let Some(boundary) = usable.iter().map(|(_, found)| found.boundary).min() else {
        return Capabilities::unavailable(NAME, Boundary::None, reasons, remedies);
    };
    let shared = |feature: Feature| {
        let all = usable.iter().map(|(host, found)| name_host(host, found.support(feature)));
        all.reduce(weaker_support).unwrap_or_else(|| Support::missing(NO_HOST, NO_HOST_REMEDY))
    };
    let mut start = Capabilities::none(NAME, boundary);
    // Also those that cannot be reached now: who names one is told why.
    start.hosts = hosts;
    let private_disk = usable.iter().map(|(_, found)| found.private_disk.clone());
    start.private_disk = private_disk.reduce(Option::and).flatten();
    let all = Feature::ALL.iter().fold(start, |all, at| all.with(*at, shared(*at)));
    let hosts: Vec<_> = usable.iter().map(|(host, _)| format!("`{host}`")).collect();
    adapt_capabilities(all, &hosts.join(", "), &reasons)
}

fn check_usable(
    host: &Host,
    measured: Result<Capabilities, Error>,
) -> Result<Capabilities, SkippedHost> {
    let found = measured.map_err(|error| {
        let remedy = error.hint().unwrap_or("see docs/backends/ssh.md").to_owned();
        (error.message().to_owned(), remedy)
    })?;
    match found.unavailable.clone() {
        Some((reason, remedy)) => Err((format!("host `{}`: {reason}", host.name), remedy)),
        None => Ok(found),
    }
}

/// What is different because it is another host.
fn adapt_capabilities(all: Capabilities, hosts: &str, skipped: &str) -> Capabilities {
    let skipped = if skipped.is_empty() { String::new() } else { format!(" (skipped: {skipped})") };
    let copied = "copied there; changes are copied back after each command";
    let image = format!("read-only mounts of the system directories of {hosts}{skipped}");
    let mut all = all;
    for (feature, by) in [(Feature::LocalWorkspace, copied.to_owned()), (Feature::HostImage, image)]
    {
        if all.has(feature) {
            all = all.with(feature, Support::full(by));
        }
    }
    all.only_by_name = Some(ONLY_BY_NAME.into());
    MISSING_FEATURES.into_iter().fold(all, |all, (feature, reason, remedy)| {
        all.with(feature, Support::missing(reason, remedy))
    })
}

/// Which host it is that lacks something.
fn name_host(host: &str, support: Support) -> Support {
    match support {
        Support::Full { .. } => support,
        Support::Partial { by, gap, remedy } => Support::Partial { by, gap, remedy },
        Support::Missing { reason, remedy } => {
            Support::Missing { reason: format!("host `{host}`: {reason}"), remedy }
        }
    }
}

fn weaker_support(one: Support, two: Support) -> Support {
    let rank = |support: &Support| match support {
        Support::Missing { .. } => 0,
        Support::Partial { .. } => 1,
        Support::Full { .. } => 2,
    };
    if rank(&two) < rank(&one) { two } else { one }
}
