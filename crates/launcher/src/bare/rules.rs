//! What of the host the guest may open, and nothing else: its programs, a few devices, the workspace
//! and places of its own. Nothing of `/proc` but two files about the machine: whatever else is in it
//! tells of other processes.

use std::path::Path;

use rustix::io::Errno;

use super::plan::BarePlan;
use crate::error::{At, Failure, Wall};
use crate::open::{name, resolved};
use crate::template;
use crate::walls::landlock::{BOTH_TCP, Rules, place};

/// Files that describe the machine, which a guest finds out anyhow.
const MACHINE_INFO_FILES: [&str; 2] = ["/proc/cpuinfo", "/proc/meminfo"];

/// Puts the process under the rules of this plan.
pub(super) fn restrict(abi: u32, plan: &BarePlan) -> Result<(), Failure> {
    let rules = Rules::new(abi, BOTH_TCP)?;
    for path in template::readable().iter().map(String::as_str).chain(MACHINE_INFO_FILES) {
        if_there(path, |found| rules.read(found))?;
    }
    for path in template::devices() {
        if_there(&path, |found| rules.device(found))?;
    }
    let workspace = open_plan_directory(&plan.workspace)?;
    rules.read(&workspace).at(Wall::Workspace, &name(&plan.workspace))?;
    for path in &plan.readable {
        rules.read(open_plan_directory(path)?).at(Wall::Landlock, &name(path))?;
    }
    for path in plan.changeable() {
        rules.write(open_plan_directory(path)?).at(Wall::Landlock, &name(path))?;
    }
    rules.enforce()
}

/// Not every host has everything.
fn if_there(
    path: &str,
    allow: impl FnOnce(std::os::fd::OwnedFd) -> Result<(), Errno>,
) -> Result<(), Failure> {
    match place(path) {
        Ok(found) => allow(found).at(Wall::Landlock, path),
        Err(_) => Ok(()),
    }
}

/// A directory of the plan's own, through no symbolic link.
fn open_plan_directory(path: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    resolved(path).at(Wall::Source, &name(path))
}
