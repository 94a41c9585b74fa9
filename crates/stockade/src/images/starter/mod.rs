//! Starter images: a small root from the host's own package manager, so that the first image needs no registry.
//!
//! The host's `mmdebstrap` or `debootstrap` makes the root, from the host's own sources and trusted as they are. What it
//! writes is an archive like any layer: unpacked behind walls, then published by its record and its name.

mod bootstrap;
mod process;

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use stockade_core::Result;
use stockade_images::{
    AssembledConfig, ImageConfig, ImageError, ImageReference, Platform, PullProgress, StoredImage,
    Unpack,
};

use self::bootstrap::BootstrapHost;
use super::Images;
use super::build::{BuildReport, DEFAULT_PATH};

const STARTER_OPERATION: &str = "starter";
/// The repository of starters that were given no name; the tag is the kind.
const STARTER_REPOSITORY: &str = "localhost/starter";
/// The variable by which reproducible builds are told their time.
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";
const SECONDS_PER_DAY: u64 = 86_400;

/// What a starter has beyond a shell and the usual small programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StarterKind {
    /// Python 3 with pip and venv.
    Python,
    /// Node.js.
    Node,
    /// Nothing.
    Base,
}

impl StarterKind {
    /// Every kind there is.
    pub const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Base];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Base => "base",
        }
    }

    /// The name of the image where none was given.
    pub fn default_reference(self) -> Result<ImageReference> {
        let name = format!("{STARTER_REPOSITORY}:{}", self.name());
        Ok(name.parse().map_err(ImageError::from)?)
    }

    /// Packages beyond the smallest set that the host's package manager knows.
    const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "python3-pip", "python3-venv", "ca-certificates"],
            Self::Node => &["nodejs", "ca-certificates"],
            Self::Base => &["ca-certificates"],
        }
    }

    const fn command(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Base => "bash",
        }
    }

    fn config(self) -> ImageConfig {
        ImageConfig {
            env: vec![format!("PATH={DEFAULT_PATH}"), "LANG=C.UTF-8".to_owned()],
            cmd: vec![self.command().to_owned()],
            ..ImageConfig::default()
        }
    }
}

impl FromStr for StarterKind {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == given);
        known.ok_or_else(|| "is none of python, node and base".to_owned())
    }
}

impl Images {
    /// Builds a starter with the host's package manager, and stores it under a name.
    ///
    /// - Dropped at any instant, it ends what it has started; [`Images::close`] returns when that is gone.
    /// - The same packages on the same day make the same image, as far as their installation is reproducible.
    pub async fn build_starter(
        &self,
        kind: StarterKind,
        name: &ImageReference,
        report: &dyn BuildReport,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        name.check_assignable().map_err(ImageError::from)?;
        let store = self.store()?;
        let _hold = store.hold().await?;
        let draft = store.draft_layer()?;
        let host = BootstrapHost::of_this_process();
        let command = host.plan(kind, draft.path(), choose_epoch())?;
        let packages = kind.packages().join(" ");
        report.step(&format!("[1/2] {}: {packages}", command.program));
        let running = self.inner.running.clone().read_owned().await;
        let (draft, packed) = process::make_layer(command, draft, running, report).await?;
        report.step(&format!("[2/2] {}", name.familiar()));
        let layer = store.add_draft_layer(&draft, &packed)?;
        drop(draft);
        let platform = Platform::default();
        let config = AssembledConfig { config: kind.config(), platform, created: None };
        let limits = &self.inner.options.limits;
        let work = (&self.inner.unpack as &dyn Unpack, progress);
        Ok(store.assemble(None, &[layer], &config, Some(name), limits, work).await?)
    }
}

/// The newest time of a file: what the caller's environment says, or the beginning of this day.
fn choose_epoch() -> u64 {
    let given = std::env::var(EPOCH_VARIABLE).ok().and_then(|given| given.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    given.unwrap_or(now - now % SECONDS_PER_DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_their_names() {
        for kind in StarterKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let name = kind.default_reference().unwrap().familiar();
            assert_eq!(name, format!("localhost/starter:{}", kind.name()));
        }
        assert!("ruby".parse::<StarterKind>().is_err());
    }
}
