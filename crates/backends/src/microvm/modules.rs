//! The modules that the kernel of a machine needs for what every machine has, with those that they depend on, in
//! the order in which they are loaded. One that is neither a file nor built in is an error: a machine would come up
//! without it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::decompress::CompressionFormat;

/// The modules that every machine needs; their dependencies come from the kernel's own lists.
const REQUIRED_MODULES: [&str; 8] = [
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "vmw_vsock_virtio_transport",
    "ext4",
    "erofs",
    "overlay",
    // Tells the walls inside which sockets are the guest's own.
    "unix_diag",
];

/// The kernel's lists: which file needs which, and which modules are part of the kernel.
const DEPENDENCIES_FILE: &str = "modules.dep";
const BUILTIN_FILE: &str = "modules.builtin";
/// Size limit of one module.
const MAX_MODULE_BYTES: usize = 64 << 20;

/// The modules of the kernel whose files lie in this directory, under names that put them in order.
pub(super) fn load_modules(directory: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let dependencies = fs::read_to_string(directory.join(DEPENDENCIES_FILE))?;
    let built_in = fs::read_to_string(directory.join(BUILTIN_FILE))?;
    let files = order_modules(&dependencies, &built_in)?;
    let load = |(number, file): (usize, &str)| {
        Ok((format!("{number:02}.ko"), read_module(&directory.join(file))?))
    };
    files.into_iter().enumerate().map(load).collect()
}

/// The files to be loaded, each after what it needs.
fn order_modules<'a>(dependencies: &'a str, built_in: &str) -> io::Result<Vec<&'a str>> {
    let built_in: BTreeSet<String> = built_in.lines().map(module_name).collect();
    let mut files = Vec::new();
    for needed in REQUIRED_MODULES.iter().filter(|needed| !built_in.contains(**needed)) {
        let line = dependencies.lines().find_map(|line| {
            let (file, needs) = line.split_once(':')?;
            (module_name(file) == **needed).then_some((file, needs))
        });
        let (file, needs) = line.ok_or_else(|| missing_module_error(needed))?;
        // The kernel's list names first what is loaded last.
        for file in needs.split_whitespace().rev().chain([file]) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The name of a module by its file, as the kernel calls it.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

fn missing_module_error(name: &str) -> io::Error {
    let message = format!("the module `{name}` is neither there nor built in");
    io::Error::new(io::ErrorKind::NotFound, message)
}

/// A module as the kernel loads it.
fn read_module(path: &Path) -> io::Result<Vec<u8>> {
    let at =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let bytes = fs::read(path).map_err(at)?;
    match CompressionFormat::from_magic(&bytes) {
        Some(format) => format.decompress(&bytes, MAX_MODULE_BYTES).map_err(at),
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microvm::decompress::samples;

    /// The lists of a kernel that has some built in, and the others as files with this ending.
    fn build_lists(ending: &str) -> (String, String) {
        let file = |name: &str| format!("kernel/{name}.ko{ending}");
        let line = |name: &str, needs: &[&str]| {
            let needs: Vec<_> = needs.iter().map(|needed| file(needed)).collect();
            format!("{}: {}\n", file(name), needs.join(" "))
        };
        let dependencies = [
            line("lib/libcrc32c", &[]),
            line("virtio/virtio_mmio", &["virtio/virtio_ring", "virtio/virtio"]),
            line("block/virtio_blk", &["virtio/virtio_ring", "virtio/virtio"]),
            line("char/virtio_console", &["virtio/virtio_ring", "virtio/virtio"]),
            line("net/vmw_vsock_virtio_transport", &["net/vsock"]),
            line("fs/erofs", &["lib/libcrc32c"]),
            line("fs/overlay", &[]),
        ];
        let built_in = "kernel/fs/ext4/ext4.ko\nkernel/net/unix/unix-diag.ko\n";
        (dependencies.concat(), built_in.to_owned())
    }

    #[test]
    fn each_is_loaded_once_and_after_what_it_needs() {
        let (dependencies, built_in) = build_lists("");
        let files = order_modules(&dependencies, &built_in).unwrap();
        let names: Vec<_> = files.iter().map(|file| module_name(file)).collect();
        let expected = [
            "virtio",
            "virtio_ring",
            "virtio_mmio",
            "virtio_blk",
            "virtio_console",
            "vsock",
            "vmw_vsock_virtio_transport",
            "libcrc32c",
            "erofs",
            "overlay",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn one_that_is_neither_there_nor_built_in_is_missed_by_name() {
        let (dependencies, built_in) = build_lists(".xz");
        let without: String = dependencies
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("kernel/fs/erofs"))
            .collect();
        let error = order_modules(&without, &built_in).unwrap_err();
        assert!(error.to_string().contains("`erofs` is neither there nor built in"), "{error}");
        assert!(order_modules(&dependencies, "").unwrap_err().to_string().contains("ext4"));
    }

    #[test]
    fn modules_are_read_whatever_they_are_compressed_by() {
        let plain = samples::plain_text();
        let mut all = samples::all_samples();
        all.retain(|(format, _)| *format != CompressionFormat::Lz4);
        let endings = [("", plain.clone())]
            .into_iter()
            .chain([".gz", ".xz", ".zst"].into_iter().zip(all.into_iter().map(|(_, bytes)| bytes)));
        for (ending, bytes) in endings {
            let place = tempfile::tempdir().unwrap();
            let (dependencies, built_in) = build_lists(ending);
            fs::write(place.path().join(DEPENDENCIES_FILE), &dependencies).unwrap();
            fs::write(place.path().join(BUILTIN_FILE), &built_in).unwrap();
            let files = order_modules(&dependencies, &built_in).unwrap();
            for file in &files {
                let path = place.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, &bytes).unwrap();
            }
            let loaded = load_modules(place.path()).unwrap();
            assert_eq!(loaded.len(), files.len());
            assert_eq!(loaded[0].0, "00.ko");
            assert!(loaded.iter().all(|(_, module)| *module == plain), "{ending}");
            // A file that its list names and that is gone is not taken for built in.
            fs::remove_file(place.path().join(files[3])).unwrap();
            assert!(load_modules(place.path()).is_err());
        }
    }
}
