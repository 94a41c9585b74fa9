//! Reads back what the engine was asked for, from outside: the kernel's own account of the first process.

use std::fs;

use stockade_core::{Error, ErrorCode, Result};

use super::NAME;
use super::socket::Engine;

/// Fails unless the process has no capability, can gain none, and its system calls are filtered. Of a
/// runtime with a kernel of its own the host sees that kernel's process, which is not the guest's.
pub(super) fn read_back(pid: i32, engine: &Engine) -> Result<()> {
    if engine.runtime.is_some() {
        return Ok(());
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let none = |set: Option<&str>| {
        set.and_then(|set| u64::from_str_radix(set, 16).ok()).is_some_and(|set| set == 0)
    };
    let walls = [
        ("no capabilities", none(field("CapEff:")) && none(field("CapPrm:"))),
        ("no capability to be gained", none(field("CapBnd:"))),
        ("no new privileges", field("NoNewPrivs:") == Some("1")),
        ("a filter of system calls", field("Seccomp:") == Some("2") || !engine.seccomp),
    ];
    match walls.into_iter().find(|(_, stands)| !stands) {
        None => Ok(()),
        Some((wall, _)) => Err(missing(wall)),
    }
}

fn missing(wall: &str) -> Error {
    let message = format!("the engine started a container without this wall: {wall}");
    Error::new(ErrorCode::WallMissing, "create", message)
        .backend(NAME)
        .remedy("see the engine's configuration, or choose another backend")
}
