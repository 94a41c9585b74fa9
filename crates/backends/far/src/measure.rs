//! What this host lets the native backend enforce. Measured once for as long as what it depends on is the
//! same, and kept beside this program.

use std::fs;
use std::io::Write;

use serde::{Deserialize, Serialize};
use stockade_backends::native::Native;
use stockade_core::{Backend, Capabilities};

use crate::base::Base;

/// The cache file of the measured capabilities, beside this program.
const CAPABILITIES_FILE: &str = "measured.json";

#[derive(Serialize, Deserialize)]
struct Kept {
    fingerprint: String,
    measured: Capabilities,
}

/// What was measured, or is now.
pub async fn known(native: &Native, base: &Base) -> Capabilities {
    match read_cache(native, base) {
        Some(measured) => measured,
        None => anew(native, base).await,
    }
}

fn read_cache(native: &Native, base: &Base) -> Option<Capabilities> {
    let text = fs::read(base.own().join(CAPABILITIES_FILE)).ok()?;
    let kept: Kept = serde_json::from_slice(&text).ok()?;
    (Some(kept.fingerprint) == native.fingerprint()).then_some(kept.measured)
}

/// Measures, whatever was kept.
pub async fn anew(native: &Native, base: &Base) -> Capabilities {
    let measured = native.probe().await;
    if let (Some(fingerprint), None) = (native.fingerprint(), &measured.unavailable) {
        // Failing to keep it is no harm: it is measured again.
        let _ = write_cache(base, &Kept { fingerprint, measured: measured.clone() });
    }
    measured
}

/// Whole or not at all, whoever else writes the same.
fn write_cache(base: &Base, kept: &Kept) -> std::io::Result<()> {
    let draft = base.own().join(format!("measured.{}", std::process::id()));
    let written =
        fs::File::create(&draft).and_then(|mut out| out.write_all(&serde_json::to_vec(kept)?));
    let kept = written.and_then(|()| fs::rename(&draft, base.own().join(CAPABILITIES_FILE)));
    if kept.is_err() {
        let _ = fs::remove_file(&draft);
    }
    kept
}
