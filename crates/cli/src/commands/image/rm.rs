//! `stockade image rm`: removes names, and with the last one the image.

use clap::Args;
use stockade::images::{Images, Removed};
use stockade_core::Result;

use super::prune::print_removed;
use crate::terminal::printer::Printer;

/// Which images.
#[derive(Debug, Args)]
pub struct ImageRmArgs {
    /// The images: names, or the first digits of their digests, which remove every name.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
}

/// Removes them one after the other; the first that cannot be removed ends it.
pub fn rm(args: &ImageRmArgs, images: &Images, printer: &Printer) -> Result<i32> {
    let store = images.store()?;
    let mut all = Removed::default();
    for image in &args.images {
        let removed = store.remove(image)?;
        all.images.extend(removed.images);
        all.names.extend(removed.names);
        all.in_use.extend(removed.in_use);
        all.bytes = all.bytes.saturating_add(removed.bytes);
    }
    print_removed(&all, printer);
    Ok(0)
}
