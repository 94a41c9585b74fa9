//! Removes checkouts that no workspace is a view of and no request names in a while, and stores that have
//! none left. One that was asked for lately is never touched: its workspace may be in the making.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use stockade_fs::{ClosedDirs, Directory, Locked, Sharing, draft_name, remove_entry};

use super::checkout::{CHECKOUT_DRAFT_PREFIX, clear_drafts};
use crate::error::{FaultResult, FaultStep};
use crate::store::open_tree;
use crate::tree::list_names;

/// Age below which a checkout is never removed: longer than making a workspace takes.
const MIN_UNUSED_AGE: Duration = Duration::from_secs(3600);
const USED_STAMP_SUFFIX: &str = ".used";
const REMOVED_STORE_PREFIX: &str = "gone";

/// Notes that a checkout was asked for now.
pub(crate) fn mark_used(checkout: &Path) -> FaultResult<()> {
    let path = used_stamp_path(checkout);
    let mark = File::create(&path).step("create", path.display())?;
    mark.set_modified(SystemTime::now()).step("write", path.display())
}

fn used_stamp_path(checkout: &Path) -> PathBuf {
    let mut path = checkout.as_os_str().to_owned();
    path.push(USED_STAMP_SUFFIX);
    path.into()
}

/// Removes what is not among `viewed` and was not asked for within `unused`; answers how many checkouts.
/// Stores whose lock is held are skipped.
pub(crate) fn prune_checkouts(
    stores: &Directory,
    viewed: &BTreeSet<PathBuf>,
    unused: Duration,
) -> FaultResult<usize> {
    let mut removed = 0;
    for name in stores.names().step("list", stores.path().display())? {
        let half_gone = name.starts_with(&format!(".{REMOVED_STORE_PREFIX}-"));
        if !half_gone && !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let path = stores.path_of(&name);
        let Ok(file) = stores.open(&name, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
        let Ok(_lock) = Locked::attempt(file, Sharing::Exclusive).step("lock", path.display())?
        else {
            continue;
        };
        if !half_gone {
            clear_drafts(&path)?;
            let (gone, left) = thin_out(&path, viewed, unused.max(MIN_UNUSED_AGE))?;
            removed += gone;
            if left > 0 {
                continue;
            }
        }
        let gone = draft_name(REMOVED_STORE_PREFIX);
        stores.rename(&name, &gone).step("remove", path.display())?;
        remove_entry(stores, gone.as_bytes(), ClosedDirs::Open).step("remove", path.display())?;
    }
    Ok(removed)
}

/// How many checkouts of a store were removed, and how many are left.
fn thin_out(
    store: &Path,
    viewed: &BTreeSet<PathBuf>,
    unused: Duration,
) -> FaultResult<(usize, usize)> {
    let dir = open_tree(store)?;
    let (mut gone, mut left) = (0, 0);
    for name in list_names(&dir).step("list", store.display())? {
        let Some(name) = std::str::from_utf8(&name).ok().filter(|name| is_checkout(name)) else {
            continue;
        };
        let checkout = store.join(name);
        if viewed.contains(&checkout) || asked_for(&checkout) < unused {
            left += 1;
            continue;
        }
        let draft = draft_name(CHECKOUT_DRAFT_PREFIX);
        rustix::fs::renameat(&dir, name, &dir, draft.as_str())
            .step("remove", checkout.display())?;
        remove_entry(&dir, draft.as_bytes(), ClosedDirs::Open)
            .step("remove", checkout.display())?;
        let _ = std::fs::remove_file(used_stamp_path(&checkout));
        gone += 1;
    }
    Ok((gone, left))
}

fn is_checkout(name: &str) -> bool {
    name != "store" && !name.starts_with('.') && !name.ends_with(USED_STAMP_SUFFIX)
}

/// How long ago. What cannot be told was just now.
fn asked_for(checkout: &Path) -> Duration {
    let noted =
        used_stamp_path(checkout).symlink_metadata().or_else(|_| checkout.symlink_metadata());
    let modified = noted.and_then(|noted| noted.modified()).ok();
    modified.and_then(|at| at.elapsed().ok()).unwrap_or_default()
}
