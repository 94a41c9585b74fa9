//! From an admitted spec to the container that is asked for. Everything that the engine would leave
//! open is said outright: what it does by default differs from one to the next.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType,
    ResourcesUlimits,
};
use stockade_core::{
    Admitted, Boundary, EffectiveLimits, Network, Result, SandboxId, SandboxSpec, TenantName, User,
    WORKSPACE_ROOT, Workspace,
};
use stockade_launcher::{PRIVATE_DIRECTORIES, Rlimits, SANDBOX_HOME, masked_proc_paths};

use super::images::DockerImage;
use super::socket::EngineHandle;
use super::{NAME, agent, inert};
use crate::linux::limits::{counted_inside, per_process, with_runtime};
use crate::linux::paths::{resolve_directory, resolve_path, unusable_path};
use crate::linux::{DEFAULT_USER, MAX_SCRATCH_BYTES, OWN_PROCESSES};

/// The user inside that a rootless engine's own user is mapped to.
const ROOTLESS_SELF: User = User { uid: 0, gid: 0 };
/// More processes than any user has, and no more than any engine may set.
const MANY_PROCESSES: u64 = 32_768;

/// The label with the sandbox's id.
pub(super) const SANDBOX_LABEL: &str = "stockade.sandbox";
/// The label with the host's user whose sandbox it is.
pub(super) const OWNER_LABEL: &str = "stockade.owner";
/// The label with the tenant.
const TENANT_LABEL: &str = "stockade.tenant";
/// The label with the engine's process.
const ENGINE_LABEL: &str = "stockade.engine";

/// What the container of a sandbox is called.
pub(super) fn container_name(id: &SandboxId) -> String {
    format!("stockade-{id}")
}

/// This user, as a label's value.
pub(super) fn owner_label() -> String {
    rustix::process::geteuid().as_raw().to_string()
}

pub(super) fn build_create_body(
    id: &SandboxId,
    admitted: &Admitted,
    engine: &EngineHandle,
    image: &DockerImage,
) -> Result<ContainerCreateBody> {
    let spec = admitted.spec();
    let user = choose_user(spec, engine)?;
    // Another kernel may leave orphans to its first process alone.
    let apart = engine.runtime.is_some().then_some("--apart");
    let mut host = host_config(admitted, engine, image, user)?;
    inert::cover_volumes(&mut host, &image.volumes)?;
    let agent =
        apart.into_iter().chain(["0,1", workspace_dir(spec), id.as_str()]).map(str::to_owned);
    Ok(ContainerCreateBody {
        hostname: Some(id.to_string()),
        user: Some(user.to_string()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(false),
        open_stdin: Some(true),
        // With its last reader and writer gone, the agent's input ends, and everything with it.
        stdin_once: Some(true),
        tty: Some(false),
        env: Some(Vec::new()),
        entrypoint: Some(vec![agent::AGENT_PATH.into()]),
        cmd: Some(agent.collect()),
        image: Some(image.id.clone()),
        // What the image says of these is not heard.
        healthcheck: Some(inert::no_health_check()),
        stop_signal: Some("SIGKILL".into()),
        // Some engines stop what they are told to remove, and wait this long before they kill it.
        stop_timeout: Some(0),
        working_dir: Some("/".into()),
        // Without a network of its own an engine writes no `resolv.conf`, and no client finds the name server.
        network_disabled: Some(!has_helper(spec)),
        labels: Some(build_labels(id, Some(&spec.tenant))),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

/// Where the agent's network helper answers name queries.
const NAME_SERVER: &str = "127.63.0.53";

pub(super) fn build_labels(id: &SandboxId, tenant: Option<&TenantName>) -> HashMap<String, String> {
    let label = |name: &str, value: String| (name.to_owned(), value);
    HashMap::from([
        label(SANDBOX_LABEL, id.to_string()),
        label(OWNER_LABEL, owner_label()),
        label(TENANT_LABEL, tenant.map(TenantName::to_string).unwrap_or_default()),
        label(ENGINE_LABEL, std::process::id().to_string()),
    ])
}

fn host_config(
    admitted: &Admitted,
    engine: &EngineHandle,
    image: &DockerImage,
    user: User,
) -> Result<HostConfig> {
    let (spec, limits) = (admitted.spec(), admitted.limits());
    // A kernel of its own counts the guest's processes; the host's count its threads.
    let own_kernel = admitted.boundary() != Boundary::SharedKernel;
    let (in_group, each) = match own_kernel {
        true => (with_runtime(limits), counted_inside(limits)),
        false => (*limits, per_process(limits)),
    };
    let memory = limits.memory.map(|memory| clamp_to_i64(memory.0));
    Ok(HostConfig {
        auto_remove: Some(true),
        network_mode: Some(network_mode(&spec.network).into()),
        sysctls: has_helper(spec).then(low_ports),
        dns: has_helper(spec).then(|| vec![NAME_SERVER.into()]),
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(build_security_options(engine)),
        masked_paths: Some(list_masked_paths()),
        privileged: Some(false),
        ipc_mode: Some("private".into()),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        runtime: engine.runtime.clone(),
        init: Some(false),
        memory: memory.filter(|_| engine.limits.memory),
        // Memory and swap together: without it the limit would only move the excess to the disk.
        memory_swap: memory.filter(|_| engine.limits.memory),
        pids_limit: in_group
            .processes
            .filter(|_| engine.limits.processes)
            .map(|most| clamp_to_i64(u64::from(most) + OWN_PROCESSES)),
        nano_cpus: limits
            .cpu_rate
            .filter(|_| engine.limits.cpu)
            .map(|rate| i64::from(rate.0) * 1_000_000),
        ulimits: Some(build_ulimits(&each)),
        mounts: Some(build_mounts(spec, image)?),
        tmpfs: Some(build_tmpfs_mounts(spec, limits, user, engine)),
        ..HostConfig::default()
    })
}

/// What is masked of the kernel's own trees: what engines mask by default, and what root alone may read, which a guest of
/// root's engine is.
fn list_masked_paths() -> Vec<String> {
    let own = ["/proc/interrupts", "/sys/firmware", "/sys/devices/virtual/powercap"];
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let throttles = processors.map(|processor| processor.path().join("thermal_throttle"));
    let throttles = throttles.filter(|path| path.is_dir()).map(|path| path.display().to_string());
    own.map(str::to_owned).into_iter().chain(masked_proc_paths()).chain(throttles).collect()
}

/// Podman masks by an option, in addition to what it masks by default.
fn build_security_options(engine: &EngineHandle) -> Vec<String> {
    let mask = engine.podman.then(|| format!("mask={}", list_masked_paths().join(":")));
    [Some("no-new-privileges".to_owned()), mask].into_iter().flatten().collect()
}

fn network_mode(network: &Network) -> &'static str {
    match network {
        // Loopback is there in any case, and its own; other hosts are reached by the agent's helper.
        Network::Auto | Network::None | Network::Loopback | Network::Egress(_) => "none",
    }
}

/// Whether the agent's network helper will run in it.
fn has_helper(spec: &SandboxSpec) -> bool {
    matches!(spec.network, Network::Egress(_))
}

/// Lets every process of the container's own network namespace listen at every port.
fn low_ports() -> HashMap<String, String> {
    HashMap::from([("net.ipv4.ip_unprivileged_port_start".into(), "0".into())])
}

fn build_ulimits(limits: &Rlimits) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, most: Option<u64>| {
        let most = clamp_to_i64(most?);
        Some(ResourcesUlimits { name: Some(name.into()), soft: Some(most), hard: Some(most) })
    };
    let set = [
        limit("nofile", limits.nofile),
        limit("fsize", limits.fsize),
        limit("data", limits.data),
        limit("core", Some(limits.core.unwrap_or(0))),
        // No limit of ours: some engines have a default of their own, which they may not be able to set.
        limit("nproc", Some(limits.nproc.unwrap_or(MANY_PROCESSES))),
    ];
    set.into_iter().flatten().collect()
}

fn clamp_to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Private writable places, each of its own size; in memory, and gone with the container.
fn build_tmpfs_mounts(
    spec: &SandboxSpec,
    limits: &EffectiveLimits,
    user: User,
    engine: &EngineHandle,
) -> HashMap<String, String> {
    let size = limits.disk.map_or(MAX_SCRATCH_BYTES, |disk| disk.0.min(MAX_SCRATCH_BYTES));
    let User { uid, gid } = user;
    let options = |mode: u32, owned: bool| {
        let (mode, owner) = match (owned, !engine.podman) {
            (true, true) => (mode, format!(",uid={uid},gid={gid}")),
            // Root's then, and open to the one user that there is.
            (true, false) => (0o1777, String::new()),
            (false, _) => (mode, String::new()),
        };
        format!("rw,exec,nosuid,nodev,size={size},mode={mode:o}{owner}")
    };
    let mut places: HashMap<_, _> = PRIVATE_DIRECTORIES
        .iter()
        .map(|(path, mode)| {
            ((*path).to_owned(), options(*mode, matches!(*path, SANDBOX_HOME | "/run")))
        })
        .collect();
    if spec.workspace == Workspace::Ephemeral {
        let mode = if spec.read_only { "ro" } else { "rw" };
        let made = options(0o755, true).replacen("rw", mode, 1);
        places.insert(WORKSPACE_ROOT.into(), made);
    }
    places
}

fn build_mounts(spec: &SandboxSpec, image: &DockerImage) -> Result<Vec<Mount>> {
    let mut mounts = vec![build_bind_mount(&agent::ensure_host_agent()?, agent::AGENT_PATH, true)?];
    for directory in &image.shown {
        mounts.push(build_bind_mount(directory, &directory.to_string_lossy(), true)?);
    }
    if let Workspace::Local(path) = &spec.workspace {
        let path = resolve_directory(&NAME, "workspace", path)?;
        for target in spec.workspace_paths() {
            mounts.push(build_bind_mount(&path, target, spec.read_only)?);
        }
    }
    for mount in spec.all_mounts_without_commits() {
        let source = resolve_path(&NAME, "mounts", &mount.source)?;
        mounts.push(build_bind_mount(&source, mount.target.as_str(), mount.read_only)?);
    }
    Ok(mounts)
}

/// Where the agent finds the workspace: one that is in memory has one place only.
fn workspace_dir(spec: &SandboxSpec) -> &str {
    match &spec.workspace {
        Workspace::Local(_) => spec.workspace_dir(),
        Workspace::Ephemeral | Workspace::Overlay(_) => WORKSPACE_ROOT,
    }
}

fn build_bind_mount(source: &Path, target: &str, read_only: bool) -> Result<Mount> {
    let text = source
        .to_str()
        .ok_or_else(|| unusable_path(&NAME, "mounts", source, "is not valid UTF-8"))?;
    Ok(Mount {
        target: Some(target.into()),
        source: Some(text.into()),
        typ: Some(MountType::BIND),
        read_only: Some(read_only),
        // What is mounted below it on the host stays there: it could be writable.
        bind_options: Some(MountBindOptions {
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    })
}

/// The user that everything in the sandbox runs as: the caller's choice, or the owner of its files. A
/// container has no way to show files as anybody else's.
pub(super) fn choose_user(spec: &SandboxSpec, engine: &EngineHandle) -> Result<User> {
    if let Some(chosen) = spec.user {
        return Ok(chosen);
    }
    if engine.rootless {
        return Ok(ROOTLESS_SELF);
    }
    match &spec.workspace {
        Workspace::Local(path) => {
            let path = resolve_path(&NAME, "workspace", path)?;
            let found = std::fs::metadata(&path).map_err(|error| {
                unusable_path(&NAME, "workspace", &path, "cannot be used").source(error)
            })?;
            Ok(User { uid: found.uid(), gid: found.gid() })
        }
        Workspace::Overlay(_) | Workspace::Ephemeral => Ok(DEFAULT_USER),
    }
}
