//! `stockade image push`: sends a stored image to a registry, byte for byte as it is stored.

use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images};
use stockade_core::{Error, Result};

use super::pull::parse_reference;
use super::unless_interrupted;
use super::view::ImageView;
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;

/// Which image, and where to.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The image: its name, or the first digits of its digest.
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Push to another repository: registry.example.org/team/tool:1. [default: the image's own name]
    #[arg(long, value_name = "NAME", value_parser = parse_reference)]
    to: Option<ImageReference>,
}

/// Pushes it.
pub async fn push(args: PushArgs, images: Images, printer: &Printer) -> Result<i32> {
    let PushArgs { image, to } = args;
    let work = async {
        let pushed = images.push(&image, to.as_ref(), &PullBar::of_push()).await?;
        if printer.is_json() {
            printer.json(&json!({ "image": ImageView::from(&pushed) }));
        } else {
            printer.data(&format!("{}\n", pushed.manifest));
        }
        Ok::<(), Error>(())
    };
    unless_interrupted(&images, work).await
}
