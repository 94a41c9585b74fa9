//! `stockade image`: the images of this user, from registries and archives, for `--image NAME`.
//!
//! Decides nothing about images: what is fetched, refused and kept is for the library of images to say.

mod build;
mod commit;
mod export;
mod import;
mod inspect;
mod ls;
mod prune;
mod pull;
mod push;
mod rm;
mod starter;
mod tag;
mod view;

use clap::{Args, Subcommand};
use stockade::images::{Images, Platform};
use stockade_core::{Error, ErrorCode, Result};

use crate::config::Settings;
use crate::terminal::interrupts::{self, Interrupts};
use crate::terminal::printer::Printer;

const IMAGE_OPERATION: &str = "image";

/// What to do with images.
#[derive(Debug, Args)]
pub struct ImageArgs {
    #[command(subcommand)]
    verb: ImageVerb,
}

#[derive(Debug, Subcommand)]
enum ImageVerb {
    /// Pull images from their registries, and print their digests.
    Pull(pull::PullArgs),
    /// Push an image to its registry, or to another, and print its digest.
    Push(push::PushArgs),
    /// Give an image one more name.
    Tag(tag::TagArgs),
    /// List stored images.
    Ls(ls::ImageLsArgs),
    /// Remove images. What a sandbox uses is refused.
    Rm(rm::ImageRmArgs),
    /// Show what is known of images: digests, layers, environment, user, working directory, entry point.
    Inspect(inspect::InspectArgs),
    /// Import an image from an OCI layout, and print its digest.
    Import(import::ImportArgs),
    /// Build an image from a Dockerfile, each RUN in a sandbox, and print its digest.
    Build(build::BuildArgs),
    /// Build a small image with Python, Node.js or neither by this host's package manager, and print its digest.
    Starter(starter::StarterArgs),
    /// Commit what a sandbox has changed in its root as a new image, and print its digest.
    Commit(commit::CommitArgs),
    /// Export an image as one file that `import`, Docker and Podman read.
    Export(export::ExportArgs),
    /// Remove images without a name, with --all every image that is not in use, and what pulls have left.
    Prune(prune::ImagePruneArgs),
}

/// Does what is asked; answers the exit code.
pub async fn image(args: ImageArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let images = Images::new(&settings)?;
    match args.verb {
        ImageVerb::Pull(args) => pull::pull(args, images, printer).await,
        ImageVerb::Push(args) => push::push(args, images, printer).await,
        ImageVerb::Tag(args) => tag::tag(&args, &images, printer),
        ImageVerb::Build(args) => build::build(args, images, &settings, printer).await,
        ImageVerb::Starter(args) => starter::starter(args, images, printer).await,
        ImageVerb::Commit(args) => commit::commit(args, images, &settings, printer).await,
        ImageVerb::Ls(args) => ls::ls(&args, &images, printer),
        ImageVerb::Rm(args) => rm::rm(&args, &images, printer),
        ImageVerb::Inspect(args) => inspect::inspect(&args, &images, printer),
        ImageVerb::Import(args) => import::import(args, images, printer).await,
        ImageVerb::Export(args) => export::export(args, images, printer).await,
        ImageVerb::Prune(args) => prune::prune(args, images, printer).await,
    }
}

/// Does something that unpacks, and ends it at the first signal; answers the exit code.
async fn unless_interrupted(
    images: &Images,
    work: impl Future<Output = Result<()>>,
) -> Result<i32> {
    let mut interrupts = Interrupts::listen()?;
    let done = interrupts.unless(work).await;
    images.close().await?;
    match done {
        Ok(done) => done.map(|()| 0),
        Err(signal) => Ok(interrupts::exit_code(signal)),
    }
}

/// Work on files that may take a while.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let message = "the work on the image was cut off";
        Err(Error::new(ErrorCode::System, IMAGE_OPERATION, message).source(error))
    })
}

fn parse_platform(given: &str) -> Result<Platform, String> {
    given.parse().map_err(|_| "is no platform such as `linux/arm64`".to_owned())
}
