//! One list of everything a backend can enforce or offer. Specs need features, backends are measured
//! for them, refusals name them, cases of the conformance kit select by them, and the documentation
//! is written from them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! features {
    ($($variant:ident $name:literal $meaning:literal)*) => {
        /// One thing a backend can enforce or offer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Feature {
            $(#[doc = $meaning] #[serde(rename = $name)] $variant,)*
        }

        impl Feature {
            /// Every feature there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name used in flags, JSON, refusals and documentation.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// What having it means, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning),* }
            }
        }
    };
}

features! {
    FilesystemIsolation "filesystem-isolation" "Host files outside the workspace and mounts cannot be written, and private ones cannot be read."
    ProcessIsolation "process-isolation" "Processes of the host and of other sandboxes can be neither seen nor signalled."
    NetworkIsolation "network-isolation" "No network is reachable beyond what the policy names."
    CompleteKill "complete-kill" "Killing reaches every descendant, also one that forked, daemonised or ignores signals."
    LoopbackNetwork "loopback-network" "The processes of one sandbox can talk to each other over a loopback interface of its own."
    EgressAllowlist "egress-allowlist" "Connections leave for the listed hosts only."
    HostImage "host-image" "The host's own system directories serve as a read-only root."
    DirectoryImage "directory-image" "A directory serves as the root."
    OciImage "oci-image" "An OCI layout or archive serves as the root."
    NamedImage "named-image" "An image that is known by name serves as the root."
    WasmImage "wasm-image" "A WebAssembly module is the program."
    LocalWorkspace "local-workspace" "A host directory is the workspace; changes appear in it."
    OverlayWorkspace "overlay-workspace" "A copy-on-write view of a host directory is the workspace; changes are kept apart from it."
    EphemeralWorkspace "ephemeral-workspace" "An empty workspace that is gone with the sandbox."
    ReadOnlyWorkspace "read-only-workspace" "The workspace cannot be changed, whatever the guest does."
    ExtraMounts "extra-mounts" "Further host directories appear in the sandbox, read-only or writable."
    HostTrees "host-trees" "Toolchains and git directories of the host appear in the sandbox at their own paths."
    WorkspacePath "workspace-path" "The workspace appears at a path of the caller's choice as well."
    CopyOnWriteRoot "copy-on-write-root" "The host's own root may be written to; the changes are gone with the sandbox."
    CopyOnWriteImage "copy-on-write-image" "The root of an image may be written to; the changes are gone with the sandbox."
    ChosenUser "chosen-user" "Everything in the sandbox runs as a user and group of the caller's choice."
    UserPerCommand "user-per-command" "A single command can run as another user than its sandbox's."
    CpuRateLimit "cpu-rate-limit" "The share of processor time is bounded."
    CpuTimeLimit "cpu-time-limit" "The processor time of one execution, descendants included, is bounded."
    WallTimeLimit "wall-time-limit" "The duration of one execution is bounded."
    MemoryLimit "memory-limit" "The memory of the whole sandbox is bounded."
    DiskLimit "disk-limit" "What the sandbox writes to disk is bounded."
    ProcessLimit "process-limit" "The number of processes and threads is bounded."
    OpenFilesLimit "open-files-limit" "The number of open files of each process is bounded."
    OutputLimit "output-limit" "The output that is kept and passed on is bounded."
    FuelLimit "fuel-limit" "The number of instructions of one execution is bounded, by the same count on every machine."
    Determinism "determinism" "The same input gives the same output, byte for byte: clocks, randomness and numbers are fixed."
    Stdin "stdin" "A running program can be fed input."
    Terminal "terminal" "A program can be given a pseudo-terminal that can be resized."
    Signals "signals" "Signals can be sent to a running program."
    FileTransfer "file-transfer" "Files can be read and written from outside while the sandbox lives."
    Pause "pause" "The whole sandbox can be stopped and continued."
    FilesSnapshot "files-snapshot" "The writable files can be captured and brought back."
    FullSnapshot "full-snapshot" "Memory and files can be captured and brought back."
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Feature {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().copied().find(|feature| feature.name() == given);
        known.ok_or_else(|| match find_nearest_feature(given) {
            Some(near) => format!("`{given}` is not a feature; did you mean `{near}`?"),
            None => format!("`{given}` is not a feature; `stockade detect` lists them"),
        })
    }
}

/// A feature whose name holds the given text or the other way round: enough for a typo's remedy.
fn find_nearest_feature(given: &str) -> Option<Feature> {
    let stem = given.trim_end_matches("-limit");
    (stem.len() >= 3)
        .then(|| Feature::ALL.iter().copied().find(|feature| feature.name().contains(stem)))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(*feature));
            assert_eq!(serde_json::to_value(feature).unwrap(), feature.name());
        }
    }

    #[test]
    fn an_unknown_feature_is_refused_with_a_suggestion() {
        let error = "mem-limit".parse::<Feature>().unwrap_err();
        assert!(error.contains("memory-limit"), "{error}");
    }
}
