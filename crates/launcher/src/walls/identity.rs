//! The guest's identity: one user and one group, each mapped to one on the host. No other id exists inside,
//! so that no file can be given to, or taken from, another user.

use std::os::fd::BorrowedFd;

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{
    CapabilitiesSecureBits, set_capabilities_secure_bits, set_thread_res_gid, set_thread_res_uid,
};

use crate::base_namespaces::{Ground, write_file};
use crate::error::{At, Failure, Wall};
use crate::plan::LaunchPlan;

/// In the launcher: writes the maps of a child that is waiting for them.
pub(crate) fn write_id_maps(ground: &Ground, plan: &LaunchPlan, child: Pid) -> Result<(), Failure> {
    let pid = child.as_raw_nonzero();
    let uid = plan.host_uid.unwrap_or(ground.uid);
    let gid = plan.host_gid.unwrap_or(ground.gid);
    let write = |file: &str, text: String| {
        write_file(&format!("/proc/{pid}/{file}"), &text).at(Wall::Identity, file)
    };
    // Denied first: an unprivileged group map is accepted only where groups cannot be dropped.
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{} {gid} 1", plan.gid))?;
    write("uid_map", format!("{} {uid} 1", plan.uid))
}

/// In the child: waits until it is mapped, and becomes the user that the plan names.
pub(crate) fn become_mapped(go: BorrowedFd<'_>, plan: &LaunchPlan) -> Result<(), Failure> {
    wait_for_go(go).at(Wall::Identity, "waiting for the map")?;
    // Giving up one id for another would otherwise cost the capabilities that build the walls.
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)
        .at(Wall::Identity, "keeping capabilities")?;
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    set_thread_res_gid(gid, gid, gid).at(Wall::Identity, "the group")?;
    set_thread_res_uid(uid, uid, uid).at(Wall::Identity, "the user")
}

fn wait_for_go(go: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut counter = [0; 8];
    match rustix::io::read(go, &mut counter)? {
        8 => Ok(()),
        _ => Err(Errno::PIPE),
    }
}
