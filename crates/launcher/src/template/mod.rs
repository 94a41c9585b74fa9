//! Prepared roots: everything of a sandbox's root that does not depend on the one sandbox, put
//! together once and cloned for each. Kept read-only, and never written to after it is laid.

mod draft;
mod etc;
mod gather;
mod piece;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::io::Errno;

use crate::base_namespaces::{Ground, ROOTS_DIR};
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::OpenSource;
use crate::plan::{LaunchPlan, Root};
use draft::Draft;
use gather::TemplateItem;

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
        draft::bare_path(&self.path)
    }
}

/// The prepared roots at hand, the latest used last.
#[derive(Default)]
pub(crate) struct Templates {
    kept: Vec<RootTemplate>,
    made: u64,
    /// The host's root, laid ahead of the first plan but for what the plan decides.
    draft: Option<Draft>,
}

impl Templates {
    /// Lays what every root of the host has in common, for the first plan to finish.
    pub(crate) fn prepare_draft(&mut self, ground: &Ground) -> Result<(), Failure> {
        if self.draft.is_none() && self.made == 0 {
            self.draft = Some(self.begin_draft(ground, &Root::Host)?);
        }
        Ok(())
    }

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
        let mut draft = match self.take_draft(&key.root)? {
            Some(draft) => draft,
            None => self.begin_draft(ground, &key.root)?,
        };
        draft.lay(&gather_own_items(ground, &key)?)?;
        draft.finish(key)
    }

    /// The draft, if it is of this kind of root. One of another kind is given up: nothing that can be written
    /// to stays in the namespace that sandboxes are cloned from.
    fn take_draft(&mut self, root: &Root) -> Result<Option<Draft>, Failure> {
        match (self.draft.take(), root) {
            (Some(draft), Root::Host) => Ok(Some(draft)),
            (Some(draft), Root::Directory(_)) => {
                draft.discard().at(Wall::Template, "an unused root").map(|()| None)
            }
            (None, Root::Host | Root::Directory(_)) => Ok(None),
        }
    }

    fn begin_draft(&mut self, ground: &Ground, root: &Root) -> Result<Draft, Failure> {
        let items = ground.on_host(|| gather::gather_shared_items(root))?;
        self.made += 1;
        let mut draft = Draft::new(format!("{ROOTS_DIR}/{}", self.made))?;
        draft.lay(&items)?;
        draft.lay_fixed_mount_points()?;
        Ok(draft)
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

/// What the plan decides about a root's content.
fn gather_own_items(ground: &Ground, key: &Key) -> Result<Vec<TemplateItem>, Failure> {
    let mut items = match key.devices.is_empty() {
        true => Vec::new(),
        false => ground.on_host(|| gather::gather_devices(&key.devices))?,
    };
    match key.root {
        Root::Host => items.extend(gather::gather_identity(key.uid, key.gid)?),
        // An image has its own list of users.
        Root::Directory(_) => {}
    }
    Ok(items)
}

fn discard_template(template: &RootTemplate) -> Result<(), Errno> {
    draft::discard_at(&template.path)
}

/// Opens a prepared root by its path, as a sandbox does in its own copy of the namespace.
pub(crate) fn clone_of(template: &RootTemplate) -> Result<OwnedFd, Errno> {
    fs::clone_tree(CWD, &template.path)
}
