//! What `ssh` says when it cannot connect, as a reason and a remedy. Only its own failures are read like
//! this; how a command ended never is.

use std::process::ExitStatus;

use stockade_core::{Error, clean_foreign};

use super::host::Host;

/// Failures of `ssh`: the text it prints, what that means, and the remedy; the first that matches counts.
const KNOWN_FAILURES: [(&str, &str, &str); 12] = [
    (
        "IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known",
        "find out why; if it is the right host, remove the old key with `ssh-keygen -R`",
    ),
    (
        "ost key verification failed",
        "its host key is not known",
        "compare its fingerprint and connect once by hand: `ssh HOST`",
    ),
    (
        "host key is known for",
        "its host key is not known",
        "compare its fingerprint and connect once by hand: `ssh HOST`",
    ),
    (
        "Permission denied",
        "it refuses the login",
        "give it your key, or load it into the agent: `ssh -o BatchMode=yes HOST true` must work",
    ),
    (
        "Too many authentication failures",
        "it refuses the login",
        "name the key in ssh's configuration",
    ),
    (
        "Could not resolve hostname",
        "there is no host of that name",
        "correct its name, here or in ssh's configuration",
    ),
    (
        "Connection refused",
        "nothing listens on that port",
        "start its ssh server, or correct the port",
    ),
    ("timed out", "it does not answer", "see whether it is up and can be reached from here"),
    (
        "No route to host",
        "it cannot be reached",
        "see whether it is up and can be reached from here",
    ),
    ("Network is unreachable", "it cannot be reached", "see whether this machine has a network"),
    ("config file", "ssh's configuration cannot be read", "correct the file, or name another one"),
    ("onfiguration option", "ssh's configuration is wrong", "correct the option that ssh names"),
];

const DEFAULT_REMEDY: &str = "see what `ssh HOST true` says";

/// Why a connection did not come about, or ended.
pub(super) fn no_connection(
    host: &Host,
    operation: &'static str,
    status: Option<ExitStatus>,
    said: &str,
) -> Error {
    let known = KNOWN_FAILURES.iter().find(|(text, _, _)| said.contains(text));
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last = clean_foreign(last);
    let (reason, remedy) =
        known.map_or(("the connection failed", DEFAULT_REMEDY), |known| (known.1, known.2));
    let told = match (last.is_empty(), status) {
        (false, _) => format!("{reason} (ssh: {last})"),
        (true, Some(status)) => format!("{reason} (ssh: {status})"),
        (true, None) => reason.into(),
    };
    host.unavailable_error(operation, told).remedy(remedy.replace("HOST", &host.name))
}

/// `ssh` itself could not be started.
pub(super) fn no_ssh(host: &Host, operation: &'static str, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        return host
            .unavailable_error(operation, "ssh is not installed")
            .remedy("install openssh-client");
    }
    host.unavailable_error(operation, "ssh cannot be started").source(error)
}
