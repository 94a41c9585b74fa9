//! Images that are built here, with every byte under control.

pub mod archive;
pub mod image;
pub mod registry;
pub mod server;
pub mod tree;

use std::path::Path;

use stockade_images::{
    CredentialFiles, ImageError, ImageLimits, ImageStore, ImportName, InProcess, Platform,
    PullOptions, PullPolicy, StoredImage,
};

/// Options that ask the registry each time, for one platform everywhere, without credentials.
pub fn pull_options() -> PullOptions {
    PullOptions {
        policy: PullPolicy::Always,
        platform: platform(),
        credentials: CredentialFiles::at([]),
        ..PullOptions::default()
    }
}

pub fn platform() -> Platform {
    "linux/amd64".parse().unwrap()
}

pub async fn import(store: &ImageStore, layout: &Path) -> Result<StoredImage, ImageError> {
    import_within(store, layout, &ImageLimits::default()).await
}

pub async fn import_within(
    store: &ImageStore,
    layout: &Path,
    limits: &ImageLimits,
) -> Result<StoredImage, ImageError> {
    let name = "example.org/test:1".parse().unwrap();
    store
        .import((layout, None), ImportName::Given(&name), &platform(), limits, &InProcess, &())
        .await
}

/// What is in the store but for its locks.
pub fn leftovers(store: &ImageStore) -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["blobs", "partial", "trees", "drafts", "images", "names", "used"] {
        for entry in std::fs::read_dir(store.directory().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            found.push(format!("{directory}/{name}"));
        }
    }
    found.sort();
    found
}
