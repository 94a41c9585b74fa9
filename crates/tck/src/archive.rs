//! An image of one layer as `docker save` writes it, made without any engine.

use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Verdict;

/// Writes an image that holds the probe at `/probe`, under these names.
pub fn write_image(file: &Path, probe: &[u8], names: &[&str]) -> Verdict {
    let layer = build_tar(&[("probe", 0o755, probe)])?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let digest = hash_sha256(&layer);
    let config = serde_json::to_vec(&json!({
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    }))?;
    let (config_name, layer_name) =
        (format!("{}.json", hash_sha256(&config)), format!("{digest}/layer.tar"));
    let manifest = serde_json::to_vec(&json!([
        { "Config": config_name, "RepoTags": names, "Layers": [layer_name] }
    ]))?;
    let image = build_tar(&[
        (&layer_name, 0o644, &layer),
        (&config_name, 0o644, &config),
        ("manifest.json", 0o644, &manifest),
    ])?;
    Ok(std::fs::write(file, image)?)
}

fn build_tar(entries: &[(&str, u32, &[u8])]) -> std::io::Result<Vec<u8>> {
    let mut to = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(bytes.len() as u64);
        to.append_data(&mut header, name, *bytes)?;
    }
    to.into_inner()
}

fn hash_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
