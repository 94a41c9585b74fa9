//! `stockade image tag`: gives a stored image one more name.

use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images};
use stockade_core::Result;

use super::pull::parse_reference;
use super::view::ImageView;
use crate::terminal::printer::Printer;

/// Which image, and its name.
#[derive(Debug, Args)]
pub struct TagArgs {
    /// The image: its name, or the first digits of its digest.
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The new name, taken from the image that has it, if one does.
    #[arg(value_name = "NAME", value_parser = parse_reference)]
    name: ImageReference,
}

/// Gives it the name.
pub fn tag(args: &TagArgs, images: &Images, printer: &Printer) -> Result<i32> {
    let tagged = images.store()?.tag(&args.image, &args.name)?;
    if printer.is_json() {
        printer.json(&json!({ "image": ImageView::from(&tagged) }));
    }
    Ok(0)
}
