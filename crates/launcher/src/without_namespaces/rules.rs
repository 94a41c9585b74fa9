//! What of the host the guest may open, and nothing else: its programs, a few devices, the workspace and
//! places of its own. Nothing of `/proc` but two files about the machine: the rest of it tells of other
//! processes.

use std::path::Path;

use rustix::io::Errno;

use super::plan::BarePlan;
use crate::error::{At, Failure, Wall};
use crate::open::{format_path, open_without_symlinks};
use crate::template;
use crate::walls::landlock::{BOTH_TCP, Rules, open_rule_path};

/// Files that describe the machine, which a guest finds out anyhow.
const MACHINE_INFO_FILES: [&str; 2] = ["/proc/cpuinfo", "/proc/meminfo"];

/// Puts the process under the rules of this plan.
pub(super) fn restrict_to_plan(abi: u32, plan: &BarePlan) -> Result<(), Failure> {
    let rules = Rules::new(abi, BOTH_TCP)?;
    for path in template::list_readable_paths().iter().map(String::as_str).chain(MACHINE_INFO_FILES)
    {
        if_there(path, |found| rules.read(found))?;
    }
    for path in template::list_device_paths() {
        if_there(&path, |found| rules.allow_device(found))?;
    }
    let workspace = open_plan_directory(&plan.workspace)?;
    rules.read(&workspace).at(Wall::Workspace, &format_path(&plan.workspace))?;
    for path in &plan.readable {
        rules.read(open_plan_directory(path)?).at(Wall::Landlock, &format_path(path))?;
    }
    for path in plan.changeable() {
        rules.write(open_plan_directory(path)?).at(Wall::Landlock, &format_path(path))?;
    }
    rules.enforce_rules()
}

/// Not every host has everything.
fn if_there(
    path: &str,
    allow: impl FnOnce(std::os::fd::OwnedFd) -> Result<(), Errno>,
) -> Result<(), Failure> {
    match open_rule_path(path) {
        Ok(found) => allow(found).at(Wall::Landlock, path),
        Err(_) => Ok(()),
    }
}

/// A directory of the plan's own, through no symbolic link.
fn open_plan_directory(path: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    open_without_symlinks(path).at(Wall::Source, &format_path(path))
}
