//! The runtime's own description of a sandbox: an OCI `config.json`. Holds nothing of a command, and
//! so no secret.

use std::io::Write;
use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Linux, LinuxBuilder, LinuxCapabilities, LinuxIdMapping, LinuxIdMappingBuilder,
    LinuxNamespaceBuilder, LinuxNamespaceType, Mount, MountBuilder, PosixRlimit,
    PosixRlimitBuilder, PosixRlimitType, Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder,
    UserBuilder,
};
use stockade_core::{SandboxId, User};
use stockade_launcher::{Made, Rlimits};

use super::bundle::AGENT_PATH;
use super::plan::{Bind, BundlePlan, TmpfsMount};
use crate::linux::private_dirs;

type Result<T> = std::result::Result<T, OciSpecError>;

/// Writes it into the bundle.
pub(super) fn write_config(
    bundle: &Path,
    root: &Path,
    id: &SandboxId,
    plan: &BundlePlan,
    rlimits: &Rlimits,
) -> Result<()> {
    let spec = serde_json::to_vec(&build_spec(root, id, plan, rlimits)?)?;
    // Other users can pass through the bundle: none may change what the runtime is about to read.
    let mut file = private_dirs::create_file(&bundle.join("config.json"))?;
    file.write_all(&spec)?;
    Ok(())
}

fn build_spec(root: &Path, id: &SandboxId, plan: &BundlePlan, rlimits: &Rlimits) -> Result<Spec> {
    SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path(root).readonly(true).build()?)
        .hostname(id.as_str())
        .process(build_process(id, plan, rlimits)?)
        .mounts(build_mounts(plan)?)
        .linux(build_linux(plan)?)
        .build()
}

fn build_process(id: &SandboxId, plan: &BundlePlan, rlimits: &Rlimits) -> Result<Process> {
    let User { uid, gid } = plan.user;
    let none = || std::collections::HashSet::new();
    let mut capabilities = LinuxCapabilities::default();
    capabilities.set_bounding(Some(none()));
    capabilities.set_effective(Some(none()));
    capabilities.set_inheritable(Some(none()));
    capabilities.set_permitted(Some(none()));
    capabilities.set_ambient(Some(none()));
    ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(uid).gid(gid).build()?)
        .args(
            [AGENT_PATH, "--apart", "0,1", plan.workspace_dir.as_str(), id.as_str()]
                .map(String::from),
        )
        .env(Vec::new())
        .cwd("/")
        .capabilities(capabilities)
        .rlimits(build_rlimits(rlimits)?)
        .no_new_privileges(true)
        .build()
}

fn build_rlimits(limits: &Rlimits) -> Result<Vec<PosixRlimit>> {
    let all = [
        (PosixRlimitType::RlimitNofile, limits.nofile),
        (PosixRlimitType::RlimitNproc, limits.nproc),
        (PosixRlimitType::RlimitFsize, limits.fsize),
        (PosixRlimitType::RlimitData, limits.data),
        (PosixRlimitType::RlimitCore, Some(0)),
    ];
    let given = all.into_iter().filter_map(|(kind, most)| Some((kind, most?)));
    given
        .map(|(kind, most)| PosixRlimitBuilder::default().typ(kind).soft(most).hard(most).build())
        .collect()
}

fn build_mounts(plan: &BundlePlan) -> Result<Vec<Mount>> {
    let mut all = vec![
        build_special_mount("/proc", "proc", &["nosuid", "noexec", "nodev"])?,
        build_special_mount("/dev", "tmpfs", &["nosuid"])?,
        build_special_mount("/dev/pts", "devpts", &["nosuid", "noexec"])?,
        build_special_mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"])?,
    ];
    for piece in &plan.pieces {
        if let Made::Mount(source) = &piece.made {
            let (source, target) = (source.clone(), piece.target.clone());
            all.push(build_bind_mount(&Bind { source, target, read_only: true })?);
        }
    }
    for place in &plan.places {
        all.push(build_tmpfs_mount(place, plan.user)?);
    }
    for shown in &plan.binds {
        all.push(build_bind_mount(shown)?);
    }
    Ok(all)
}

fn build_special_mount(target: &str, kind: &str, options: &[&str]) -> Result<Mount> {
    build_mount(
        Path::new(target),
        kind,
        PathBuf::from(kind),
        options.iter().map(|o| (*o).to_owned()),
    )
}

fn build_bind_mount(bind: &Bind) -> Result<Mount> {
    let access = if bind.read_only { "ro" } else { "rw" };
    // What is mounted below it on the host stays there: it could be writable.
    let options = ["bind", "nosuid", "nodev", access].map(String::from);
    build_mount(&bind.target, "bind", bind.source.clone(), options)
}

fn build_tmpfs_mount(place: &TmpfsMount, user: User) -> Result<Mount> {
    // Root's where everybody may write, as anywhere else.
    let User { uid, gid } = if place.mode & 0o002 == 0 { user } else { User { uid: 0, gid: 0 } };
    let options = [
        "nosuid".to_owned(),
        "nodev".to_owned(),
        format!("mode={:o}", place.mode),
        format!("size={}", place.bytes),
        format!("uid={uid}"),
        format!("gid={gid}"),
        if place.read_only { "ro" } else { "rw" }.to_owned(),
    ];
    build_mount(&place.target, "tmpfs", PathBuf::from("tmpfs"), options)
}

fn build_mount(
    target: &Path,
    kind: &str,
    source: PathBuf,
    options: impl IntoIterator<Item = String>,
) -> Result<Mount> {
    let options: Vec<String> = options.into_iter().collect();
    MountBuilder::default().destination(target).typ(kind).source(source).options(options).build()
}

fn build_linux(plan: &BundlePlan) -> Result<Linux> {
    let mut kinds = vec![
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Network,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
        LinuxNamespaceType::Mount,
    ];
    let mut linux = LinuxBuilder::default();
    if let Some(hosts) = &plan.hosts {
        kinds.push(LinuxNamespaceType::User);
        linux = linux
            .uid_mappings(build_id_mappings(hosts, |user| user.uid)?)
            .gid_mappings(build_id_mappings(hosts, |user| user.gid)?);
    }
    let namespace = |kind| LinuxNamespaceBuilder::default().typ(kind).build();
    linux.namespaces(kinds.into_iter().map(namespace).collect::<Result<Vec<_>>>()?).build()
}

fn build_id_mappings(hosts: &[(User, User)], id: fn(&User) -> u32) -> Result<Vec<LinuxIdMapping>> {
    let mut pairs: Vec<_> =
        hosts.iter().map(|(inside, outside)| (id(inside), id(outside))).collect();
    pairs.dedup();
    let line = |(inside, outside): (u32, u32)| {
        LinuxIdMappingBuilder::default().container_id(inside).host_id(outside).size(1_u32).build()
    };
    pairs.into_iter().map(line).collect()
}
