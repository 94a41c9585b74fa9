//! The root of a sandbox as an image: which directories are archived, and what in them is the sandbox's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use async_trait::async_trait;
use stockade_core::{
    Error, ErrorCode, Image, Result, RootMode, SandboxPath, SandboxSpec, WORKSPACE_ROOT,
};
use stockade_images::{ImageReference, LayerDraft, PullProgress, SandboxRoot, StoredImage};

use super::Images;

const COMMIT_OPERATION: &str = "commit";

/// What a sandbox brings itself, with all that is in it, on every backend.
const OWN_PATHS: [&str; 12] = [
    "dev",
    "proc",
    "sys",
    "tmp",
    "var/tmp",
    "run",
    "home",
    "etc/hostname",
    "etc/hosts",
    "etc/machine-id",
    "etc/resolv.conf",
    ".dockerenv",
];
/// The directory whose entries may be mounted each for itself.
const SPLIT_DIR: &str = "var";

/// Archives directories of one sandbox.
#[async_trait]
pub trait RootArchiver: Send {
    /// Writes the tree at a path as a tar archive into a new file, refused where it has more than `most` bytes.
    async fn archive_tree(&mut self, path: &SandboxPath, into: &Path, most: u64) -> Result<()>;
}

impl Images {
    /// Stores what the root of a sandbox of this spec has changed as one more layer on its image, under a new name.
    /// The sandbox goes on meanwhile: what is written may be caught half-way.
    pub async fn commit(
        &self,
        spec: &SandboxSpec,
        archiver: &mut dyn RootArchiver,
        name: &ImageReference,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let store = self.store()?;
        let base = store.inspect(&base_name(spec)?)?;
        let draft = store.draft_layer()?;
        let limits = &self.inner.options.limits;
        // The sandbox uses the tree, and keeps it there.
        let places = list_places(&base.root)?;
        let archives = gather(archiver, &draft, places, limits.unpacked_bytes).await?;
        let root = SandboxRoot { archives, ignored: list_ignored(spec) };
        let unpack = &self.inner.unpack;
        Ok(store.commit(&base, root, &draft, Some(name), limits, (unpack, progress)).await?)
    }
}

/// The image that a root is based on. Refuses roots that have none, or cannot have changed.
fn base_name(spec: &SandboxSpec) -> Result<String> {
    let refused = |message: &str, remedy: &str| {
        Err(Error::new(ErrorCode::Unsupported, COMMIT_OPERATION, message).remedy(remedy))
    };
    let name = match &spec.image {
        Image::Named(name) => name.as_str().to_owned(),
        Image::Host | Image::Directory(_) | Image::Oci(_) | Image::Wasm(_) => {
            return refused(
                "the root of this sandbox is not an image of the store",
                "start from an image: `stockade create --image NAME --writable-root`",
            );
        }
    };
    match spec.root {
        RootMode::CopyOnWrite => Ok(name),
        RootMode::ReadOnly => refused(
            "the root of this sandbox is read-only, so it has no changes",
            "create the sandbox with --writable-root",
        ),
    }
}

/// The directories of an image that may be mounted each for itself: the root, those in it, and those in `/var`.
pub(super) fn list_places(tree: &Path) -> Result<Vec<String>> {
    let mut places = vec![String::new()];
    places.extend(list_directories(tree, "")?);
    if places.iter().any(|place| place == SPLIT_DIR) {
        places.extend(list_directories(tree, SPLIT_DIR)?);
    }
    places.retain(|place| !OWN_PATHS.contains(&place.as_str()));
    Ok(places)
}

fn list_directories(tree: &Path, inside: &str) -> Result<BTreeSet<String>> {
    let failed = |error| {
        Error::new(ErrorCode::System, COMMIT_OPERATION, "the image's tree cannot be listed")
            .source(error)
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(tree.join(inside)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let (true, Ok(name)) =
            (entry.file_type().map_err(failed)?.is_dir(), entry.file_name().into_string())
        {
            let joint = if inside.is_empty() { "" } else { "/" };
            found.insert(format!("{inside}{joint}{name}"));
        }
    }
    Ok(found)
}

/// What belongs to the sandbox and not to its root: its own directories, its workspace and its mounts.
pub(super) fn list_ignored(spec: &SandboxSpec) -> Vec<String> {
    let mounts = spec.all_mounts().map(|mount| mount.target.as_str());
    let workspace = [WORKSPACE_ROOT, spec.workspace_dir()];
    let paths = workspace.into_iter().chain(mounts).map(|path| path.trim_matches('/'));
    let paths = paths.filter(|path| !path.is_empty()).chain(OWN_PATHS);
    paths.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect()
}

pub(super) async fn gather(
    archiver: &mut dyn RootArchiver,
    draft: &LayerDraft,
    places: Vec<String>,
    mut left: u64,
) -> Result<Vec<(String, std::path::PathBuf)>> {
    let mut archives = Vec::new();
    for (index, place) in places.into_iter().enumerate() {
        let into = draft.path().join(format!("root-{index}"));
        let unusable = |_| {
            let message = format!("`{}` is no path of a sandbox", place.escape_debug());
            Error::new(ErrorCode::Invalid, COMMIT_OPERATION, message)
        };
        let path: SandboxPath = format!("/{place}").parse().map_err(unusable)?;
        archiver.archive_tree(&path, &into, left).await?;
        left = left.saturating_sub(fs::metadata(&into).map_or(0, |metadata| metadata.len()));
        archives.push((place, into));
    }
    Ok(archives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_writable_root_of_an_image_is_committed() {
        let image = Image::Named("python:3.12".parse().unwrap());
        let fine = SandboxSpec { image, root: RootMode::CopyOnWrite, ..SandboxSpec::default() };
        assert_eq!(base_name(&fine).unwrap(), "python:3.12");
        let read_only = SandboxSpec { root: RootMode::ReadOnly, ..fine.clone() };
        assert!(base_name(&read_only).unwrap_err().hint().unwrap().contains("--writable-root"));
        let host = SandboxSpec { image: Image::Host, ..fine };
        assert!(base_name(&host).unwrap_err().hint().unwrap().contains("start from an image"));
    }

    #[test]
    fn places_are_the_root_and_what_may_be_mounted_in_it() {
        let dir = tempfile::tempdir().unwrap();
        for inside in ["etc/deep", "var/lib", "var/tmp", "proc"] {
            fs::create_dir_all(dir.path().join(inside)).unwrap();
        }
        std::os::unix::fs::symlink("etc", dir.path().join("link")).unwrap();
        assert_eq!(list_places(dir.path()).unwrap(), ["", "etc", "var", "var/lib"]);
        let ignored = list_ignored(&SandboxSpec::default());
        assert!(ignored.contains(&"workspace".to_owned()), "{ignored:?}");
    }
}
