//! What a sandbox is, wherever its programs run: its files, its account, and which program is meant by a
//! name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes as Data;
use stockade_core::{
    Admitted, EnvName, Error, ErrorCode, Image, Result, SandboxId, SnapshotFiles, SnapshotKind,
    StartFailure,
};

use super::account::ResourceAccount;
use super::files::TreeFiles;
use super::find::{self, StartDir};
use super::preopens::Preopens;
use super::program::ProgramBytes;
use super::tree::{GuestTree, TEMP_DIR};
use super::{NAME, WasmShared, snapshot};

/// Environment variables of every program whose command does not set them.
const DEFAULT_ENV: [(&str, &str); 3] = [("PATH", "/bin"), ("HOME", TEMP_DIR), ("TMPDIR", TEMP_DIR)];

/// A sandbox but for its programs.
pub(super) struct WasmSandboxParts {
    pub id: SandboxId,
    pub deterministic: bool,
    pub tree: Arc<GuestTree>,
    pub files: TreeFiles,
    pub account: Arc<ResourceAccount>,
    pub shared: Arc<WasmShared>,
    /// What programs are given that start where most do.
    pub usual: OnceLock<Preopens>,
    image: Image,
    /// How much a snapshot may hold.
    most: u64,
}

/// Largest snapshot of a sandbox without a disk limit.
const MAX_SNAPSHOT_BYTES: u64 = 16 << 30;

/// Work on files that may take a while.
async fn run_blocking(
    operation: &'static str,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|join| {
        Err(Error::new(ErrorCode::System, operation, "the work on files ended")
            .backend(NAME)
            .source(join))
    })
}

impl WasmSandboxParts {
    pub(super) fn new(
        id: &SandboxId,
        admitted: &Admitted,
        shared: Arc<WasmShared>,
    ) -> Result<Self> {
        let spec = admitted.spec();
        let tree = Arc::new(GuestTree::make(id, spec, shared.library.directory())?);
        Ok(Self {
            id: id.clone(),
            deterministic: spec.deterministic,
            image: spec.image.clone(),
            most: admitted.limits().disk.map_or(MAX_SNAPSHOT_BYTES, |disk| disk.0),
            files: TreeFiles(Arc::clone(&tree)),
            tree,
            account: Arc::new(ResourceAccount::new(admitted.limits())),
            shared,
            usual: OnceLock::new(),
        })
    }

    /// The bytes of the program that a name means. Without a directory it is the image's, or one that
    /// was given to the backend; any other is a path of the sandbox.
    pub(super) fn read_program(
        &self,
        start: &StartDir<'_>,
        name: &str,
    ) -> Result<ProgramBytes, StartFailure> {
        if name.contains('/') {
            return find::read_program_file(&self.tree, start, name).map(hash_program_bytes);
        }
        if let Some(module) = self.shared.modules.get(name) {
            return Ok(module.clone());
        }
        match &self.image {
            Image::Wasm(path) if is_called(path.as_path(), name) => {
                find::read_host_program(path.as_path(), name).map(hash_program_bytes)
            }
            Image::Wasm(_)
            | Image::Host
            | Image::Directory(_)
            | Image::Oci(_)
            | Image::Named(_) => Err(StartFailure::NotFound(format!("there is no `{name}`"))),
        }
    }

    pub(super) async fn write_snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        let (tree, into, most) = (Arc::clone(&self.tree), into.to_owned(), self.most);
        run_blocking("snapshot", move || snapshot::take_snapshot(&tree, kind, &into, most)).await
    }

    pub(super) async fn restore_snapshot(&self, from: &SnapshotFiles) -> Result<()> {
        let (tree, from, most) = (Arc::clone(&self.tree), from.clone(), self.most);
        run_blocking("restore", move || snapshot::restore_snapshot(&tree, &from, most)).await
    }
}

fn hash_program_bytes(bytes: Vec<u8>) -> ProgramBytes {
    Data::from(bytes).into()
}

/// Whether a file is meant by this name, with its extension or without.
fn is_called(path: &Path, name: &str) -> bool {
    [path.file_name(), path.file_stem()].into_iter().flatten().any(|own| own == name)
}

/// The environment of a program.
pub(super) fn build_environment(given: &BTreeMap<EnvName, String>) -> Vec<(String, String)> {
    let unset = |(name, _): &(&str, &str)| !given.keys().any(|known| known.as_str() == *name);
    let defaults = DEFAULT_ENV.into_iter().filter(unset);
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    defaults.chain(given.iter().map(|(name, value)| (name.to_string(), value.clone()))).collect()
}
