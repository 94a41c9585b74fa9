//! The kernel of the machines: the distribution's own for the cloud, uncompressed as a machine without
//! firmware starts it, and the modules that it needs for what every machine has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result};

use super::NAME;

const BOOT: &str = "/boot";
const PREFIX: &str = "vmlinuz-";
const SUFFIX: &str = "-cloud-amd64";

/// The modules in the order in which they are loaded, each after what it needs. One that the kernel has
/// built in is not there as a file.
const MODULES: [&str; 12] = [
    "kernel/drivers/virtio/virtio.ko",
    "kernel/drivers/virtio/virtio_ring.ko",
    "kernel/drivers/virtio/virtio_mmio.ko",
    "kernel/drivers/block/virtio_blk.ko",
    "kernel/drivers/char/virtio_console.ko",
    "kernel/net/vmw_vsock/vsock.ko",
    "kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko",
    "kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko",
    "kernel/lib/libcrc32c.ko",
    "kernel/fs/erofs/erofs.ko",
    "kernel/fs/overlayfs/overlay.ko",
    // Tells the walls inside which sockets are the guest's own.
    "kernel/net/unix/unix_diag.ko",
];

/// Where a compressed image says where what it carries lies (Documentation/arch/x86/boot.rst).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The frame that the kernel's own tools write, and the most that one of its blocks holds.
const LZ4: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const BLOCK: usize = 8 << 20;
/// The most that a kernel takes.
const LARGEST: usize = 512 << 20;

/// A kernel of this host.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub path: PathBuf,
    version: String,
}

impl Kernel {
    /// The newest one for the cloud.
    pub(super) fn find() -> Result<Self> {
        let entries = fs::read_dir(BOOT).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let versions = names.filter_map(|name| Some(name.strip_prefix(PREFIX)?.to_owned()));
        let newest = versions.filter(|name| name.ends_with(SUFFIX)).max_by_key(|name| parts(name));
        let version = newest.ok_or_else(|| {
            Error::new(ErrorCode::Unavailable, "create", "there is no kernel for its machines")
                .backend(NAME)
                .remedy("install the package linux-image-cloud-amd64")
        })?;
        Ok(Self { path: Path::new(BOOT).join(format!("{PREFIX}{version}")), version })
    }

    /// The kernel as a machine starts it.
    pub(super) fn unpacked(&self) -> Result<Vec<u8>> {
        let unpacked = fs::read(&self.path).and_then(|image| unpack(&image));
        unpacked.map_err(|error| self.unusable(&self.path, error))
    }

    /// The modules that are there as files, with the names that put them in order.
    pub(super) fn modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let base = Path::new("/lib/modules").join(&self.version);
        let mut all = Vec::new();
        for (number, module) in MODULES.iter().enumerate() {
            let path = base.join(module);
            match fs::read(&path) {
                Ok(bytes) => all.push((format!("{number:02}.ko"), bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.unusable(&path, error)),
            }
        }
        Ok(all)
    }

    fn unusable(&self, path: &Path, error: io::Error) -> Error {
        let message = format!("the kernel's file `{}` cannot be used", path.display());
        Error::new(ErrorCode::Unavailable, "create", message)
            .backend(NAME)
            .remedy("install the package linux-image-cloud-amd64 anew, and see that it may be read")
            .source(error)
    }
}

/// The numbers of a version, by which the newest is known.
fn parts(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn number(bytes: &[u8], at: usize) -> io::Result<usize> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(|four| u32::from_le_bytes(four) as usize).ok_or_else(|| wrong("it is cut short"))
}

/// What a compressed image carries.
fn unpack(image: &[u8]) -> io::Result<Vec<u8>> {
    if image.get(MAGIC..MAGIC + 4) != Some(b"HdrS") {
        return Err(wrong("it is no kernel of this architecture"));
    }
    let sectors = usize::from(image.get(SETUP_SECTORS).copied().unwrap_or(0)).max(4);
    let start = (sectors + 1) * 512 + number(image, PAYLOAD_OFFSET)?;
    let end = start.saturating_add(number(image, PAYLOAD_LENGTH)?);
    // The last four bytes say how long the whole is.
    let payload = image.get(start..end).ok_or_else(|| wrong("it is cut short"))?;
    let (payload, length) = payload.split_at(payload.len().saturating_sub(4));
    let length = number(length, 0)?;
    let frame = payload.strip_prefix(&LZ4).ok_or_else(|| wrong("it is not compressed by LZ4"))?;
    if length > LARGEST {
        return Err(wrong("it is larger than any kernel"));
    }
    blocks(frame, length)
}

/// Block after block, each behind its length.
fn blocks(mut frame: &[u8], length: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::with_capacity(length);
    while whole.len() < length {
        let size = number(frame, 0)?;
        let block = frame.get(4..4 + size).ok_or_else(|| wrong("it is cut short"))?;
        let room = BLOCK.min(length - whole.len());
        let piece = lz4_flex::block::decompress(block, room).map_err(io::Error::other)?;
        whole.extend_from_slice(&piece);
        frame = &frame[4 + size..];
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_known_by_its_numbers() {
        let mut all = ["6.1.0-9-cloud-amd64", "6.1.0-54-cloud-amd64", "6.1.0-10-cloud-amd64"];
        all.sort_by_key(|version| parts(version));
        assert_eq!(all[2], "6.1.0-54-cloud-amd64");
    }

    #[test]
    fn what_is_no_kernel_or_is_cut_short_is_refused() {
        let mut image = vec![0; 4096];
        assert!(unpack(&image).is_err());
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&9999_u32.to_le_bytes());
        assert!(unpack(&image).is_err());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&0_u32.to_le_bytes());
        assert!(unpack(&image).is_err());
    }

    #[test]
    fn every_block_is_unpacked() {
        let whole: Vec<u8> = (0..BLOCK + 1000).map(|n| (n / 100) as u8).collect();
        let mut frame = Vec::new();
        for piece in whole.chunks(BLOCK) {
            let block = lz4_flex::block::compress(piece);
            frame.extend_from_slice(&(block.len() as u32).to_le_bytes());
            frame.extend_from_slice(&block);
        }
        assert!(blocks(&frame, whole.len()).unwrap() == whole);
        assert!(blocks(&frame[..frame.len() - 1], whole.len()).is_err());
    }
}
