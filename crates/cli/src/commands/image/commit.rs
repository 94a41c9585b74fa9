//! `stockade image commit`: what a sandbox has changed in its root, as an image.

use std::path::Path;

use async_trait::async_trait;
use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images, RootArchiver};
use stockade_core::{Error, ErrorCode, HostPath, Result, SandboxId, SandboxPath};

use super::pull::parse_reference;
use super::unless_interrupted;
use super::view::ImageView;
use crate::commands::fork::request_description;
use crate::config::Settings;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::message::{SandboxStateRequest, SupervisorReply, SupervisorRequest};
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::daemon::wire_error::out_of_turn;
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;

const COMMIT_OPERATION: &str = "commit";

/// What to commit.
#[derive(Debug, Args)]
pub struct CommitArgs {
    /// The sandbox, made with --image NAME and --writable-root.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// The name of the new image.
    #[arg(value_name = "NAME", value_parser = parse_reference)]
    name: ImageReference,
}

/// A sandbox, over its supervisor's socket.
struct SupervisedRoot(SupervisorConnection);

#[async_trait]
impl RootArchiver for SupervisedRoot {
    async fn archive_tree(&mut self, path: &SandboxPath, into: &Path, most: u64) -> Result<()> {
        let into = HostPath::try_from(into.to_owned()).map_err(|error| {
            Error::new(ErrorCode::Invalid, COMMIT_OPERATION, "the store has an unusable path")
                .source(error)
        })?;
        let request = SandboxStateRequest::Archive { path: path.clone(), into, most };
        match self.0.ask(&SupervisorRequest::State(request)).await? {
            (SupervisorReply::Done, _) => Ok(()),
            _ => Err(out_of_turn(COMMIT_OPERATION)),
        }
    }
}

/// Commits it, and prints the digest of the new image.
pub async fn commit(
    args: CommitArgs,
    images: Images,
    settings: &Settings,
    printer: &Printer,
) -> Result<i32> {
    let place = SandboxDirectory::open(settings)?;
    let sandbox = place.resolve(&args.sandbox, COMMIT_OPERATION)?;
    let mut connection = place.reach(&sandbox, COMMIT_OPERATION).await?;
    let work = async {
        let spec = request_description(&mut connection).await?.spec;
        let mut root = SupervisedRoot(connection);
        let bar = PullBar::default();
        let committing = images.commit(&spec, &mut root, &args.name, &bar);
        let image = printer.patiently("committing the sandbox", committing).await?;
        if printer.is_json() {
            printer.json(&json!({ "image": ImageView::from(&image) }));
        } else {
            printer.data(&format!("{}\n", image.manifest));
        }
        Ok::<(), Error>(())
    };
    unless_interrupted(&images, work).await
}
