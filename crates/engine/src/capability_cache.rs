//! Measured capabilities kept on disk, so that not every engine has to build a sandbox just to look at it. Only what
//! a backend says depends on a fingerprint is kept. That it cannot be had is kept only where finding out
//! takes long, and believed for a minute: a user who follows the remedy should see its effect.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stockade_core::{Backend, Capabilities};
use stockade_fs::{CacheDir, Survives, draft_name, write_atomically};

/// The directory of kept measurements.
pub(crate) struct CapabilityCache(PathBuf);

/// How long a backend that could not be had is not looked for again.
const ABSENCE_MAX_AGE: Duration = Duration::from_secs(60);

/// Probe time above which the absence of a backend is cached too.
const SLOW_PROBE_TIME: Duration = Duration::from_millis(100);

/// Upper bound of a cache file, longer than any that is written.
const MAX_CACHE_FILE_BYTES: u64 = 1 << 20;

/// Directory of kept measurements, below the state directory.
const MEASUREMENT_DIR: &str = "capabilities";

/// The kept measurements of backends. They are read whole, so that none is in use.
pub fn measurement_cache(state_dir: &Path) -> CacheDir {
    CacheDir {
        kind: "measurements of backends",
        path: state_dir.join(MEASUREMENT_DIR),
        is_entry: |name| name.ends_with(".json"),
        used: BTreeSet::new(),
        min_age: Duration::ZERO,
        maker_lock: None,
    }
}

impl CapabilityCache {
    pub(crate) fn below(state: &Path) -> Self {
        Self(state.join(MEASUREMENT_DIR))
    }

    /// What was measured under the same fingerprint; nothing if it cannot be read.
    pub(crate) fn read_measurement(&self, backend: &dyn Backend) -> Option<Capabilities> {
        let file = self.file(backend)?;
        let found = fs::symlink_metadata(&file).ok().filter(fs::Metadata::is_file)?;
        let text = (found.len() <= MAX_CACHE_FILE_BYTES).then(|| fs::read(&file).ok())??;
        let kept: Capabilities = serde_json::from_slice(&text).ok()?;
        let fresh = || found.modified().ok()?.elapsed().ok().filter(|age| *age < ABSENCE_MAX_AGE);
        let holds = kept.unavailable.is_none() || fresh().is_some();
        (kept.backend == backend.name() && holds).then_some(kept)
    }

    /// Keeps a measurement. Failing to is no harm: it is taken again.
    pub(crate) fn keep(&self, backend: &dyn Backend, measured: &Capabilities, took: Duration) {
        let worthwhile = measured.unavailable.is_none() || took > SLOW_PROBE_TIME;
        if let (Some(file), true) = (self.file(backend), worthwhile) {
            let _ = self.write(&file, measured);
        }
    }

    /// Forgets: a wall that was there when it was measured is not there any more.
    pub(crate) fn remove_measurement(&self, backend: &dyn Backend) {
        if let Some(file) = self.file(backend) {
            let _ = fs::remove_file(file);
        }
    }

    fn file(&self, backend: &dyn Backend) -> Option<PathBuf> {
        let hash = Sha256::digest(backend.fingerprint()?.as_bytes());
        let short: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Some(self.0.join(format!("{}-{short}.json", backend.name())))
    }

    /// Replaces the file by a rename: whole or not at all, even if another process writes the same.
    fn write(&self, file: &Path, measured: &Capabilities) -> std::io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let json = serde_json::to_vec(measured)?;
        write_atomically(file, &draft_name("measured"), &json, 0o600, Survives::Process)
    }
}
