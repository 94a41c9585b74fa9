//! `stockade image starter`: a first image without a registry, made by the host's package manager.

use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images, StarterKind};
use stockade_core::{Error, Result};

use super::build::ShownBuild;
use super::pull::parse_reference;
use super::unless_interrupted;
use super::view::ImageView;
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;

/// What to build.
#[derive(Debug, Args)]
pub struct StarterArgs {
    /// What the image has: python, node, or base for a shell and small programs alone.
    #[arg(value_name = "python|node|base")]
    kind: StarterKind,
    /// The name of the image. [default: localhost/starter:python, :node or :base]
    #[arg(short, long, value_name = "NAME", value_parser = parse_reference)]
    tag: Option<ImageReference>,
}

/// Builds it, and prints the digest of the image.
pub async fn starter(args: StarterArgs, images: Images, printer: &Printer) -> Result<i32> {
    let name = match args.tag {
        Some(name) => name,
        None => args.kind.default_reference()?,
    };
    let work = async {
        let (shown, bar) = (ShownBuild, PullBar::default());
        let image = images.build_starter(args.kind, &name, &shown, &bar).await?;
        if printer.is_json() {
            printer.json(&json!({ "image": ImageView::from(&image) }));
        } else {
            printer.data(&format!("{}\n", image.manifest));
        }
        Ok::<(), Error>(())
    };
    unless_interrupted(&images, work).await
}
