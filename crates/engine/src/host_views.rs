//! What a guest is shown of the host: checked here, once, on the final spec, for every backend (C-06).
//!
//! No view of the host, read-only or not, contains a path of Stockade's own or lies in one: who reads
//! the state directory connects to supervisors' sockets, who writes the configuration runs code on the
//! host. And no view is a directory in which programs of the host listen on sockets (C-25).
//!
//! Paths are compared by where they lie on their file system as well as by name: a bind mount is the
//! same directory under another name, and mounts below a view are shown with it.

mod homes;
mod mounts;

use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use stockade_core::{
    HostPath, HostTree, Image, OverlayDirs, Refusal, Refusals, SandboxSpec, Workspace,
};
use stockade_fs::RealPaths;

use crate::config::EngineConfig;
use mounts::{Located, LocatedView, MountTable};

/// Directories in which programs of the host keep sockets, or what the host itself is configured by.
/// No view is one of them, or contains one.
const SHARED_HOST_DIRS: [&str; 5] = ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc"];
/// Mount points of file systems that show and control the kernel. No view lies in one of them.
const KERNEL_FILESYSTEMS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// The one directory in them that holds plain files.
const SHARED_MEMORY: &str = "/dev/shm";
/// Where the runtime directories of users lie: each is full of sockets.
const RUNTIME_DIRS: &str = "/run/user";
/// Where backends keep private files of sandboxes, each below a name of [`is_private_name`].
const PRIVATE_FILES: [&str; 2] = ["/tmp", "/var/tmp"];
/// What every backend shows of the host as its image.
const HOST_IMAGE: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"];
/// Where in the state directory views are made: the trees below are for guests to see.
const VIEW_TREES: [&str; 2] = ["workspaces", "git"];
/// How deep in there a tree lies: behind the store's name and its own.
const VIEW_TREE_DEPTH: usize = 3;

const OF_THE_KERNEL: &str = "which belongs to the host's kernel and devices";
const SMALLER_DIR_REMEDY: &str =
    "choose a smaller directory that holds only what the command needs";

/// A path of Stockade's own that no guest may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPath {
    /// Where it is, or will be: it need not exist yet.
    pub path: PathBuf,
    /// What it is, for messages: "the configuration".
    pub what: &'static str,
    /// How to keep it out of a view.
    pub remedy: &'static str,
}

impl OwnPath {
    /// One that stays where it is: the view has to be another.
    pub fn fixed(path: impl Into<PathBuf>, what: &'static str) -> Self {
        Self { path: path.into(), what, remedy: SMALLER_DIR_REMEDY }
    }

    fn state(path: &Path) -> Self {
        let remedy =
            "choose a smaller directory, or set STOCKADE_STATE_DIR to a directory elsewhere";
        Self { path: path.to_owned(), what: "the state directory", remedy }
    }
}

/// Who has put the workspace into a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkspaceBy {
    /// A caller, who names a directory of the host.
    Caller,
    /// The engine, which has acquired one from the source of the request: its trees may lie in the state directory.
    Source,
}

/// One path of the host that a spec shows to its guest.
struct HostView<'s> {
    field: String,
    path: &'s HostPath,
    /// Whether it may lie among the trees that are made for guests.
    made_for_guests: bool,
}

impl EngineConfig {
    /// What of the host this spec must not show, each with the field that asks for it (C-06). Nothing
    /// where everything is fine. Paths that do not exist are for the backend to refuse.
    pub fn refused_views(&self, spec: &SandboxSpec) -> Refusals {
        self.refused_views_with(spec, WorkspaceBy::Caller)
    }

    /// The same, where the workspace may be one that the engine has acquired.
    pub(crate) fn refused_views_with(&self, spec: &SandboxSpec, by: WorkspaceBy) -> Refusals {
        let paths = RealPaths::default();
        let mut own = self.every_own_path(&paths);
        let mut refusals = Vec::new();
        let image = match spec.image {
            Image::Host => {
                HOST_IMAGE.map(|shown| (shown, real_by(&paths, Path::new(shown)))).to_vec()
            }
            Image::Directory(_) | Image::Oci(_) | Image::Named(_) | Image::Wasm(_) => Vec::new(),
        };
        refusals.extend(own.iter().filter_map(|own| refuse_in_host_image(own, &image)));
        let views = list_host_views(spec, by);
        if views.is_empty() && image.is_empty() {
            return Refusals(refusals);
        }
        let Ok(mounts) = MountTable::read() else {
            refusals.push(refuse_unknown_mounts());
            return Refusals(refusals);
        };
        refusals.extend(refuse_kernel_in_host_image(&image, &mounts));
        let shown: Vec<_> = views.iter().map(|view| real_by(&paths, view.path.as_path())).collect();
        own.extend(homes::list_own_dirs(&paths, self.home.as_deref(), &shown));
        let check = HostViewCheck::new(self, &paths, own, mounts);
        let shown = views.iter().zip(&shown);
        refusals.extend(shown.filter_map(|(view, path)| check.refuse(view, path)));
        Refusals(refusals)
    }

    /// The state directory and what else is configured, each behind all links.
    fn every_own_path(&self, paths: &RealPaths) -> Vec<OwnPath> {
        let state = OwnPath::state(&self.state_dir);
        let all = std::iter::once(&state).chain(&self.own_paths);
        all.map(|own| OwnPath { path: real_by(paths, &own.path), ..own.clone() }).collect()
    }
}

/// Everything of the host that a spec shows, in every mode.
fn list_host_views(spec: &SandboxSpec, by: WorkspaceBy) -> Vec<HostView<'_>> {
    let view = |field: &str, path, made_for_guests| HostView {
        field: field.to_owned(),
        path,
        made_for_guests,
    };
    let is_made = by == WorkspaceBy::Source;
    let mut views = match &spec.workspace {
        Workspace::Ephemeral => Vec::new(),
        Workspace::Local(path) => vec![view("workspace", path, is_made)],
        Workspace::Overlay(OverlayDirs { lower, upper, work }) => vec![
            view("workspace", lower, is_made),
            view("workspace.overlay.upper", upper, is_made),
            view("workspace.overlay.work", work, is_made),
        ],
    };
    let mounts = spec.mounts.iter().enumerate();
    views.extend(
        mounts.map(|(at, mount)| view(&format!("mounts[{at}].source"), &mount.source, false)),
    );
    let trees = spec.trees.iter().enumerate();
    views.extend(trees.map(|(at, tree)| view(&format!("trees[{at}]"), &tree.mount.source, false)));
    match &spec.image {
        Image::Directory(path) => views.push(view("image", path, false)),
        // Files of these are read by the backend; none of them is shown as it lies on the host.
        Image::Oci(_) | Image::Wasm(_) | Image::Host | Image::Named(_) => {}
    }
    views
}

/// The spec with every path of the host behind all links: what is checked is what a backend is handed, and
/// a link put in its way later is refused there. A path that does not exist stays as named.
pub(crate) fn behind_links(spec: &SandboxSpec) -> SandboxSpec {
    let mut spec = spec.clone();
    let paths = RealPaths::default();
    for path in host_paths(&mut spec) {
        if let Ok(found) = real_by(&paths, path.as_path()).try_into() {
            *path = found;
        }
    }
    spec
}

/// Refuses parts of a git directory that have become links. The caller had resolved and checked their paths, so a link
/// was put there since, for example by another sandbox that may write to the repository.
pub(crate) fn refuse_moved_git_trees(
    named: &SandboxSpec,
    behind_links: &SandboxSpec,
) -> Vec<Refusal> {
    let trees = named.trees.iter().zip(&behind_links.trees).enumerate();
    let moved = trees.filter(|(_, (named, found))| {
        named.part_of == HostTree::GIT_PART && named.mount.source != found.mount.source
    });
    let refuse = |(at, (named, _)): (usize, (&HostTree, &HostTree))| {
        let path = named.mount.source.as_path().display();
        let reason = format!("`{path}` has become a link since it was looked at");
        build_refusal(
            &format!("trees[{at}]"),
            reason,
            "look at what has put it there, and try again",
        )
    };
    moved.map(refuse).collect()
}

/// Every path of the host that a spec names.
fn host_paths(spec: &mut SandboxSpec) -> Vec<&mut HostPath> {
    let mut paths = match &mut spec.workspace {
        Workspace::Ephemeral => Vec::new(),
        Workspace::Local(path) => vec![path],
        Workspace::Overlay(OverlayDirs { lower, upper, work }) => vec![lower, upper, work],
    };
    paths.extend(spec.mounts.iter_mut().map(|mount| &mut mount.source));
    paths.extend(spec.trees.iter_mut().map(|tree| &mut tree.mount.source));
    match &mut spec.image {
        Image::Directory(path) | Image::Oci(path) | Image::Wasm(path) => paths.push(path),
        Image::Host | Image::Named(_) => {}
    }
    paths
}

/// The host's own programs are shown as they are: what lies among them is shown too.
fn refuse_in_host_image(own: &OwnPath, image: &[(&str, PathBuf)]) -> Option<Refusal> {
    let (shown, _) = image.iter().find(|(_, real)| own.path.starts_with(real))?;
    let (path, what) = (own.path.display(), own.what);
    let reason = format!("{what} `{path}` lies in `{shown}`, which every sandbox sees");
    Some(build_refusal("image", reason, "move it elsewhere, or use another image"))
}

fn refuse_unknown_mounts() -> Refusal {
    let reason = "the mounts of this host cannot be read, so nothing of it can be shown";
    build_refusal("workspace", reason.into(), "mount /proc")
}

/// The host's own programs are shown with everything that is mounted among them.
fn refuse_kernel_in_host_image(image: &[(&str, PathBuf)], mounts: &MountTable) -> Option<Refusal> {
    image.iter().find_map(|(shown, real)| {
        let at = mounts.find_kernel_mount(real)?.display();
        let reason = format!("`{shown}` shows `{at}`, {OF_THE_KERNEL}");
        Some(build_refusal("image", reason, "unmount it, or use another image"))
    })
}

/// One check of all views of a spec. What views are compared with is resolved once, not for each of them.
struct HostViewCheck {
    state: PathBuf,
    own: Vec<(OwnPath, Located)>,
    mounts: MountTable,
    /// Where backends keep private files of sandboxes.
    private: Vec<Located>,
    /// Directories that programs of the host share, which no view is or contains.
    shared: Vec<(&'static str, Located)>,
    /// Those that are configured, which no view is.
    configured: Vec<Located>,
    unpack_dir: Option<PathBuf>,
    guest_caches: Vec<PathBuf>,
}

impl HostViewCheck {
    fn new(
        config: &EngineConfig,
        paths: &RealPaths,
        own: Vec<OwnPath>,
        mounts: MountTable,
    ) -> Self {
        let real = |path: &Path| real_by(paths, path);
        let locate = |path: &Path| mounts.locate(&real(path));
        let private = PRIVATE_FILES.iter().map(|parent| locate(Path::new(parent))).collect();
        let shared = SHARED_HOST_DIRS.iter().map(|dir| (*dir, locate(Path::new(dir)))).collect();
        let configured = config.shared_dirs.iter().map(|dir| locate(dir)).collect();
        let unpack_dir = config.unpack_dir.as_deref().map(real);
        let guest_caches = config.guest_caches.iter().map(|dir| real(dir)).collect();
        let own = own.into_iter().map(|own| (own.clone(), mounts.locate(&own.path))).collect();
        Self {
            state: real(&config.state_dir),
            own,
            private,
            shared,
            configured,
            unpack_dir,
            guest_caches,
            mounts,
        }
    }

    /// `path` is that of the view behind all links.
    fn refuse(&self, view: &HostView<'_>, path: &Path) -> Option<Refusal> {
        let shown = self.mounts.locate_view(path);
        let found = self
            .own_path(view, &shown)
            .or_else(|| self.private_files(&shown.at))
            .or_else(|| self.explain_shared_directory(&shown))
            .or_else(|| refuse_kernel_path(path))
            .or_else(|| self.explain_kernel_mount(path))
            .or_else(|| no_plain_file(path));
        let (reason, remedy) = found?;
        Some(build_refusal(&view.field, format!("`{}` {reason}", path.display()), &remedy))
    }

    fn own_path(&self, view: &HostView<'_>, shown: &LocatedView) -> Option<(String, String)> {
        let located = &shown.at;
        self.own.iter().find_map(|(own, there)| {
            let relation = if shown.shows(there) {
                "holds"
            } else if there.contains(located)
                && !self.is_view_tree(view, located)
                && !self.is_unpacked_to(view, located)
                && !self.is_guest_cache(view, located)
            {
                "lies in"
            } else {
                return None;
            };
            let reason = format!("{relation} {} `{}`", own.what, own.path.display());
            Some((reason, own.remedy.to_owned()))
        })
    }

    /// Whether a view is one of the trees that the state directory holds for guests.
    fn is_view_tree(&self, view: &HostView<'_>, located: &Located) -> bool {
        let Ok(rest) = located.path.strip_prefix(&self.state) else { return false };
        let parts: Vec<_> = rest.components().collect();
        let store = parts.first().and_then(|first| first.as_os_str().to_str());
        view.made_for_guests
            && parts.len() >= VIEW_TREE_DEPTH
            && store.is_some_and(|store| VIEW_TREES.contains(&store))
    }

    /// Whether a workspace is one that this engine unpacks an image into.
    fn is_unpacked_to(&self, view: &HostView<'_>, located: &Located) -> bool {
        let Some(dir) = &self.unpack_dir else { return false };
        view.field == "workspace" && located.path != *dir && located.path.starts_with(dir)
    }

    /// Whether a tree is a package cache that this engine's command keeps, and not a part of it or more.
    fn is_guest_cache(&self, view: &HostView<'_>, located: &Located) -> bool {
        view.field.starts_with("trees[") && self.guest_caches.contains(&located.path)
    }

    /// Private files of sandboxes, of any user's.
    fn private_files(&self, located: &Located) -> Option<(String, String)> {
        self.private.iter().find_map(|parent| {
            let name = parent.rest_of(located)?.components().next()?;
            let Component::Normal(name) = name else { return None };
            let private = name.to_str().is_some_and(is_private_name);
            private.then(|| ("holds private files of sandboxes".into(), SMALLER_DIR_REMEDY.into()))
        })
    }

    /// File systems of the kernel, wherever they are mounted: what a chroot has at `proc` is the host's own, and
    /// its writer decides what the host runs.
    fn explain_kernel_mount(&self, path: &Path) -> Option<(String, String)> {
        let at =
            self.mounts.find_kernel_mount(path).filter(|_| !path.starts_with(SHARED_MEMORY))?;
        let remedy = "unmount it, or choose a directory without it: a sandbox has its own /proc, \
                      /sys and /dev";
        Some((format!("shows `{}`, {OF_THE_KERNEL}", at.display()), remedy.into()))
    }

    /// Directories that programs of the host share with each other.
    fn explain_shared_directory(&self, shown: &LocatedView) -> Option<(String, String)> {
        let located = &shown.at;
        let remedy = "choose a directory of your own, such as one below it";
        let listen = "where programs of the host listen and leave files";
        for (name, there) in &self.shared {
            if there.is(located) {
                return Some((format!("is a directory {listen}"), remedy.into()));
            }
            if shown.shows(there) {
                return Some((format!("holds `{name}`, {listen}"), SMALLER_DIR_REMEDY.into()));
            }
        }
        let runtime = [Some(located.path.as_path()), located.path.parent()]
            .contains(&Some(Path::new(RUNTIME_DIRS)));
        let found = runtime || self.configured.iter().any(|there| there.is(located));
        found.then(|| (format!("is a directory {listen}"), remedy.into()))
    }
}

/// What the kernel shows of itself.
fn refuse_kernel_path(path: &Path) -> Option<(String, String)> {
    let found = KERNEL_FILESYSTEMS.iter().any(|kernel| path.starts_with(kernel));
    (found && !path.starts_with(SHARED_MEMORY)).then(|| {
        let remedy = "leave it out: a sandbox has its own /proc, /sys and /dev";
        ("belongs to the host's kernel and devices".into(), remedy.into())
    })
}

/// A socket or pipe is a way to a program of the host, and a device one to its hardware.
fn no_plain_file(path: &Path) -> Option<(String, String)> {
    let kind = std::fs::symlink_metadata(path).ok()?.file_type();
    let special = kind.is_socket() || kind.is_fifo();
    let device = kind.is_char_device() || kind.is_block_device();
    (special || device).then(|| {
        let remedy = "name a directory or a plain file";
        ("is a socket, pipe or device of the host".into(), remedy.into())
    })
}

/// Whether private files of sandboxes lie under such a name: `stockade-UID`, `stockade-ssh-UID` and
/// `stockade-wasm-ID`, with any suffix.
fn is_private_name(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("stockade-") else { return false };
    let user = rest.strip_prefix("ssh-").unwrap_or(rest);
    user.starts_with(|first: char| first.is_ascii_digit()) || rest.starts_with("wasm-")
}

fn build_refusal(field: &str, reason: String, remedy: &str) -> Refusal {
    let (field, remedy) = (field.to_owned(), remedy.to_owned());
    Refusal { field, feature: None, reason, remedy, backend: None }
}

/// The path behind all links, as far as it exists: what is not there yet will be made there.
pub fn real(path: &Path) -> PathBuf {
    real_by(&RealPaths::default(), path)
}

/// The same as one of several paths that are looked at together.
fn real_by(paths: &RealPaths, path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut there = path;
    loop {
        if let Ok(found) = paths.canonicalize(there) {
            return missing.iter().rev().fold(found, |path, name| path.join(name));
        }
        let (Some(parent), Some(name)) = (there.parent(), there.file_name()) else {
            return path.to_owned();
        };
        missing.push(name);
        there = parent;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use stockade_core::Mount;

    use super::*;

    fn build_local_spec(path: impl Into<PathBuf>) -> SandboxSpec {
        let workspace = Workspace::Local(path.into().try_into().unwrap());
        SandboxSpec { workspace, ..SandboxSpec::default() }
    }

    /// Every way to show one path, read-only as well.
    fn every_way(path: &Path) -> Vec<SandboxSpec> {
        let host: HostPath = path.to_owned().try_into().unwrap();
        let mount = |read_only| {
            let target = "/shown".parse().unwrap();
            let mounts = vec![Mount { source: host.clone(), target, read_only }];
            SandboxSpec { mounts, ..SandboxSpec::default() }
        };
        let layer = |name: &str| PathBuf::from("/srv").join(name).try_into().unwrap();
        let layers =
            OverlayDirs { lower: host.clone(), upper: layer("upper"), work: layer("work") };
        vec![
            build_local_spec(path),
            SandboxSpec { read_only: true, ..build_local_spec(path) },
            SandboxSpec { workspace: Workspace::Overlay(layers), ..SandboxSpec::default() },
            mount(true),
            mount(false),
            SandboxSpec { image: Image::Directory(host.clone()), ..SandboxSpec::default() },
        ]
    }

    fn collect_refusal_reasons(config: &EngineConfig, spec: &SandboxSpec) -> String {
        config.refused_views(spec).to_string()
    }

    fn is_shown_when_acquired(config: &EngineConfig, spec: &SandboxSpec) -> bool {
        config.refused_views_with(spec, WorkspaceBy::Source).0.is_empty()
    }

    #[test]
    fn no_view_holds_what_is_ours_or_lies_in_it_however_it_is_asked_for() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let mut config = EngineConfig::at(base.join("a/state"));
        config.own_paths =
            vec![OwnPath::fixed(base.join("b/.config/stockade"), "the configuration")];
        std::fs::create_dir_all(base.join("a/state/run")).unwrap();
        std::fs::create_dir_all(base.join("b/.config")).unwrap();
        std::fs::create_dir_all(base.join("c")).unwrap();
        std::os::unix::fs::symlink(base.join("a"), base.join("link")).unwrap();
        for (shown, what) in [
            ("", "the state directory"),
            ("a", "the state directory"),
            ("link", "the state directory"),
            ("a/state", "the state directory"),
            ("a/state/run", "lies in the state directory"),
            ("b", "the configuration"),
            ("b/.config", "the configuration"),
        ] {
            for spec in every_way(&base.join(shown)) {
                let told = collect_refusal_reasons(&config, &spec);
                assert!(told.contains(what), "{shown}: {told:?} for {spec:?}");
            }
        }
        for spec in every_way(&base.join("c")) {
            assert_eq!(collect_refusal_reasons(&config, &spec), "");
        }
    }

    #[test]
    fn a_backend_is_handed_the_path_that_was_checked() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("project")).unwrap();
        std::os::unix::fs::symlink(base.join("project"), base.join("link")).unwrap();
        let named = every_way(&base.join("link")).into_iter();
        let meant = every_way(&base.join("project")).into_iter();
        for (named, meant) in named.zip(meant) {
            assert_eq!(behind_links(&named), meant);
        }
    }

    #[test]
    fn trees_that_are_made_for_guests_are_workspaces_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().canonicalize().unwrap();
        let config = EngineConfig::at(&state);
        for tree in ["workspaces/one/copy", "git/one/tree"] {
            std::fs::create_dir_all(state.join(tree)).unwrap();
            let mut ways = every_way(&state.join(tree)).into_iter();
            let mut workspaces = ways.by_ref().take(3);
            assert!(workspaces.all(|spec| is_shown_when_acquired(&config, &spec)), "{tree}");
            assert!(ways.all(|spec| !is_shown_when_acquired(&config, &spec)), "{tree}");
        }
        for above in ["workspaces", "workspaces/one", "git", "git/one", "snapshots", "run"] {
            let spec = build_local_spec(state.join(above));
            assert!(!is_shown_when_acquired(&config, &spec), "{above}");
        }
    }

    /// The host runs git in the store with the user's settings, and what is in a layer is applied later.
    #[test]
    fn no_caller_names_a_tree_that_is_made_for_guests() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().canonicalize().unwrap();
        let config = EngineConfig::at(&state);
        for tree in [
            "git/one/store",
            "git/one/store/objects",
            "git/one/tree",
            "git/one/tree/sub",
            "workspaces/one/copy",
            "workspaces/one/upper",
            "workspaces/one/work/work",
        ] {
            std::fs::create_dir_all(state.join(tree)).unwrap();
            for spec in every_way(&state.join(tree)) {
                let told = collect_refusal_reasons(&config, &spec);
                assert!(told.contains("lies in the state directory"), "{tree}: {told:?}");
            }
        }
    }

    #[test]
    fn what_images_are_unpacked_to_is_a_workspace_of_one_engine_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().canonicalize().unwrap();
        let (store, tree) = (state.join("images"), state.join("images/drafts/one"));
        std::fs::create_dir_all(&tree).unwrap();
        let usual = EngineConfig::at(&state);
        let unpacking = EngineConfig { unpack_dir: Some(store.clone()), ..usual.clone() };
        let spec = build_local_spec(&tree);
        assert_eq!(collect_refusal_reasons(&unpacking, &spec), "");
        assert!(collect_refusal_reasons(&usual, &spec).contains("the state directory"));
        for above in [&store, &state] {
            let told = collect_refusal_reasons(&unpacking, &build_local_spec(above));
            assert!(told.contains("the state directory"), "{told}");
        }
        // Neither a mount nor an image.
        for spec in every_way(&tree).into_iter().skip(3) {
            assert!(!collect_refusal_reasons(&unpacking, &spec).is_empty(), "{spec:?}");
        }
    }

    #[test]
    fn a_cache_that_is_kept_for_guests_is_a_tree_of_one_engine_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (store, kept) = (base.join("cache"), base.join("cache/projects/one/files"));
        for dir in ["cache/projects/one/files/cargo", "cache/projects/two/files"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        let mut usual = EngineConfig::at("/nowhere/state");
        usual.own_paths = vec![OwnPath::fixed(&store, "the cache")];
        let keeping = EngineConfig { guest_caches: vec![kept.clone()], ..usual.clone() };
        let tree = |path: &Path| {
            let source: HostPath = path.to_owned().try_into().unwrap();
            let mount = Mount { source, target: "/shown".parse().unwrap(), read_only: false };
            let tree = HostTree { part_of: "cache".into(), mount, required: true };
            SandboxSpec { trees: vec![tree], ..SandboxSpec::default() }
        };
        assert_eq!(collect_refusal_reasons(&keeping, &tree(&kept)), "");
        assert!(collect_refusal_reasons(&usual, &tree(&kept)).contains("the cache"));
        let (above, beside) =
            (base.join("cache/projects/one"), base.join("cache/projects/two/files"));
        for other in [&store, &above, &beside, &kept.join("cargo")] {
            let told = collect_refusal_reasons(&keeping, &tree(other));
            assert!(told.contains("the cache"), "{}: {told}", other.display());
        }
        // Neither a workspace nor a mount nor an image.
        for spec in every_way(&kept) {
            assert!(!collect_refusal_reasons(&keeping, &spec).is_empty(), "{spec:?}");
        }
    }

    #[test]
    fn a_part_of_a_git_directory_that_has_become_a_link_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("heads")).unwrap();
        let part = |part_of: &str| {
            let source: HostPath = base.join("heads").try_into().unwrap();
            let mount = Mount { source, target: "/shown".parse().unwrap(), read_only: false };
            let tree = HostTree { part_of: part_of.into(), mount, required: false };
            SandboxSpec { trees: vec![tree], ..SandboxSpec::default() }
        };
        let refused = |spec: &SandboxSpec| refuse_moved_git_trees(spec, &behind_links(spec));
        assert!(refused(&part(HostTree::GIT_PART)).is_empty());
        std::fs::rename(base.join("heads"), base.join("kept")).unwrap();
        std::os::unix::fs::symlink(base.join("kept"), base.join("heads")).unwrap();
        let told = refused(&part(HostTree::GIT_PART));
        assert!(told.len() == 1 && told[0].reason.contains("has become a link"), "{told:?}");
        // Toolchains are read-only, and lie behind links as people like.
        assert!(refused(&part("rust")).is_empty());
    }

    #[test]
    fn directories_that_programs_of_the_host_share_are_not_shown_as_a_whole() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let mut config = EngineConfig::at("/nowhere/state");
        config.shared_dirs = vec![base.join("tmpdir")];
        std::fs::create_dir_all(base.join("tmpdir/own")).unwrap();
        let shared = ["/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", "/", "/var", "/proc", "/sys"];
        let private = ["/var/tmp/stockade-1000/x", "/tmp/stockade-ssh-0", "/tmp/stockade-wasm-a"];
        let further = ["/dev", "/dev/null", "/proc/1", "/run/user", "/run/user/1000"];
        let named = base.join("tmpdir");
        let all = shared.iter().chain(&private).chain(&further).map(Path::new);
        for path in all.chain([named.as_path()]) {
            let spec = build_local_spec(path);
            assert!(!collect_refusal_reasons(&config, &spec).is_empty(), "{}", path.display());
        }
        for path in [base.join("tmpdir/own"), base, "/etc/ssl".into(), "/usr/share".into()] {
            assert_eq!(collect_refusal_reasons(&config, &build_local_spec(path)), "");
        }
    }

    #[test]
    fn a_socket_is_no_file_to_show() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().canonicalize().unwrap().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let told =
            collect_refusal_reasons(&EngineConfig::at("/nowhere/state"), &every_way(&path)[3]);
        assert!(told.contains("mounts[0].source") && told.contains("socket"), "{told}");
    }

    #[test]
    fn state_among_the_hosts_programs_is_refused_with_the_hosts_image() {
        let config = EngineConfig::at("/usr/lib/stockade/state");
        assert!(
            collect_refusal_reasons(&config, &SandboxSpec::default())
                .contains("every sandbox sees")
        );
        let image = Image::Named("debian".parse().unwrap());
        assert_eq!(
            collect_refusal_reasons(&config, &SandboxSpec { image, ..SandboxSpec::default() }),
            ""
        );
    }

    #[test]
    fn a_path_that_is_not_there_yet_is_followed_as_far_as_it_is() {
        assert_eq!(real(Path::new("/proc/self/root/nowhere/x")), Path::new("/nowhere/x"));
    }
}
