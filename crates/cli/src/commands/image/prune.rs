//! `stockade image prune`: makes room. What a sandbox uses, of whichever process, stays.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use stockade::images::{Images, PruneOptions, Removed};
use stockade_core::{Bytes, Result, Span};

use super::run_blocking;
use crate::terminal::printer::Printer;

/// Which images.
#[derive(Debug, Args)]
pub struct ImagePruneArgs {
    /// Images with a name too.
    #[arg(short, long)]
    all: bool,
    /// Only those that no sandbox has begun to use within this time.
    #[arg(long, value_name = "TIME")]
    unused: Option<Span>,
}

/// Removes them, and says what that was.
pub async fn prune(args: ImagePruneArgs, images: Images, printer: &Printer) -> Result<i32> {
    let options = PruneOptions { all: args.all, unused_for: args.unused.map(Duration::from) };
    let removing = run_blocking(move || Ok(images.store()?.prune(&options)?));
    let removed = printer.patiently("removing images", removing).await?;
    print_removed(&removed, printer);
    Ok(0)
}

/// Says what was removed and what stays.
pub(super) fn print_removed(removed: &Removed, printer: &Printer) {
    let Removed { images, names, in_use, bytes } = removed;
    if printer.is_json() {
        printer.json(&json!({
            "removed": images, "untagged": names, "inUse": in_use, "freedBytes": bytes,
        }));
        return;
    }
    let s = if images.len() == 1 { "" } else { "s" };
    let freed = Bytes(*bytes).rounded();
    printer.note(&format!("{} image{s} removed, {freed} of layers freed", images.len()));
    for name in names {
        printer.note(&format!("{name}: the name is removed, the image stays under another"));
    }
    for image in in_use {
        printer.note(&format!("{image} is in use by a sandbox and stays"));
    }
}
