//! Prepared roots: everything of a sandbox's root that does not depend on the one sandbox, put
//! together once and cloned for each. Kept read-only, and never written to after it is laid.

mod etc;
mod gather;
mod piece;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::{At, Failure, Wall};
use crate::ground::{Ground, ROOTS_DIR};
use crate::open::{OpenSource, format_path};
use crate::plan::{LaunchPlan, Root};
use crate::{fs, sys};
use gather::{TemplateContent, TemplateItem};

pub use piece::{Made, Piece, host_root};

/// What of the host any guest may read, as whole paths; not all of it need be there.
pub(crate) fn list_readable_paths() -> Vec<String> {
    gather::list_readable_paths().into_iter().map(|inside| format!("/{inside}")).collect()
}

/// The device nodes any guest may use, as whole paths.
pub(crate) fn list_device_paths() -> Vec<String> {
    gather::device_names().map(|device| format!("/dev/{device}")).collect()
}

/// The home directory inside.
pub const SANDBOX_HOME: &str = "/home/sandbox";
/// How many kinds of root are cached; each costs some mounts in every copy.
const MAX_CACHED_ROOTS: usize = 4;
/// A prepared root holds a few small files, and the mount points of the rest.
const ROOT_BYTES: u64 = 8 << 20;

/// What makes two plans share a prepared root.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    root: Root,
    version: (u64, u64, i64, u64),
    uid: u32,
    gid: u32,
    devices: Vec<String>,
    targets: Vec<(PathBuf, bool)>,
}

/// One prepared root.
#[derive(Debug)]
pub(crate) struct RootTemplate {
    key: Key,
    /// Where it stands in the namespace of prepared roots.
    pub path: String,
    /// Its mount points, itself aside.
    pub mounts: Vec<PathBuf>,
    /// Those of them that a copy-on-write root puts a layer over.
    pub layers: Vec<PathBuf>,
}

impl RootTemplate {
    /// The root once more, without anything mounted in it: an overlay's lower directory must not
    /// have mounts below that its user namespace did not make.
    pub(crate) fn bare_path(&self) -> String {
        format!("{}-bare", self.path)
    }
}

/// The prepared roots at hand, the latest used last.
#[derive(Default)]
pub(crate) struct Templates {
    kept: Vec<RootTemplate>,
    made: u64,
}

impl Templates {
    /// The prepared root for a plan, made now if there is none yet.
    pub(crate) fn get(
        &mut self,
        ground: &Ground,
        plan: &LaunchPlan,
        mounts: &[OpenSource],
    ) -> Result<&RootTemplate, Failure> {
        let key = build_key(ground, plan, mounts)?;
        let template = match self.kept.iter().position(|template| template.key == key) {
            Some(index) => self.kept.remove(index),
            None => self.make_template(ground, key)?,
        };
        self.kept.push(template);
        let missing = || Failure::without_errno(Wall::Template, "no prepared root");
        self.kept.last().ok_or_else(missing)
    }

    fn make_template(&mut self, ground: &Ground, key: Key) -> Result<RootTemplate, Failure> {
        if self.kept.len() >= MAX_CACHED_ROOTS {
            discard_template(&self.kept.remove(0)).at(Wall::Template, "an old prepared root")?;
        }
        let items =
            ground.on_host(|| gather::gather_items(&key.root, (key.uid, key.gid), &key.devices))?;
        self.made += 1;
        let path = format!("{ROOTS_DIR}/{}", self.made);
        lay_template(key, path, items)
    }
}

fn build_key(ground: &Ground, plan: &LaunchPlan, mounts: &[OpenSource]) -> Result<Key, Failure> {
    let version = match &plan.root {
        Root::Host => (0, 0, 0, 0),
        Root::Directory(path) => ground.on_host(|| gather::read_image_version(path))?,
    };
    let kinds = plan.mounts.iter().zip(mounts);
    let mut targets: Vec<_> =
        kinds.map(|(mount, source)| (mount.target.clone(), source.directory)).collect();
    targets.extend(plan.workspace_paths().map(|path| (path.clone(), true)));
    let devices = plan.devices.clone();
    Ok(Key { root: plan.root.clone(), version, uid: plan.uid, gid: plan.gid, devices, targets })
}

fn discard_template(template: &RootTemplate) -> Result<(), Errno> {
    for path in [&template.bare_path(), &template.path] {
        rustix::mount::unmount(path.as_str(), UnmountFlags::DETACH)?;
        rustix::fs::rmdir(path.as_str())?;
    }
    Ok(())
}

fn mount_at(tree: &OwnedFd, path: &str) -> Result<(), Errno> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755))?;
    fs::attach_mount(tree, fs::open_path(path)?)
}

fn lay_template(key: Key, path: String, items: Vec<TemplateItem>) -> Result<RootTemplate, Failure> {
    let mut template = RootTemplate { key, path, mounts: Vec::new(), layers: Vec::new() };
    let root =
        fs::make_tmpfs(ROOT_BYTES, "0755", fs::WRITABLE_MOUNT).at(Wall::Template, "a tmpfs")?;
    mount_at(&root, &template.path).at(Wall::Template, &template.path)?;
    let bare =
        fs::clone_with(&root, "", fs::READ_ONLY_MOUNT).at(Wall::Template, "its bare copy")?;
    mount_at(&bare, &template.bare_path()).at(Wall::Template, &template.bare_path())?;
    for item in &items {
        lay_item(&root, item).at(Wall::Template, &format_path(&item.target))?;
        if let TemplateContent::Tree { layer, .. } = item.what {
            template.mounts.push(item.target.clone());
            template.layers.extend(layer.then(|| item.target.clone()));
        }
    }
    lay_mount_points(&root, &template.key.targets)?;
    sys::mount_setattr(root.as_fd(), fs::READ_ONLY_MOUNT, false).at(Wall::Template, "read-only")?;
    Ok(template)
}

fn lay_item(root: &OwnedFd, item: &TemplateItem) -> Result<(), Errno> {
    let parent = item.target.parent().unwrap_or(Path::new("/"));
    fs::make_place(root, parent, true)?;
    let inside = item.target.strip_prefix("/").map_err(|_| Errno::INVAL)?;
    match &item.what {
        TemplateContent::Link(target) => rustix::fs::symlinkat(target, root, inside),
        TemplateContent::File(content) => write_new(root, inside, content),
        TemplateContent::Tree { tree, directory, .. } => {
            fs::make_place(root, &item.target, *directory)?;
            fs::attach_in(tree, root, &item.target)
        }
    }
}

fn write_new(root: &OwnedFd, path: &Path, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o644))?;
    match rustix::io::write(&file, content)? == content.len() {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

/// Mount points that every sandbox needs, and those this plan names where the root can hold them.
fn lay_mount_points(root: &OwnedFd, targets: &[(PathBuf, bool)]) -> Result<(), Failure> {
    for place in ["/proc", "/sys", "/tmp", "/var/tmp", "/run", SANDBOX_HOME, "/dev/pts", "/dev/shm"]
    {
        fs::make_place(root, Path::new(place), true).at(Wall::Template, place)?;
    }
    for (target, directory) in targets {
        match fs::make_place(root, target, *directory) {
            // Below a private place of the sandbox it is made there, when that exists.
            Ok(()) | Err(Errno::ROFS) => {}
            Err(errno) => return Err(Failure::new(Wall::Template, errno, format_path(target))),
        }
    }
    Ok(())
}

/// Opens a prepared root by its path, as a sandbox does in its own copy of the namespace.
pub(crate) fn clone_of(template: &RootTemplate) -> Result<OwnedFd, Errno> {
    fs::clone_tree(CWD, &template.path)
}
