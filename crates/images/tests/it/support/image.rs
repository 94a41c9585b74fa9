//! Images of given layers, as blobs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use stockade_images::Digest;

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const GZIP_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An image before it is made into blobs, so that a test can change what it says.
pub struct ImageBuilder {
    pub config: Value,
    pub manifest: Value,
    pub blobs: BTreeMap<String, Vec<u8>>,
}

/// An image as blobs.
#[derive(Clone)]
pub struct TestImage {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifest: Vec<u8>,
    pub digest: String,
    pub layers: Vec<String>,
}

pub fn digest_of(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

impl ImageBuilder {
    /// An image of these archives, the lowest first.
    pub fn new(archives: &[Vec<u8>]) -> Self {
        let mut blobs = BTreeMap::new();
        let mut layers = Vec::new();
        for archive in archives {
            let compressed = gzip(archive);
            let digest = digest_of(&compressed);
            layers.push(
                json!({ "mediaType": GZIP_LAYER, "digest": digest, "size": compressed.len() }),
            );
            blobs.insert(digest, compressed);
        }
        let diff_ids: Vec<_> = archives.iter().map(|archive| digest_of(archive)).collect();
        Self {
            config: json!({
                "os": "linux", "architecture": "amd64", "created": "2024-01-01T00:00:00Z",
                "config": { "Env": ["PATH=/bin"], "Entrypoint": ["/bin/tool"], "Cmd": ["--help"] },
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            }),
            manifest: json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers }),
            blobs,
        }
    }

    pub fn build(mut self) -> TestImage {
        let config = self.config.to_string().into_bytes();
        let digest = digest_of(&config);
        if self.manifest.get("config").is_none() {
            let size = config.len();
            self.manifest["config"] =
                json!({ "mediaType": OCI_CONFIG, "digest": digest, "size": size });
        }
        self.blobs.insert(digest, config);
        let manifest = self.manifest.to_string().into_bytes();
        let digest = digest_of(&manifest);
        let named = self.manifest["layers"].as_array().cloned().unwrap_or_default();
        let layers = named.iter().filter_map(|layer| layer["digest"].as_str().map(str::to_owned));
        TestImage { layers: layers.collect(), blobs: self.blobs, manifest, digest }
    }
}

impl TestImage {
    pub fn new(archives: &[Vec<u8>]) -> Self {
        ImageBuilder::new(archives).build()
    }

    /// Writes it as an OCI layout.
    pub fn write_layout(&self, directory: &Path) {
        let blobs = directory.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let manifest = (&self.digest, &self.manifest);
        for (digest, bytes) in self.blobs.iter().chain([manifest]) {
            fs::write(blobs.join(digest.strip_prefix("sha256:").unwrap()), bytes).unwrap();
        }
        let index = json!({ "schemaVersion": 2, "manifests": [{
            "mediaType": OCI_MANIFEST, "digest": self.digest, "size": self.manifest.len(),
        }]});
        fs::write(directory.join("index.json"), index.to_string()).unwrap();
        fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }
}
