//! The verb `report`: everything the probe can see of its surroundings, as one JSON object. What
//! cannot be found out is null, never a guess.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{
    Resource, getegid, geteuid, getgid, getgroups, getpid, getppid, getrlimit, getuid,
};
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use crate::{VerbOutcome, process, report_success};

/// Descriptors below this number are looked for.
const DESCRIPTOR_SCAN_LIMIT: u32 = 4096;

/// Everything that can be seen.
pub fn report_surroundings() -> VerbOutcome {
    report_success(json!({
        "ids": read_user_ids(),
        "pid": getpid().as_raw_nonzero().get(),
        "parent": getppid().map_or(0, |pid| pid.as_raw_nonzero().get()),
        "hostname": rustix::system::uname().nodename().to_string_lossy(),
        "namespaces": read_links("/proc/self/ns"),
        "mounts": read_mount_table(),
        "capabilities": read_capabilities(),
        "noNewPrivs": rustix::thread::no_new_privs().ok().map(|on| if on { "1" } else { "0" }),
        "seccomp": read_seccomp_mode(),
        "limits": read_rlimits(),
        "environment": read_environment(),
        "descriptors": list_descriptors(),
        "directory": std::env::current_dir().ok(),
        "pids": process::list_pids(),
        "interfaces": list_interfaces(),
        "arguments": std::env::args().collect::<Vec<_>>(),
    }))
}

fn read_user_ids() -> Value {
    let groups: Option<Vec<u32>> =
        getgroups().ok().map(|groups| groups.iter().map(|group| group.as_raw()).collect());
    json!({
        "uid": getuid().as_raw(),
        "euid": geteuid().as_raw(),
        "gid": getgid().as_raw(),
        "egid": getegid().as_raw(),
        "groups": groups,
    })
}

/// A directory of links: each name with what it points to.
fn read_links(directory: &str) -> Option<BTreeMap<String, String>> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let link = |entry: fs::DirEntry| {
        // The descriptor that lists the directory is gone by now, and so is not told.
        let target = fs::read_link(entry.path()).ok()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((name, target.to_string_lossy().into_owned()))
    };
    let collected: Vec<_> = entries.collect();
    Some(collected.into_iter().filter_map(link).collect())
}

fn read_mount_table() -> Option<Vec<Value>> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = |line: &str| {
        let (front, back) = line.split_once(" - ")?;
        let front: Vec<&str> = front.split(' ').collect();
        let kind = back.split(' ').next()?;
        let (root, at, options) = (front.get(3)?, front.get(4)?, front.get(5)?);
        Some(json!({ "at": at, "root": root, "type": kind, "options": options }))
    };
    Some(table.lines().filter_map(mount).collect())
}

fn read_seccomp_mode() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    line.map(|value| value.trim().to_owned())
}

/// Each set as the kernel prints them; asked for directly, since `/proc` need not be there.
fn read_capabilities() -> BTreeMap<&'static str, Option<String>> {
    let sets = rustix::thread::capabilities(None).ok();
    let of = |set: Option<CapabilitySet>| set.map(|set| format!("{:016x}", set.bits()));
    let each = |has: fn(CapabilitySet) -> rustix::io::Result<bool>| {
        let bits = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
        // The kernel knows no capability of a higher number than the first it refuses.
        let known = bits.map_while(|bit| has(bit).ok().map(|has| (bit, has)));
        let held =
            known.filter(|(_, has)| *has).fold(CapabilitySet::empty(), |all, (bit, _)| all | bit);
        of(Some(held))
    };
    BTreeMap::from([
        ("inheritable", of(sets.map(|sets| sets.inheritable))),
        ("permitted", of(sets.map(|sets| sets.permitted))),
        ("effective", of(sets.map(|sets| sets.effective))),
        ("bounding", each(rustix::thread::capability_is_in_bounding_set)),
        ("ambient", each(rustix::thread::capability_is_in_ambient_set)),
    ])
}

/// What is open, each number with what it leads to. By trying: the list need not be readable.
fn list_descriptors() -> BTreeMap<String, String> {
    let link = |number: u32| {
        let target = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some((number.to_string(), target.to_string_lossy().into_owned()))
    };
    (0..DESCRIPTOR_SCAN_LIMIT).filter_map(link).collect()
}

fn read_rlimits() -> BTreeMap<&'static str, Value> {
    let resources = [
        ("cpu", Resource::Cpu),
        ("fileSize", Resource::Fsize),
        ("core", Resource::Core),
        ("openFiles", Resource::Nofile),
        ("processes", Resource::Nproc),
        ("addressSpace", Resource::As),
    ];
    let told = |resource| {
        let limit = getrlimit(resource);
        json!({ "soft": limit.current, "hard": limit.maximum })
    };
    resources.into_iter().map(|(name, resource)| (name, told(resource))).collect()
}

fn read_environment() -> BTreeMap<String, String> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

fn list_interfaces() -> Option<Vec<Value>> {
    let table = fs::read_to_string("/proc/self/net/dev").ok()?;
    let names = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    let told = |name: &str| json!({ "name": name, "addresses": list_ipv6_addresses(name) });
    Some(names.map(|(name, _)| told(name.trim())).collect())
}

/// The IPv6 addresses of an interface; the kernel's tables do not tell the IPv4 ones by interface.
fn list_ipv6_addresses(interface: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/net/if_inet6").unwrap_or_default();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.last() == Some(&interface)).then(|| fields[0].to_owned())
    };
    table.lines().filter_map(of).collect()
}
