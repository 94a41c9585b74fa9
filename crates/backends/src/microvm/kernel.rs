//! The kernel of the machines: the distribution's own for the cloud, uncompressed as a machine without
//! firmware starts it. Its modules are found by [`modules`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result};

#[cfg(test)]
use super::decompress::samples;
use super::decompress::{CompressionFormat, invalid_data, read_u32_le};
use super::{NAME, modules};

const BOOT_DIR: &str = "/boot";
const KERNEL_PREFIX: &str = "vmlinuz-";
const KERNEL_SUFFIX: &str = "-cloud-amd64";
const MODULES_DIR: &str = "/lib/modules";

/// Offsets in a bzImage header, which locates the compressed kernel (Documentation/arch/x86/boot.rst).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC_OFFSET: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// Size limit of an uncompressed kernel.
const MAX_KERNEL_BYTES: usize = 512 << 20;
/// The first bytes of an uncompressed kernel.
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// A kernel of this host.
#[derive(Debug, Clone)]
pub(super) struct HostKernel {
    pub path: PathBuf,
    version: String,
}

impl HostKernel {
    /// The newest one for the cloud.
    pub(super) fn find_newest() -> Result<Self> {
        let entries = fs::read_dir(BOOT_DIR).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let versions = names.filter_map(|name| Some(name.strip_prefix(KERNEL_PREFIX)?.to_owned()));
        let newest = versions
            .filter(|name| name.ends_with(KERNEL_SUFFIX))
            .max_by_key(|name| version_numbers(name));
        let version = newest.ok_or_else(|| {
            Error::new(ErrorCode::Unavailable, "create", "there is no kernel for its machines")
                .backend(NAME)
                .remedy("install the package linux-image-cloud-amd64")
        })?;
        Ok(Self { path: Path::new(BOOT_DIR).join(format!("{KERNEL_PREFIX}{version}")), version })
    }

    /// The kernel as a machine starts it.
    pub(super) fn read_unpacked(&self) -> Result<Vec<u8>> {
        let unpacked = fs::read(&self.path).and_then(|image| unpack_kernel(&image));
        unpacked.map_err(|error| self.unusable_error(&self.path, error))
    }

    /// The modules that it needs and does not have built in, under names that put them in order.
    pub(super) fn load_modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let directory = Path::new(MODULES_DIR).join(&self.version);
        modules::load_modules(&directory).map_err(|error| self.unusable_error(&directory, error))
    }

    fn unusable_error(&self, path: &Path, error: io::Error) -> Error {
        let message = format!("the kernel's file `{}` cannot be used", path.display());
        Error::new(ErrorCode::Unavailable, "create", message)
            .backend(NAME)
            .remedy("see that it may be read, or install the package linux-image-cloud-amd64 anew")
            .source(error)
    }
}

/// The numbers of a version, by which the newest is known.
fn version_numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The kernel that an image carries, or that it is.
fn unpack_kernel(image: &[u8]) -> io::Result<Vec<u8>> {
    if image.starts_with(ELF_MAGIC) {
        return Ok(image.to_vec());
    }
    if image.get(MAGIC_OFFSET..MAGIC_OFFSET + 4) != Some(b"HdrS") {
        return Err(invalid_data("it is no kernel of this architecture"));
    }
    let sectors = usize::from(image.get(SETUP_SECTORS).copied().unwrap_or(0)).max(4);
    let start = (sectors + 1) * 512 + read_u32_le(image, PAYLOAD_OFFSET)?;
    let end = start.saturating_add(read_u32_le(image, PAYLOAD_LENGTH)?);
    let payload = image.get(start..end).ok_or_else(|| invalid_data("it is cut short"))?;
    if payload.starts_with(ELF_MAGIC) {
        return Ok(payload.to_vec());
    }
    // The last four bytes say how long the whole is.
    let (compressed, length) = payload.split_at(payload.len().saturating_sub(4));
    let length = read_u32_le(length, 0)?;
    if length > MAX_KERNEL_BYTES {
        return Err(invalid_data("it is larger than any kernel"));
    }
    let format = CompressionFormat::from_magic(payload)
        .ok_or_else(|| invalid_data("it is compressed by none of gzip, xz, zstd and LZ4"))?;
    // With gzip that length is a part of what is compressed; the others have it put behind them.
    let compressed = if format == CompressionFormat::Gzip { payload } else { compressed };
    let whole = format.decompress(compressed, length)?;
    if whole.len() == length { Ok(whole) } else { Err(invalid_data("it is cut short")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel image is made of around what it carries.
    fn build_image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 5 * 512];
        image[SETUP_SECTORS] = 4;
        image[MAGIC_OFFSET..MAGIC_OFFSET + 4].copy_from_slice(b"HdrS");
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn the_newest_version_is_known_by_its_numbers() {
        let mut all = ["6.1.0-9-cloud-amd64", "6.1.0-54-cloud-amd64", "6.1.0-10-cloud-amd64"];
        all.sort_by_key(|version| version_numbers(version));
        assert_eq!(all[2], "6.1.0-54-cloud-amd64");
    }

    #[test]
    fn what_is_no_kernel_or_is_cut_short_is_refused() {
        let mut image = vec![0; 4096];
        assert!(unpack_kernel(&image).is_err());
        image[MAGIC_OFFSET..MAGIC_OFFSET + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&9999_u32.to_le_bytes());
        assert!(unpack_kernel(&image).is_err());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&0_u32.to_le_bytes());
        assert!(unpack_kernel(&image).is_err());
    }

    #[test]
    fn an_image_is_unpacked_whatever_it_is_compressed_by() {
        let kernel: Vec<u8> = ELF_MAGIC.iter().copied().chain(samples::plain_text()).collect();
        assert_eq!(unpack_kernel(&kernel).unwrap(), kernel);
        assert_eq!(unpack_kernel(&build_image(&kernel)).unwrap(), kernel);
        let plain = samples::plain_text();
        for (format, compressed) in samples::all_samples() {
            let mut payload = compressed.clone();
            if format != CompressionFormat::Gzip {
                payload.extend_from_slice(&u32::try_from(plain.len()).unwrap().to_le_bytes());
            }
            assert_eq!(unpack_kernel(&build_image(&payload)).unwrap(), plain, "{format:?}");
            // Longer, or shorter, than it says.
            let end = payload.len() - 4;
            for length in [plain.len() - 1, plain.len() + 1] {
                let length = u32::try_from(length).unwrap().to_le_bytes();
                payload[end..].copy_from_slice(&length);
                assert!(unpack_kernel(&build_image(&payload)).is_err(), "{format:?}");
            }
        }
        let error = unpack_kernel(&build_image(&[7; 100])).unwrap_err();
        assert!(error.to_string().contains("none of gzip, xz, zstd and LZ4"), "{error}");
    }
}
