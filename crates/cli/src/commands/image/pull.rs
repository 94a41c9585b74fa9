//! `stockade image pull`: stores images of registries, whether or not a sandbox needs them yet.

use clap::Args;
use serde_json::json;
use stockade::images::{ImageReference, Images, Platform, PullPolicy};
use stockade_core::{Error, Result};

use super::view::ImageView;
use super::{parse_platform, unless_interrupted};
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;

/// Which of them.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The images: python:3.12, registry.example.org/team/tool@sha256:…
    #[arg(value_name = "NAME", required = true, value_parser = parse_reference)]
    names: Vec<ImageReference>,
    /// For another machine than this one.
    #[arg(long, value_name = "OS/ARCH", value_parser = parse_platform)]
    platform: Option<Platform>,
}

/// What a registry may be asked for.
pub(super) fn parse_reference(given: &str) -> Result<ImageReference, String> {
    given.parse().map_err(|error| format!("{error}"))
}

/// Pulls them one after the other.
pub async fn pull(args: PullArgs, images: Images, printer: &Printer) -> Result<i32> {
    let work = async {
        let (bar, mut pulled) = (PullBar::default(), Vec::new());
        for name in &args.names {
            let policy = PullPolicy::Always;
            let image = images.pull(name, policy, args.platform.as_ref(), &bar).await?;
            if !printer.is_json() {
                printer.data(&format!("{}\n", image.manifest));
            }
            pulled.push(ImageView::from(&image));
        }
        if printer.is_json() {
            printer.json(&json!({ "images": pulled }));
        }
        Ok::<(), Error>(())
    };
    unless_interrupted(&images, work).await
}
