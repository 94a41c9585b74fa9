//! What a sandbox is, wherever its programs run: its files, its account, and which program is meant by a
//! name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes as Data;
use stockade_core::{
    Admitted, EnvName, Error, ErrorCode, Image, Parts, Result, SandboxId, SnapshotKind,
    StartFailure,
};

use super::account::Account;
use super::files::TreeFiles;
use super::find::{self, Start};
use super::openings::Openings;
use super::program::Given;
use super::tree::{TEMP_DIR, Tree};
use super::{NAME, Shared, snapshot};

/// Environment variables of every program whose command does not set them.
const DEFAULT_ENV: [(&str, &str); 3] = [("PATH", "/bin"), ("HOME", TEMP_DIR), ("TMPDIR", TEMP_DIR)];

/// A sandbox but for its programs.
pub(super) struct Body {
    pub id: SandboxId,
    pub deterministic: bool,
    pub tree: Arc<Tree>,
    pub files: TreeFiles,
    pub account: Arc<Account>,
    pub shared: Arc<Shared>,
    /// What programs are given that start where most do.
    pub usual: OnceLock<Openings>,
    image: Image,
    /// How much a snapshot may hold.
    most: u64,
}

/// Largest snapshot of a sandbox without a disk limit.
const MAX_SNAPSHOT_BYTES: u64 = 16 << 30;

/// Work on files that may take a while.
async fn on_files(
    operation: &'static str,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|join| {
        Err(Error::new(ErrorCode::System, operation, "the work on files ended")
            .backend(NAME)
            .source(join))
    })
}

impl Body {
    pub(super) fn new(id: &SandboxId, admitted: &Admitted, shared: Arc<Shared>) -> Result<Self> {
        let spec = admitted.spec();
        let tree = Arc::new(Tree::make(id, spec, shared.library.directory())?);
        Ok(Self {
            id: id.clone(),
            deterministic: spec.deterministic,
            image: spec.image.clone(),
            most: admitted.limits().disk.map_or(MAX_SNAPSHOT_BYTES, |disk| disk.0),
            files: TreeFiles(Arc::clone(&tree)),
            tree,
            account: Arc::new(Account::new(admitted.limits())),
            shared,
            usual: OnceLock::new(),
        })
    }

    /// The bytes of the program that a name means. Without a directory it is the image's, or one that
    /// was given to the backend; any other is a path of the sandbox.
    pub(super) fn program(&self, start: &Start<'_>, name: &str) -> Result<Given, StartFailure> {
        if name.contains('/') {
            return find::program(&self.tree, start, name).map(given);
        }
        if let Some(module) = self.shared.modules.get(name) {
            return Ok(module.clone());
        }
        match &self.image {
            Image::Wasm(path) if is_called(path.as_path(), name) => {
                find::on_host(path.as_path(), name).map(given)
            }
            Image::Wasm(_)
            | Image::Host
            | Image::Directory(_)
            | Image::Oci(_)
            | Image::Named(_) => Err(StartFailure::NotFound(format!("there is no `{name}`"))),
        }
    }

    pub(super) async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        let (tree, into, most) = (Arc::clone(&self.tree), into.to_owned(), self.most);
        on_files("snapshot", move || snapshot::take(&tree, kind, &into, most)).await
    }

    pub(super) async fn restore(&self, from: &Parts) -> Result<()> {
        let (tree, from, most) = (Arc::clone(&self.tree), from.clone(), self.most);
        on_files("restore", move || snapshot::bring_back(&tree, &from, most)).await
    }
}

fn given(bytes: Vec<u8>) -> Given {
    Data::from(bytes).into()
}

/// Whether a file is meant by this name, with its extension or without.
fn is_called(path: &Path, name: &str) -> bool {
    [path.file_name(), path.file_stem()].into_iter().flatten().any(|own| own == name)
}

/// The environment of a program.
pub(super) fn environment(given: &BTreeMap<EnvName, String>) -> Vec<(String, String)> {
    let unset = |(name, _): &(&str, &str)| !given.keys().any(|known| known.as_str() == *name);
    let defaults = DEFAULT_ENV.into_iter().filter(unset);
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    defaults.chain(given.iter().map(|(name, value)| (name.to_string(), value.clone()))).collect()
}
