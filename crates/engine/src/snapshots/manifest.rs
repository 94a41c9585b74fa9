//! What a snapshot says about itself. Holds no environment, so that no secret can get into it (C-41),
//! and nothing that only a caller may say: no path of a host, no mount, no feature that was given up
//! (C-05). Its hash is no signature: any caller can make a manifest, so each is treated as hostile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stockade_core::{
    BackendChoice, BackendName, Boundary, Bytes, Error, ErrorCode, Feature, Result, SandboxPath,
    SandboxSpec, SnapshotId, SnapshotKind, Workspace,
};
use stockade_fs::Timestamp;

use crate::journal::ContentHash;

/// Format that this version writes, and the newest that it reads.
pub(super) const MANIFEST_FORMAT: u32 = 2;
/// The last whose specs named things of the host they were taken on: they are read without those.
const NAMED_HOST_THINGS: u32 = 1;
/// More than any manifest needs.
pub(super) const MAX_MANIFEST: usize = 1 << 20;
/// More than any backend makes.
const MAX_PARTS: usize = 64;
const MAX_PART_NAME: usize = 64;
/// Seal of a manifest: its hash in hexadecimal, and a newline.
const SEAL_BYTES: usize = 65;

/// A stored snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// The version of this format.
    pub format: u32,
    /// Its id.
    pub id: SnapshotId,
    /// What was captured.
    pub kind: SnapshotKind,
    /// Which backend captured it.
    pub backend: BackendName,
    /// The walls that it was captured behind.
    pub boundary: Boundary,
    /// The processor that it was captured on.
    pub architecture: String,
    /// What that processor has, where programs in it may have come to rely on that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processor: Vec<String>,
    /// When.
    pub taken: Timestamp,
    /// What the sandbox was asked to be, without its environment and what only a caller may say.
    pub spec: SandboxSpec,
    /// What it was shown of its host, which a caller that restores it has to name.
    #[serde(default, skip_serializing_if = "HostThings::is_empty")]
    pub shown: HostThings,
    /// Its files.
    pub parts: BTreeMap<String, Part>,
}

/// What a sandbox was shown of its host, without saying where on the host that is (C-05).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostThings {
    /// The kind of its image, where that lay on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Feature>,
    /// Whether its workspace was the host's and read-only: then no file of it was captured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub workspace: bool,
    /// Where in it mounts appeared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<SandboxPath>,
}

impl HostThings {
    fn of(spec: &SandboxSpec) -> Self {
        Self {
            image: spec.image.is_on_the_host().then(|| spec.image.feature()),
            workspace: spec.read_only && spec.workspace != Workspace::Ephemeral,
            mounts: spec.mounts.iter().map(|mount| mount.target.clone()).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// How long it is, with all that is empty.
    pub size: Bytes,
    /// What it holds.
    pub digest: ContentHash,
}

#[derive(Deserialize)]
struct OnlyFormat {
    format: u32,
}

impl Snapshot {
    /// What is to be said about a state that was just captured.
    pub(super) fn of(
        id: SnapshotId,
        kind: SnapshotKind,
        walls: (BackendName, Boundary),
        spec: &SandboxSpec,
        parts: BTreeMap<String, Part>,
    ) -> Self {
        let (backend, boundary) = walls;
        let shown = HostThings::of(spec);
        let mut spec = spec.portable();
        spec.env.clear();
        spec.backend = BackendChoice::Named(backend.clone());
        let processor = match kind {
            SnapshotKind::Files => Vec::new(),
            SnapshotKind::Full => read_processor_features(),
        };
        let architecture = std::env::consts::ARCH.to_owned();
        let (format, taken) = (MANIFEST_FORMAT, Timestamp::now());
        Self {
            format,
            id,
            kind,
            backend,
            boundary,
            architecture,
            processor,
            taken,
            spec,
            shown,
            parts,
        }
    }

    /// How much it holds, with all that is empty.
    pub fn size(&self) -> Bytes {
        Bytes(self.parts.values().fold(0, |sum, part| sum.saturating_add(part.size.0)))
    }

    /// The manifest as it is kept: a hash over every byte that follows it.
    pub(super) fn seal(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self)
            .map_err(|error| build_damaged_error("it cannot be written").source(error))?;
        let mut sealed = format!("{}\n", hash_bytes(&json)).into_bytes();
        sealed.extend(json);
        match sealed.len() <= MAX_MANIFEST {
            true => Ok(sealed),
            false => Err(build_damaged_error("it has fields that are not allowed")),
        }
    }

    /// What a sealed manifest says, if it is whole and this version can read it.
    pub(super) fn unseal(sealed: &[u8]) -> Result<Self> {
        let (seal, json) = sealed
            .split_at_checked(SEAL_BYTES)
            .ok_or_else(|| build_damaged_error("its manifest is cut off"))?;
        if seal != format!("{}\n", hash_bytes(json)).as_bytes() {
            return Err(build_damaged_error("its manifest was changed or is cut off"));
        }
        let unreadable = |error| build_damaged_error("its manifest cannot be read").source(error);
        let OnlyFormat { format } = serde_json::from_slice(json).map_err(unreadable)?;
        if format > MANIFEST_FORMAT {
            let message =
                format!("it has format {format}; this version reads up to {MANIFEST_FORMAT}");
            return Err(Error::new(ErrorCode::Unsupported, "read a snapshot", message)
                .remedy("use a newer version of Stockade"));
        }
        let mut snapshot: Self = serde_json::from_slice(json).map_err(unreadable)?;
        if format <= NAMED_HOST_THINGS {
            snapshot.leave_host_things_out();
        }
        snapshot.check()?;
        Ok(snapshot)
    }

    /// Makes one of an older format one of today's: what it names of a host is not looked at again.
    fn leave_host_things_out(&mut self) {
        self.format = MANIFEST_FORMAT;
        self.shown = HostThings::of(&self.spec);
        self.spec = self.spec.portable();
    }

    /// A hash proves that nothing changed on the way, not that the maker is to be trusted.
    fn check(&self) -> Result<()> {
        let named = |name: &String| is_part_name(name);
        if self.parts.len() > MAX_PARTS || !self.parts.keys().all(named) {
            return Err(build_damaged_error("its parts are not named as parts are"));
        }
        if !self.spec.env.is_empty() {
            return Err(build_damaged_error("it carries an environment"));
        }
        match self.spec.caller_only()[..] {
            [] => Ok(()),
            ref fields => Err(build_damaged_error(format!(
                "it sets what only the caller may set: {}",
                fields.join(", ")
            ))),
        }
    }

    /// Whether this host can bring it back.
    pub fn fits_this_host(&self) -> Result<()> {
        let unfit = |message: String| {
            Error::new(ErrorCode::Unsupported, "restore", message)
                .remedy("restore it on a host like the one it was taken on")
        };
        let here = std::env::consts::ARCH;
        if self.architecture != here {
            let message = format!("it was taken on `{}`, and this is `{here}`", self.architecture);
            return Err(unfit(message));
        }
        let have = read_processor_features();
        let missing: Vec<_> =
            self.processor.iter().filter(|feature| !have.contains(feature)).cloned().collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(unfit(format!("this CPU lacks {}", missing.join(", ")))),
        }
    }
}

/// Whether a backend may call a part so.
pub(super) fn is_part_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= MAX_PART_NAME && name.bytes().all(allowed)
}

/// What the processor has, as its kernel tells.
fn read_processor_features() -> Vec<String> {
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = told.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    let mut flags: Vec<String> =
        flags.map_or_else(Vec::new, |(_, list)| list.split_whitespace().map(Into::into).collect());
    flags.sort_unstable();
    flags
}

fn hash_bytes(bytes: &[u8]) -> ContentHash {
    ContentHash::from(<[u8; 32]>::from(Sha256::digest(bytes)))
}

/// The error for a snapshot that is not as it was captured.
pub(super) fn build_damaged_error(what: impl Into<String>) -> Error {
    Error::new(
        ErrorCode::Invalid,
        "read a snapshot",
        format!("the snapshot is damaged: {}", what.into()),
    )
    .remedy("take it, export it or import it again")
}
