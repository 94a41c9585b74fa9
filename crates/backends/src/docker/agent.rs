//! The agent as a file that an engine can mount: written once, in the place of this user's private files,
//! and checked before each use.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use stockade_core::{Error, ErrorCode, Result};
use stockade_fs::{Survives, draft_name, write_atomically};

use super::NAME;
use crate::linux::{embed, private_dirs};

/// The agent's path inside a container.
pub(super) const AGENT_PATH: &str = "/.stockade-agent";
/// The agent's file mode: executable by every user, writable by none.
const AGENT_FILE_MODE: u32 = 0o555;

/// Where it lies on the host.
pub(super) fn ensure_host_agent() -> Result<PathBuf> {
    private_dirs::ensure_base_dir().and_then(|base| ensure_agent_file(&base)).map_err(|error| {
        Error::new(ErrorCode::System, "create", "the agent's file cannot be written for the engine")
            .backend(NAME)
            .remedy(private_dirs::PRIVATE_DIR_REMEDY)
            .source(error)
    })
}

fn ensure_agent_file(directory: &Path) -> io::Result<PathBuf> {
    let bytes = embed::agent_bytes();
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let file = directory.join(format!("agent-{}", &hash[..16]));
    if !is_agent_file(&file, bytes) {
        // Also where another process writes the same one.
        let draft = draft_name("agent");
        write_atomically(&file, &draft, bytes, AGENT_FILE_MODE, Survives::Power)?;
    }
    Ok(file)
}

/// Whether the file has these very bytes, every user may run it, and only this user could have written it.
fn is_agent_file(file: &Path, bytes: &[u8]) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let fits = fs::symlink_metadata(file).is_ok_and(|found| {
        let ours = found.is_file() && found.uid() == own && found.mode() & 0o777 == AGENT_FILE_MODE;
        ours && found.len() == bytes.len() as u64
    });
    fits && fs::read(file).is_ok_and(|found| found == bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_agent_that_not_everybody_may_run_or_that_was_changed_is_laid_anew() {
        let place = tempfile::tempdir().unwrap();
        let file = ensure_agent_file(place.path()).unwrap();
        assert!(is_agent_file(&file, embed::agent_bytes()));
        fs::set_permissions(&file, Permissions::from_mode(0o500)).unwrap();
        assert!(!is_agent_file(&file, embed::agent_bytes()));
        assert_eq!(ensure_agent_file(place.path()).unwrap(), file);
        fs::remove_file(&file).unwrap();
        fs::write(&file, "another").unwrap();
        assert_eq!(ensure_agent_file(place.path()).unwrap(), file);
        assert!(is_agent_file(&file, embed::agent_bytes()));
    }
}
