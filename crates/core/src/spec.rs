//! What a caller asks for. Plain data that arrives as JSON from every front end; unknown fields are
//! refused by name (C-04), and each value parses into a type that cannot hold nonsense.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::path::WORKSPACE_ROOT;
use crate::{
    BackendName, Boundary, EnvName, Feature, HostPath, ImageName, Limits, Network, OverlayDirs,
    SandboxPath, SecretBinding, TenantName,
};

/// What a caller asks for. The default is C-03: no network but its own loopback, a clean environment,
/// an empty workspace, everything else read-only or absent, all limits finite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SandboxSpec {
    /// Which backend builds the walls.
    pub backend: BackendChoice,
    /// Which of the backend's hosts, on one that has several. Absent: the backend's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Boundaries the caller accepts. Empty: any that makes a security claim.
    pub boundaries: BTreeSet<Boundary>,
    /// What the root is made of.
    pub image: Image,
    /// Whether the root may be written to.
    pub root: RootMode,
    /// The directory tree the work is about.
    pub workspace: Workspace,
    /// Where the workspace appears besides `/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_at: Option<WorkspaceAt>,
    /// Whether the workspace is read-only (C-20).
    pub read_only: bool,
    /// Further host directories.
    pub mounts: Vec<Mount>,
    /// Trees of the host that a front end adds for the command's sake, such as its toolchains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<HostTree>,
    /// The environment of every command. Nothing is inherited.
    pub env: BTreeMap<EnvName, String>,
    /// The user that commands run as. Absent: an unprivileged user of the backend's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Where commands start. Absent: the workspace root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<SandboxPath>,
    /// What may be reached.
    pub network: Network,
    /// Secrets that are put into requests to their hosts. Their values are never part of a spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretBinding>,
    /// Whether the same input must give the same output, byte for byte, on any machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// Limits; what is left out gets the default.
    pub limits: Limits,
    /// Whether a limit that is asked for and can only be watched is refused (C-02).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// The tenant it is run for.
    pub tenant: TenantName,
    /// Free-form labels, kept in records and listings. Never a place for secrets.
    pub labels: BTreeMap<String, String>,
    /// Features the caller gives up by name (C-02): they are no longer required, and a limit among
    /// them that has no value is not set. Walls a backend has are never taken down for it.
    pub without: BTreeSet<Feature>,
}

impl SandboxSpec {
    /// Whether anything of the host can be written to: the workspace, or a further mount.
    pub fn writes_to_host(&self) -> bool {
        self.writes_to_host_workspace() || self.all_mounts().any(|mount| !mount.read_only)
    }

    /// Where commands find the workspace, on a backend that can choose. Not at a path of its own where something
    /// is mounted over a part of it: by that path the part would be seen.
    pub fn workspace_dir(&self) -> &str {
        let at = self.workspace_at.as_ref().map_or(WORKSPACE_ROOT, |at| at.path.as_str());
        if self.has_mount_below(WORKSPACE_ROOT) { WORKSPACE_ROOT } else { at }
    }

    /// Every path at which a backend that mounts it twice shows the workspace.
    pub fn workspace_paths(&self) -> Vec<&str> {
        match self.workspace_dir() {
            WORKSPACE_ROOT => vec![WORKSPACE_ROOT],
            dir if self.has_mount_below(dir) => vec![dir],
            dir => vec![WORKSPACE_ROOT, dir],
        }
    }

    fn has_mount_below(&self, dir: &str) -> bool {
        let below = |mount: &Mount| std::path::Path::new(mount.target.as_str()).starts_with(dir);
        self.all_mounts().any(below)
    }

    /// Every mount: those that were asked for, then the trees. For backends that can mount.
    pub fn all_mounts(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().chain(self.trees.iter().map(|tree| &tree.mount))
    }

    /// Removes the trees that belong to something, and the variables that lead into them.
    pub fn remove_trees(&mut self, part_of: &str) {
        let (removed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.trees).into_iter().partition(|tree| tree.part_of == part_of);
        self.trees = kept;
        let leads =
            |value: &str| removed.iter().any(|tree| value.contains(tree.mount.target.as_str()));
        self.env.retain(|_, value| !leads(value));
    }

    /// Makes all of a worktree's git directory read-only: no commits inside.
    pub fn make_git_read_only(&mut self) {
        let git = self.trees.iter_mut().filter(|tree| tree.part_of == HostTree::GIT_PART);
        git.for_each(|tree| tree.mount.read_only = true);
    }

    /// Every mount as [`SandboxSpec::all_mounts`] has them, with git directories read-only: for backends whose guests
    /// could make links in them, which git on the host would follow.
    pub fn all_mounts_without_commits(&self) -> impl Iterator<Item = Mount> {
        let trees = self.trees.iter().map(|tree| {
            let read_only = tree.mount.read_only || tree.part_of == HostTree::GIT_PART;
            Mount { read_only, ..tree.mount.clone() }
        });
        self.mounts.iter().cloned().chain(trees)
    }

    pub(crate) fn writes_to_host_workspace(&self) -> bool {
        !self.read_only && self.workspace != Workspace::Ephemeral
    }
}

/// Automatic choice, or one backend by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BackendChoice {
    /// The strongest boundary that can honour the spec.
    #[default]
    Auto,
    /// This one or none.
    Named(BackendName),
}

/// What the sandbox's root is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Image {
    /// The host's system directories, read-only.
    #[default]
    Host,
    /// A directory on the host.
    Directory(HostPath),
    /// An OCI image layout or archive on the host.
    Oci(HostPath),
    /// One that a registry has under this name. It comes from the store behind the backend or, for a backend that
    /// takes directories, from the engine's [`ImageProvider`](crate::ImageProvider).
    Named(ImageName),
    /// A WebAssembly module on the host.
    Wasm(HostPath),
}

/// Whether the root may be written to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootMode {
    /// It may not.
    #[default]
    ReadOnly,
    /// It may; the changes are gone with the sandbox.
    CopyOnWrite,
}

/// The directory tree the work is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workspace {
    /// An empty one that is gone with the sandbox.
    #[default]
    Ephemeral,
    /// A host directory, changed in place.
    Local(HostPath),
    /// A copy-on-write view of a host directory.
    Overlay(OverlayDirs),
}

/// A path at which the workspace appears, such as its own on the host, so that what notes its own path works
/// inside as outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkspaceAt {
    /// Absolute, and in no directory that the sandbox has of its own.
    pub path: SandboxPath,
    /// Whether a backend that has the workspace at `/workspace` alone is refused.
    #[serde(default)]
    pub required: bool,
}

/// Directories that belong to the sandbox's own root, or to the kernel.
const RESERVED_DIRS: [&str; 19] = [
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/tmp",
    "/var/tmp",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/boot",
    "/nix",
    "/gnu",
    "/home/sandbox",
    "/workspace",
];

impl WorkspaceAt {
    /// Why a workspace cannot appear there; none if it can.
    pub fn problem(&self) -> Option<String> {
        let path = Path::new(self.path.as_str());
        if path == Path::new(WORKSPACE_ROOT) {
            return None;
        }
        if !is_normal(self.path.as_str()) {
            return Some("is not a plain absolute path".into());
        }
        let own =
            |reserved: &str| path.starts_with(reserved) || Path::new(reserved).starts_with(path);
        let reserved = RESERVED_DIRS.into_iter().find(|reserved| own(reserved))?;
        Some(format!("lies in or above `{reserved}`, which is the sandbox's own"))
    }
}

/// Absolute and without anything that another spelling leaves out.
fn is_normal(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("") && path.len() > 1 && parts.all(|part| !matches!(part, "" | "." | ".."))
}

/// One further host directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// The directory or file on the host.
    pub source: HostPath,
    /// Where it appears; absolute.
    pub target: SandboxPath,
    /// Whether it is read-only. It is unless told otherwise.
    #[serde(default = "default_true")]
    pub read_only: bool,
}

/// A tree of the host that belongs to something the command may need. Unlike a mount it is left out where
/// the backend cannot show it, unless it is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostTree {
    /// What it belongs to: `rust`, `git`, `cache`.
    pub part_of: String,
    /// What is shown and where.
    pub mount: Mount,
    /// Whether a backend that cannot show it is refused.
    #[serde(default)]
    pub required: bool,
}

impl HostTree {
    /// What a package cache that is kept between runs belongs to.
    pub const CACHE_PART: &'static str = "cache";
    /// What the git directory of a workspace that is a worktree or submodule belongs to.
    pub const GIT_PART: &'static str = "git";

    /// Whether it appears where it lies on the host.
    pub fn keeps_its_path(&self) -> bool {
        self.mount.source.as_path() == Path::new(self.mount.target.as_str())
    }
}

fn default_true() -> bool {
    true
}

/// A numeric user and group. Names belong to images, and images differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl SandboxSpec {
    /// The features this spec cannot do without, each with the field that asks for it. Limits are
    /// not among them: admission treats those one by one.
    pub fn needs(&self) -> Vec<(Feature, &'static str)> {
        let mut needs = vec![
            (Feature::FilesystemIsolation, "(always)"),
            (Feature::ProcessIsolation, "(always)"),
            (Feature::NetworkIsolation, "(always)"),
            (Feature::CompleteKill, "(always)"),
            (self.image.feature(), "image"),
            (self.workspace.feature(), "workspace"),
        ];
        let mut when = |asked: bool, feature, field| {
            if asked {
                needs.push((feature, field));
            }
        };
        when(self.root == RootMode::CopyOnWrite, self.image.copy_on_write_feature(), "root");
        when(self.read_only, Feature::ReadOnlyWorkspace, "readOnly");
        when(!self.mounts.is_empty(), Feature::ExtraMounts, "mounts");
        when(self.trees.iter().any(|tree| tree.required), Feature::HostTrees, "trees");
        let placed = self.workspace_at.as_ref().is_some_and(|at| at.required);
        when(placed, Feature::WorkspacePath, "workspaceAt");
        when(self.user.is_some(), Feature::ChosenUser, "user");
        when(self.network == Network::Loopback, Feature::LoopbackNetwork, "network");
        when(matches!(self.network, Network::Egress(_)), Feature::EgressAllowlist, "network");
        // The certificate that programs inside are to trust is a file.
        when(!self.secrets.is_empty(), Feature::FileTransfer, "secrets");
        when(self.network.judges_requests(), Feature::FileTransfer, "network");
        when(self.deterministic, Feature::Determinism, "deterministic");
        needs
    }
}

impl Image {
    /// The feature a backend needs for this kind of image.
    pub const fn feature(&self) -> Feature {
        match self {
            Self::Host => Feature::HostImage,
            Self::Directory(_) => Feature::DirectoryImage,
            Self::Oci(_) => Feature::OciImage,
            Self::Named(_) => Feature::NamedImage,
            Self::Wasm(_) => Feature::WasmImage,
        }
    }

    /// The feature a backend needs to let this root be written to. The host's files belong to others than
    /// the user who runs a sandbox, those of an image need not.
    pub const fn copy_on_write_feature(&self) -> Feature {
        match self {
            Self::Host => Feature::CopyOnWriteRoot,
            Self::Directory(_) | Self::Oci(_) | Self::Named(_) | Self::Wasm(_) => {
                Feature::CopyOnWriteImage
            }
        }
    }
}

impl Workspace {
    /// The feature a backend needs for this kind of workspace.
    pub const fn feature(&self) -> Feature {
        match self {
            Self::Ephemeral => Feature::EphemeralWorkspace,
            Self::Local(_) => Feature::LocalWorkspace,
            Self::Overlay(_) => Feature::OverlayWorkspace,
        }
    }
}

impl FromStr for BackendChoice {
    type Err = crate::NameError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        match given {
            "auto" => Ok(Self::Auto),
            name => name.parse().map(Self::Named),
        }
    }
}

impl TryFrom<String> for BackendChoice {
    type Error = crate::NameError;

    fn try_from(given: String) -> Result<Self, Self::Error> {
        given.parse()
    }
}

impl From<BackendChoice> for String {
    fn from(choice: BackendChoice) -> String {
        choice.to_string()
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let parse = || {
            let (uid, gid) = given.split_once(':').unwrap_or((given, given));
            // The highest value means "no change" to the kernel.
            let id = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
            Some(Self { uid: id(uid)?, gid: id(gid)? })
        };
        parse().ok_or_else(|| {
            format!("`{}` is not a user: give `uid` or `uid:gid` in numbers", given.escape_debug())
        })
    }
}

impl TryFrom<String> for User {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl From<User> for String {
    fn from(user: User) -> String {
        user.to_string()
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let error = serde_json::from_str::<SandboxSpec>(r#"{"netwrok": "none"}"#).unwrap_err();
        assert!(error.to_string().contains("netwrok"), "{error}");
        let error =
            serde_json::from_str::<SandboxSpec>(r#"{"limits": {"ram": "1g"}}"#).unwrap_err();
        assert!(error.to_string().contains("ram"), "{error}");
    }

    #[test]
    fn a_writable_root_needs_another_feature_on_an_image_than_on_the_host() {
        let needed = |image: Image| {
            let spec = SandboxSpec { image, root: RootMode::CopyOnWrite, ..SandboxSpec::default() };
            let mut needs = spec.needs().into_iter();
            needs.find(|(_, field)| *field == "root").map(|(feature, _)| feature)
        };
        assert_eq!(needed(Image::Host), Some(Feature::CopyOnWriteRoot));
        let directory = Image::Directory("/srv/image".parse().unwrap());
        for image in [directory, Image::Named("python:3.12".parse().unwrap())] {
            assert_eq!(needed(image), Some(Feature::CopyOnWriteImage));
        }
    }

    #[test]
    fn values_that_do_not_parse_are_refused_with_what_was_given() {
        for (json, names) in [
            (r#"{"limits": {"memory": "lots"}}"#, "lots"),
            (r#"{"workdir": "../x"}"#, "../x"),
            (r#"{"workspace": {"local": "relative"}}"#, "relative"),
            (r#"{"workspace": {"overlay": {"lower": "/a", "upper": "/u"}}}"#, "work"),
            (r#"{"workspace": {"overlay": {"lower": "/a", "uper": "/u", "work": "/w"}}}"#, "uper"),
            (r#"{"network": {"egress": ["a b"]}}"#, "a b"),
            (r#"{"tenant": "../x"}"#, "../x"),
            (r#"{"env": {"A=B": ""}}"#, "A=B"),
            (r#"{"user": "root"}"#, "root"),
            (r#"{"without": ["walls"]}"#, "walls"),
        ] {
            let error = serde_json::from_str::<SandboxSpec>(json).unwrap_err();
            assert!(error.to_string().contains(names), "{json}: {error}");
        }
    }

    #[test]
    fn the_default_leaves_the_network_to_admission_and_has_an_empty_environment() {
        let spec: SandboxSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, SandboxSpec::default());
        assert_eq!(spec.network, Network::Auto);
        assert!(spec.env.is_empty());
    }

    #[test]
    fn a_workspace_appears_in_no_directory_of_the_sandboxs_own() {
        let problem =
            |path: &str| WorkspaceAt { path: path.parse().unwrap(), required: true }.problem();
        for fine in ["/workspace", "/home/me/project", "/srv/a b", "/root/x", "/usrlocal"] {
            assert_eq!(problem(fine), None, "{fine}");
        }
        for wrong in
            ["/", "/tmp/x", "/usr", "/home", "/var", "/etc/x", "/workspace/x", "/a//b", "a"]
        {
            assert!(problem(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn a_mount_is_read_only_unless_told_otherwise() {
        let mount: Mount = serde_json::from_str(r#"{"source": "/a", "target": "/b"}"#).unwrap();
        assert!(mount.read_only);
    }
}
