//! `stockade image import`: stores the image of an OCI layout, a directory or an archive of one.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images, Platform};
use stockade_core::{Error, Result};

use super::pull::parse_reference;
use super::view::ImageView;
use super::{parse_platform, unless_interrupted};
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;

/// What to import.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A directory with an OCI layout, or an archive of one.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The image's name. [default: the one in the layout]
    #[arg(value_name = "NAME", value_parser = parse_reference)]
    name: Option<ImageReference>,
    /// For another machine than this one.
    #[arg(long, value_name = "OS/ARCH", value_parser = parse_platform)]
    platform: Option<Platform>,
}

/// Imports it.
pub async fn import(args: ImportArgs, images: Images, printer: &Printer) -> Result<i32> {
    let ImportArgs { path, name, platform } = args;
    let work = async {
        let bar = PullBar::default();
        let image = images.import(&path, name.as_ref(), platform.as_ref(), &bar).await?;
        if printer.is_json() {
            printer.json(&json!({ "image": ImageView::from(&image) }));
        } else {
            printer.data(&format!("{}\n", image.manifest));
        }
        Ok::<(), Error>(())
    };
    unless_interrupted(&images, work).await
}
