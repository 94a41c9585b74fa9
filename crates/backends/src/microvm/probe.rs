//! What a machine lets the native backend inside it enforce, and what is different because it is one.

use stockade_core::{Capabilities, Error, Feature, Support};

use super::NAME;
use crate::linux;

/// Features that native offers and a machine of its own cannot, with the reason and the remedy.
const UNSUPPORTED_FEATURES: [(Feature, &str, &str); 4] = [
    (
        Feature::ExtraMounts,
        "directories of this host are not in the machine",
        "put what is needed into the workspace",
    ),
    (
        Feature::HostTrees,
        "directories of this host are not in the machine",
        "leave --toolchain out, or choose another backend",
    ),
    (
        Feature::WorkspacePath,
        "its copy of the workspace is at /workspace",
        "leave --workspace-at out",
    ),
    (
        Feature::OverlayWorkspace,
        "layers of this host are not in the machine",
        "use a local workspace, or an ephemeral one",
    ),
];

/// Features that are provided by other means than in native walls.
const REPLACED_FEATURES: [(Feature, &str); 7] = [
    (
        Feature::LocalWorkspace,
        "copied into the machine; changes are copied back after each command",
    ),
    (Feature::HostImage, "a read-only image of the host's system directories"),
    (Feature::DirectoryImage, "a read-only image made of the directory"),
    (Feature::OciImage, "a read-only image made of the layers"),
    (Feature::FilesystemIsolation, "disks of the machine's own"),
    (Feature::NetworkIsolation, "a machine without a network"),
    (Feature::Pause, "stopping the machine"),
];

/// What is added to what was measured inside, by whether the machine as a whole can be captured.
pub(super) fn add_snapshot_support(inside: Capabilities, captured: bool) -> Capabilities {
    let support = match captured {
        true => Support::full("the machine's memory, devices and disk"),
        false => Support::missing(
            "the memory of the process that runs the machine cannot be read here",
            "take a snapshot of the files",
        ),
    };
    inside.with(Feature::FullSnapshot, support)
}

/// As measured inside, told of the machine.
pub(super) fn adapt_capabilities(
    boundary: stockade_core::Boundary,
    inside: &Capabilities,
) -> Capabilities {
    let mut start = Capabilities::none(NAME, boundary);
    start.private_disk.clone_from(&inside.private_disk);
    let same = |all: Capabilities, at: &Feature| all.with(*at, inside.support(*at));
    let mut all = Feature::ALL.iter().fold(start, same);
    for (feature, by) in REPLACED_FEATURES {
        all = all.with(feature, Support::full(by));
    }
    for (feature, reason, remedy) in UNSUPPORTED_FEATURES {
        all = all.with(feature, Support::missing(reason, remedy));
    }
    all
}

/// It cannot work here.
pub(super) fn unavailable_capabilities(
    boundary: stockade_core::Boundary,
    error: &Error,
) -> Capabilities {
    let remedy = error.hint().unwrap_or("see docs/backends/microvm.md").to_owned();
    Capabilities::unavailable(NAME, boundary, linux::describe_error(error), remedy)
}
