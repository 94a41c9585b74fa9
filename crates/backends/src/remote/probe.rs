//! What a daemon's backend lets its sandboxes enforce, as that side has measured it, without what cannot be carried
//! over its API.

use std::time::Duration;

use serde::Deserialize;
use stockade_core::{
    BackendName, Boundary, Capabilities, Error, ErrorCode, Feature, Result, Support, clean_foreign,
};

use super::client::{DaemonCall, DaemonClient, daemon_error};
use super::{DaemonUrl, NAME};

const NO_DAEMON: &str = "no daemon is configured";
const NO_DAEMON_REMEDY: &str =
    "name one: `--host URL`, STOCKADE_HOST, or `url` in the table [remote] of the configuration";

/// Why it is used by name only: nothing leaves this host just because another backend is missing.
pub(super) const ONLY_BY_NAME: &str = "commands would be sent to another daemon";

/// Timeout for a daemon that may measure its backends first.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(50);
/// The most backends that a daemon tells of.
const MAX_BACKENDS: usize = 64;

const HOST_PATHS: &str = "files of this host are not sent to the daemon";
const COPY_REMEDY: &str = "use --no-workspace, and `stockade cp` for files";
const NO_IMAGE: &str = "images of this host are not sent to the daemon";
const IMAGE_REMEDY: &str = "use the system directories of its host (--image host)";
const SNAPSHOTS: &str = "snapshots are not carried over the daemon's API";
const SNAPSHOT_REMEDY: &str = "take them on the daemon's own host, or choose another backend";

/// Features that cannot be carried over the API, each with the reason and the remedy.
const MISSING_FEATURES: [(Feature, &str, &str); 13] = [
    (Feature::LocalWorkspace, HOST_PATHS, COPY_REMEDY),
    (Feature::OverlayWorkspace, HOST_PATHS, COPY_REMEDY),
    (Feature::ReadOnlyWorkspace, HOST_PATHS, COPY_REMEDY),
    (Feature::ExtraMounts, HOST_PATHS, "leave --mount out, and use `stockade cp` for files"),
    (Feature::HostTrees, HOST_PATHS, "leave --toolchain and --cache out"),
    (Feature::WorkspacePath, HOST_PATHS, "leave --workspace-at out"),
    (Feature::DirectoryImage, NO_IMAGE, IMAGE_REMEDY),
    (Feature::OciImage, NO_IMAGE, IMAGE_REMEDY),
    (Feature::NamedImage, NO_IMAGE, IMAGE_REMEDY),
    (Feature::WasmImage, NO_IMAGE, IMAGE_REMEDY),
    (
        Feature::EgressAllowlist,
        "connections are not carried over the daemon's API",
        "leave --net out, or choose another backend",
    ),
    (Feature::FilesSnapshot, SNAPSHOTS, SNAPSHOT_REMEDY),
    (Feature::FullSnapshot, SNAPSHOTS, SNAPSHOT_REMEDY),
];

/// The backend of a daemon that builds the walls, with what was measured there.
#[derive(Debug, Clone)]
pub(super) struct FarBackend {
    pub name: BackendName,
    capabilities: Capabilities,
}

#[derive(Deserialize)]
struct BackendList {
    backends: Vec<Capabilities>,
}

pub(super) fn no_daemon_error() -> Error {
    daemon_error(ErrorCode::Unavailable, "connect", NO_DAEMON).remedy(NO_DAEMON_REMEDY)
}

pub(super) fn nothing_configured() -> Capabilities {
    Capabilities::unavailable(NAME, Boundary::None, NO_DAEMON, NO_DAEMON_REMEDY)
}

pub(super) fn not_usable(error: &Error) -> Capabilities {
    let remedy = error.hint().unwrap_or("see docs/backends/remote.md");
    Capabilities::unavailable(NAME, Boundary::None, error.message(), remedy)
}

/// The backend that was named, or the one that the daemon would choose for a spec that asks for nothing.
pub(super) async fn find_far_backend(
    client: &DaemonClient,
    named: Option<&BackendName>,
) -> Result<FarBackend> {
    let call = DaemonCall::get("probe", "/v1/backends").within(MEASURE_TIMEOUT);
    let BackendList { backends } = client.ask_json(call).await?;
    // A daemon of an earlier version has no such path.
    client.ask(DaemonCall::get("probe", "/v1/attached")).await?;
    choose_backend(backends, named)
}

fn choose_backend(backends: Vec<Capabilities>, named: Option<&BackendName>) -> Result<FarBackend> {
    // The strongest boundary comes first.
    let fits = |measured: &Capabilities| match named {
        Some(name) => measured.backend == *name,
        None => {
            measured.unavailable.is_none()
                && measured.only_by_name.is_none()
                && measured.boundary.makes_a_security_claim()
        }
    };
    let found = backends.into_iter().take(MAX_BACKENDS).find(fits);
    let Some(found) = found else { return Err(no_backend(named)) };
    let capabilities = found.from_a_peer();
    match &capabilities.unavailable {
        Some((reason, remedy)) => {
            let message = format!("{} is not available there: {reason}", capabilities.backend);
            Err(daemon_error(ErrorCode::Unavailable, "probe", message).remedy(remedy))
        }
        None => Ok(FarBackend { name: capabilities.backend.clone(), capabilities }),
    }
}

fn no_backend(named: Option<&BackendName>) -> Error {
    let message = match named {
        Some(name) => format!("the daemon has no backend `{name}`"),
        None => "the daemon has no backend that it would choose by itself".into(),
    };
    daemon_error(ErrorCode::Unavailable, "probe", message)
        .remedy("see `stockade detect` there, and name one with `backend` in the table [remote]")
}

/// What is different because another daemon builds the walls.
pub(super) fn adapt_capabilities(far: &FarBackend, url: &DaemonUrl) -> Capabilities {
    let mut all = far.capabilities.clone();
    all.backend = NAME;
    all.only_by_name = Some(ONLY_BY_NAME.into());
    all.private_disk = all.private_disk.map(|by| clean_foreign(&by));
    if all.has(Feature::HostImage) {
        let by = format!("{} of the daemon at {url}: system directories of its host", far.name);
        all = all.with(Feature::HostImage, Support::full(by));
    }
    MISSING_FEATURES.into_iter().fold(all, |all, (feature, reason, remedy)| {
        all.with(feature, Support::missing(reason, remedy))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &'static str, boundary: Boundary) -> Capabilities {
        let none = Capabilities::none(BackendName::literal(name), boundary);
        Feature::ALL.iter().fold(none, |all, at| all.with(*at, Support::full("x\u{1b}y")))
    }

    #[test]
    fn the_daemons_own_choice_is_taken_unless_one_is_named() {
        let mut reserved = measured("ssh", Boundary::Hardware);
        reserved.only_by_name = Some("far".into());
        let gone = Capabilities::unavailable(
            BackendName::literal("microvm"),
            Boundary::Hardware,
            "no kvm",
            "get it",
        );
        let native = measured("native", Boundary::SharedKernel);
        let all = || vec![reserved.clone(), gone.clone(), native.clone()];
        assert_eq!(choose_backend(all(), None).unwrap().name.as_str(), "native");
        let named = |name: &'static str| choose_backend(all(), Some(&BackendName::literal(name)));
        assert_eq!(named("ssh").unwrap().name.as_str(), "ssh");
        assert!(named("microvm").unwrap_err().message().contains("no kvm"));
        assert!(named("docker").is_err());
    }

    #[test]
    fn what_cannot_be_carried_is_missing_and_foreign_text_is_cleaned() {
        let far = choose_backend(vec![measured("native", Boundary::SharedKernel)], None).unwrap();
        let adapted = adapt_capabilities(&far, &"unix:///a".parse().unwrap());
        assert_eq!(adapted.backend, NAME);
        assert!(adapted.has(Feature::Stdin) && !adapted.has(Feature::LocalWorkspace));
        for (_, support) in adapted.iter() {
            let text = format!("{support:?}");
            assert!(!text.contains('\u{1b}') && !text.contains("\\u{1b}"), "{text}");
        }
    }
}
