//! What a sandbox is, wherever its programs run: its files, its account, and which program is meant by a
//! name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes as Data;
use stockade_core::{
    Admitted, EnvName, Error, Feature, Image, Result, SandboxId, SnapshotId, SnapshotKind,
    StartFailure,
};

use super::account::Account;
use super::files::TreeFiles;
use super::find::{self, Start};
use super::program::Given;
use super::tree::{TEMPORARY, Tree};
use super::{Shared, snapshot};

/// Variables that every program finds.
const DEFAULTS: [(&str, &str); 3] = [("PATH", "/bin"), ("HOME", TEMPORARY), ("TMPDIR", TEMPORARY)];

/// A sandbox but for its programs.
pub(super) struct Body {
    pub id: SandboxId,
    pub deterministic: bool,
    pub tree: Arc<Tree>,
    pub files: TreeFiles,
    pub account: Arc<Account>,
    pub shared: Arc<Shared>,
    image: Image,
}

impl Body {
    pub(super) fn new(id: &SandboxId, admitted: &Admitted, shared: Arc<Shared>) -> Result<Self> {
        let spec = admitted.spec();
        let tree = Arc::new(Tree::make(id, spec, shared.library.directory())?);
        Ok(Self {
            id: id.clone(),
            deterministic: spec.deterministic,
            image: spec.image.clone(),
            files: TreeFiles(Arc::clone(&tree)),
            tree,
            account: Arc::new(Account::new(admitted.limits())),
            shared,
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

    pub(super) async fn snapshot(&self, kind: SnapshotKind) -> Result<SnapshotId> {
        match kind {
            SnapshotKind::Files => snapshot::take(&self.id, &self.tree).await,
            SnapshotKind::Full => Err(Error::unsupported("snapshot", Feature::FullSnapshot)),
        }
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
    let defaults = DEFAULTS.into_iter().filter(unset);
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    defaults.chain(given.iter().map(|(name, value)| (name.to_string(), value.clone()))).collect()
}
