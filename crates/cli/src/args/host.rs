//! `--host`: which daemon builds a sandbox, or which of the configured hosts it is built on. Checked here too, where
//! the error can name the flag and what would be right; the engine admits nothing that its backend does not have.

use stockade_backends::remote::{self, DaemonUrl};
use stockade_backends::ssh;
use stockade_core::{BackendChoice, Error, ErrorCode, Result, SandboxSpec};

use crate::config::Settings;

const HOST_FLAG: &str = "--host";

/// Whether a host is the URL of a daemon, and not the name of one for ssh.
pub fn is_daemon_url(host: &str) -> bool {
    host.contains("://")
}

/// Refuses a URL at which no daemon can be, one that comes from elsewhere than the flag, and one for another backend.
pub fn check_daemon(host: Option<&str>, spec: &SandboxSpec, settings: &Settings) -> Result<()> {
    let Some(url) = host.filter(|host| is_daemon_url(host)) else { return Ok(()) };
    url.parse::<DaemonUrl>().map_err(invalid_host_error)?;
    if settings.daemon_url().as_deref() != Some(url) {
        return Err(invalid_host_error("a daemon is not named by a profile")
            .remedy("use --host, STOCKADE_HOST, or `url` in the table [remote]"));
    }
    match &spec.backend {
        BackendChoice::Named(name) if *name == remote::NAME => Ok(()),
        BackendChoice::Named(_) | BackendChoice::Auto => {
            Err(invalid_host_error("a daemon is used by the backend `remote` alone")
                .remedy("leave --backend out, or name the daemon's own in the table [remote]"))
        }
    }
}

/// Refuses a host that is not configured, and one for a backend that has no hosts.
pub fn check_host(spec: &SandboxSpec, settings: &Settings) -> Result<()> {
    let Some(host) = &spec.host else { return Ok(()) };
    match &spec.backend {
        BackendChoice::Named(name) if *name == ssh::NAME => {}
        BackendChoice::Named(name) => {
            let message = format!("sandboxes of `{name}` are on this host alone");
            return Err(invalid_host_error(message).remedy("leave it out, or use --backend ssh"));
        }
        BackendChoice::Auto => {
            let message = "another host is used only by `--backend ssh`";
            return Err(invalid_host_error(message).remedy("add --backend ssh"));
        }
    }
    let known: Vec<String> = settings.hosts().into_iter().map(|host| host.name).collect();
    if known.contains(host) {
        return Ok(());
    }
    let message = format!("no host `{}` is configured", host.escape_debug());
    let remedy = match known.is_empty() {
        true => format!("add `[[ssh.hosts]]` with `name = {host:?}` to the configuration"),
        false => format!("choose one of: {}; or add it to `[[ssh.hosts]]`", known.join(", ")),
    };
    Err(Error::new(ErrorCode::NotFound, HOST_FLAG, message).remedy(remedy))
}

fn invalid_host_error(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, HOST_FLAG, message)
}
