//! What the landlock backend makes of commands and paths: its workspace keeps its own path, and the path by which
//! every other backend shows it means the same thing here.

use std::path::Path;

use stockade_core::{Command, EnvName, SandboxPath, WORKSPACE_ROOT};

use super::private::LandlockPrivate;

/// Places of its own, and the workspace by its usual path.
pub(super) fn settle_command(command: &Command, private: &LandlockPrivate) -> Command {
    let mut command = command.clone();
    let mut default = |name: &str, place: &Path| {
        if let (Ok(name), Some(place)) = (name.parse::<EnvName>(), place.to_str()) {
            command.env.entry(name).or_insert_with(|| place.into());
        }
    };
    default("HOME", &private.home());
    default("TMPDIR", &private.temporary());
    command.dir = command.dir.as_ref().map(from_workspace);
    command.user = None;
    command
}

/// The same path from the workspace on, if it leads there.
pub(super) fn from_workspace(path: &SandboxPath) -> SandboxPath {
    let inside = path.as_str().strip_prefix(WORKSPACE_ROOT);
    let relative = match inside.map(|rest| (rest.starts_with('/'), rest.trim_start_matches('/'))) {
        Some((_, "")) => ".",
        Some((true, rest)) => rest,
        // Another directory whose name begins alike, or another place altogether.
        Some((false, _)) | None => return path.clone(),
    };
    relative.parse().unwrap_or_else(|_| path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_path_of_the_workspace_leads_there() {
        for (given, meant) in [
            ("/workspace", "."),
            ("/workspace/", "."),
            ("/workspace/a/b", "a/b"),
            ("/workspaces", "/workspaces"),
            ("/etc", "/etc"),
            ("a", "a"),
        ] {
            assert_eq!(from_workspace(&given.parse().unwrap()).as_str(), meant);
        }
    }
}
