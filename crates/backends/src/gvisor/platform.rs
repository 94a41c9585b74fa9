//! Which platform works on this host: found out by building a sandbox on each, with a time limit,
//! because some neither work nor fail. Remembered for as long as nothing it depends on changes.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stockade_core::{Error, ErrorCode, Result, SandboxSpec};
use stockade_fs::{Survives, draft_name, write_atomically};

use super::private::PRIVATE_DIRS;
use super::runsc::{Runsc, RunscPlatform};
use super::{GvisorWalls, NAME};
use crate::linux;
use crate::linux::host::TEARDOWN_TIMEOUT;
use crate::managed::try_out;

/// The file that caches the choice of a platform.
const PLATFORM_CACHE_FILE: &str = "gvisor.platform";

/// How long a trial may take: the last one there is gets the longest.
const fn trial_timeout(platform: RunscPlatform) -> Duration {
    match platform {
        RunscPlatform::Kvm | RunscPlatform::Systrap => Duration::from_secs(3),
        RunscPlatform::Ptrace => TEARDOWN_TIMEOUT,
    }
}

/// What a choice depends on.
pub(super) fn platform_fingerprint(runsc: &Runsc) -> Option<String> {
    Some(format!("{}\n{}", linux::host_fingerprint()?, runsc.version()?))
}

fn hash_fingerprint(runsc: &Runsc) -> Option<String> {
    let hash = Sha256::digest(platform_fingerprint(runsc)?.as_bytes());
    Some(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What was found to work before.
pub(super) fn load_platform(runsc: &Runsc) -> Option<RunscPlatform> {
    let text = fs::read_to_string(PRIVATE_DIRS.base().ok()?.join(PLATFORM_CACHE_FILE)).ok()?;
    let (told, name) = text.trim().split_once(' ')?;
    (told == hash_fingerprint(runsc)?).then(|| RunscPlatform::named(name)).flatten()
}

/// Keeps a choice, whole or not at all. Failing to is no harm: it is made again.
fn save_platform(runsc: &Runsc, platform: RunscPlatform) {
    let (Ok(base), Some(label)) = (PRIVATE_DIRS.base(), hash_fingerprint(runsc)) else {
        return;
    };
    let (path, text) = (base.join(PLATFORM_CACHE_FILE), format!("{label} {}\n", platform.name()));
    let draft = draft_name(PLATFORM_CACHE_FILE);
    let _ = write_atomically(&path, &draft, text.as_bytes(), 0o600, Survives::Process);
}

/// Forgets: what worked does not any more.
pub(super) fn forget_platform(runsc: &Runsc) {
    // What was found for another one is none of ours.
    if let (Ok(base), Some(_)) = (PRIVATE_DIRS.base(), load_platform(runsc)) {
        let _ = fs::remove_file(base.join(PLATFORM_CACHE_FILE));
    }
}

impl GvisorWalls {
    /// The first platform that works.
    pub(super) async fn choose_platform(self: &Arc<Self>, runsc: &Runsc) -> Result<RunscPlatform> {
        let mut failed = Vec::new();
        for platform in RunscPlatform::ALL {
            match self.try_platform(platform).await {
                Ok(()) => {
                    save_platform(runsc, platform);
                    return Ok(platform);
                }
                Err(error) => {
                    failed.push(format!("{}: {}", platform.name(), linux::describe_error(&error)))
                }
            }
        }
        let message = format!("no platform of runsc works here ({})", failed.join("; "));
        let remedy = "see docs/backends/gvisor.md, or choose another backend";
        Err(Error::new(ErrorCode::Unavailable, "create", message).backend(NAME).remedy(remedy))
    }

    /// Builds a throw-away sandbox, waits for its agent, and takes it down, also after a failure and even if
    /// the caller gives up.
    pub(super) async fn try_platform(self: &Arc<Self>, platform: RunscPlatform) -> Result<()> {
        let admitted = linux::admit_provisionally(NAME, &SandboxSpec::default())?;
        try_out(self, |walls, id| async move {
            let building = walls.build_sandbox(&id, &admitted, platform);
            let built = tokio::time::timeout(trial_timeout(platform), building).await;
            built.unwrap_or_else(|_| Err(platform_hangs(platform))).map(drop)
        })
        .await
    }
}

fn platform_hangs(platform: RunscPlatform) -> Error {
    let limit = trial_timeout(platform).as_secs();
    let message = format!("it did not answer within {limit} s");
    Error::new(ErrorCode::TooSlow, "create", message).backend(NAME)
}
