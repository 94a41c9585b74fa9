//! What this host lets the native backend enforce. Measured once for as long as what it depends on is the
//! same, and kept beside this program.

use std::fs;

use serde::{Deserialize, Serialize};
use stockade_backends::native::Native;
use stockade_core::{Backend, Capabilities};
use stockade_fs::{Survives, draft_name, write_atomically};

use crate::base::FarBase;

/// The cache file of the measured capabilities, beside this program.
const CAPABILITIES_FILE: &str = "measured.json";

#[derive(Serialize, Deserialize)]
struct CachedCapabilities {
    fingerprint: String,
    measured: Capabilities,
}

/// What was measured, or is now.
pub async fn load_or_measure(native: &Native, base: &FarBase) -> Capabilities {
    match read_cache(native, base) {
        Some(measured) => measured,
        None => measure_anew(native, base).await,
    }
}

fn read_cache(native: &Native, base: &FarBase) -> Option<Capabilities> {
    let text = fs::read(base.own_dir().join(CAPABILITIES_FILE)).ok()?;
    let kept: CachedCapabilities = serde_json::from_slice(&text).ok()?;
    (Some(kept.fingerprint) == native.fingerprint()).then_some(kept.measured)
}

/// Measures without the cache, and writes it.
pub async fn measure_anew(native: &Native, base: &FarBase) -> Capabilities {
    let measured = native.probe().await;
    if let (Some(fingerprint), None) = (native.fingerprint(), &measured.unavailable) {
        // Failing to keep it is no harm: it is measured again.
        let _ = write_cache(base, &CachedCapabilities { fingerprint, measured: measured.clone() });
    }
    measured
}

/// Written whole or not at all, also when another process writes the same.
fn write_cache(base: &FarBase, kept: &CachedCapabilities) -> std::io::Result<()> {
    let (path, json) = (base.own_dir().join(CAPABILITIES_FILE), serde_json::to_vec(kept)?);
    write_atomically(&path, &draft_name("measured"), &json, 0o600, Survives::Process)
}
