//! Export: an archive of an OCI layout with one image, the very bytes that were pulled.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use serde_json::json;

use super::{Found, ImageStore};
use crate::{Digest, ImageError};

impl ImageStore {
    pub(super) fn write_archive(&self, found: &Found, path: &Path) -> Result<(), ImageError> {
        let failed = || ImageError::io("written", path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
        let file = file.map_err(failed())?;
        let written = self.append_image(found, file);
        if written.is_err() {
            // Half an archive is of no use.
            let _ = fs::remove_file(path);
        }
        written.map_err(failed())
    }

    fn append_image(&self, found: &Found, file: File) -> io::Result<()> {
        let record = &found.record;
        let mut archive = tar::Builder::new(io::BufWriter::new(file));
        append(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let manifest = self.blobs.open(&record.manifest.hex(), OFlags::RDONLY)?;
        let name = found.reference.as_ref();
        let mut annotations = serde_json::Map::new();
        if let Some(name) = name {
            annotations.insert("io.containerd.image.name".into(), name.to_string().into());
            if let Some(tag) = name.tag() {
                annotations.insert("org.opencontainers.image.ref.name".into(), tag.into());
            }
        }
        let platform = &record.platform;
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": record.manifest_type,
                "digest": record.manifest,
                "size": manifest.metadata()?.len(),
                "platform": { "os": platform.os, "architecture": platform.architecture },
                "annotations": annotations,
            }],
        });
        append(&mut archive, "index.json", index.to_string().as_bytes())?;
        // For engines that read no layouts yet.
        let path = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
        let tag = name.filter(|name| name.tag().is_some()).map(|name| name.familiar());
        let list = json!([{
            "Config": path(&record.config_digest),
            "RepoTags": tag.into_iter().collect::<Vec<_>>(),
            "Layers": record.layers.iter().map(|layer| path(&layer.digest)).collect::<Vec<_>>(),
        }]);
        append(&mut archive, "manifest.json", list.to_string().as_bytes())?;
        let mut blobs: Vec<&Digest> = record.blobs().collect();
        blobs.sort_unstable();
        blobs.dedup();
        for digest in blobs {
            let blob = self.blobs.open(&digest.hex(), OFlags::RDONLY)?;
            let size = blob.metadata()?.len();
            append_file(&mut archive, &path(digest), size, blob)?;
        }
        archive.into_inner()?.into_inner().map_err(|error| error.into_error())?.sync_data()
    }
}

fn append(archive: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    append_file(archive, name, bytes.len() as u64, bytes)
}

/// The same bytes for the same image: no times, no owners.
fn append_file(
    archive: &mut tar::Builder<impl Write>,
    name: &str,
    size: u64,
    contents: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, name, contents)
}
