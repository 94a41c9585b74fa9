//! Files of local execution: the workspace and nothing else. Without walls the agent could open any
//! file of the user's, so an absolute path is taken only where it leads into the workspace.

use stockade_core::{Error, ErrorCode, HostPath, Result, SandboxPath, WORKSPACE_ROOT};

/// The path of local execution from its workspace on; one that leads elsewhere is refused by name.
pub fn inside(workspace: &HostPath, path: &SandboxPath) -> Result<SandboxPath> {
    path_beneath(&workspace.to_string(), path).ok_or_else(|| {
        let message = format!("`{path}` leaves the workspace");
        Error::new(ErrorCode::PathEscapes, "find a path", message)
            .remedy("local files are those of the workspace; give a path in it")
    })
}

fn path_beneath(root: &str, path: &SandboxPath) -> Option<SandboxPath> {
    if !path.is_absolute() {
        return Some(path.clone());
    }
    let below = |root: &str| {
        let rest = path.as_str().strip_prefix(root.trim_end_matches('/'))?;
        match rest.trim_start_matches('/') {
            "" => Some("."),
            inner if rest.starts_with('/') => Some(inner),
            // Another directory whose name begins alike.
            _ => None,
        }
    };
    // Parsed again from its new start: what led back above it is refused.
    below(root).or_else(|| below(WORKSPACE_ROOT))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_workspace_has_absolute_paths() {
        for (given, meant) in [
            ("a/b", Some("a/b")),
            ("/srv/work", Some(".")),
            ("/srv/work/a", Some("a")),
            ("/workspace/a", Some("a")),
            ("/srv/works/a", None),
            ("/etc/passwd", None),
            ("/srv/work/../x", None),
            ("/", None),
        ] {
            let found = path_beneath("/srv/work", &given.parse().unwrap());
            assert_eq!(found.as_ref().map(SandboxPath::as_str), meant, "{given}");
        }
    }
}
