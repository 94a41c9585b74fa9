//! What a caller asks for, and what it gets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stockade_core::{Bytes, HostPath, OverlayDirs, TenantName, WorkspaceId};
use stockade_fs::Timestamp;

/// Which tree is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A directory, changed in place. The same one is always the same workspace.
    Local(PathBuf),
    /// A copy-on-write view of a directory.
    Overlay(PathBuf),
    /// A checkout of a repository.
    Git {
        /// Its address or its directory.
        source: String,
        /// A branch, tag or commit; the default branch if none is named.
        rev: Option<String>,
    },
    /// An empty directory that is gone at release.
    Ephemeral {
        /// The most it may hold.
        most: Bytes,
    },
}

/// How a copy-on-write view is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Layers that the kernel puts over one another in the sandbox. Costs nothing to begin.
    #[default]
    Kernel,
    /// A copy of the tree, sharing contents where the file system can.
    Copy,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which tree.
    pub hint: Hint,
    /// The tenant it is for.
    pub tenant: TenantName,
    /// Whether the guest may change it.
    pub writable: bool,
    /// How a view is made; for `overlay` and `git`.
    pub mechanism: Mechanism,
    /// The caller's own notes.
    pub metadata: BTreeMap<String, String>,
}

impl Request {
    /// A writable workspace for the default tenant.
    pub fn new(hint: Hint) -> Self {
        Self {
            hint,
            tenant: TenantName::default(),
            writable: true,
            mechanism: Mechanism::default(),
            metadata: BTreeMap::new(),
        }
    }
}

/// What a workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory, changed in place.
    Local,
    /// A copy-on-write view of a directory.
    Overlay,
    /// A copy-on-write view of a checkout.
    Git,
    /// An empty directory that is gone at release.
    Ephemeral,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Overlay => "overlay",
            Self::Git => "git",
            Self::Ephemeral => "ephemeral",
        })
    }
}

/// The directory tree that the work is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// The directory it is about: for a view, the one beneath it, unless it is a copy.
    pub root: PathBuf,
    /// The directory it was made from.
    pub source: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Whether the guest may change it.
    pub writable: bool,
    /// `git.remote`, `git.branch`, `git.commit`, and the caller's own notes.
    pub metadata: BTreeMap<String, String>,
    /// The tenant it is for.
    pub tenant: TenantName,
    /// When it was acquired first.
    pub created: Timestamp,
    /// Whether it was given back and is kept only for its changes.
    pub released: bool,
    /// What a sandbox makes of it.
    #[serde(skip)]
    pub(crate) view: View,
}

/// How a sandbox gets at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum View {
    Directory(HostPath),
    Layers(OverlayDirs),
    Nothing,
}

impl ManagedWorkspace {
    /// What a sandbox's spec takes. An ephemeral one's size is the spec's own disk limit.
    pub fn spec(&self) -> stockade_core::Workspace {
        match &self.view {
            View::Directory(path) => stockade_core::Workspace::Local(path.clone()),
            View::Layers(layers) => stockade_core::Workspace::Overlay(layers.clone()),
            View::Nothing => stockade_core::Workspace::Ephemeral,
        }
    }

    /// Whether its changes are kept apart, to be reviewed and applied.
    pub fn is_transaction(&self) -> bool {
        match self.kind {
            Kind::Overlay | Kind::Git => true,
            Kind::Local | Kind::Ephemeral => false,
        }
    }
}
