//! `stockade image ls`: stored images, their sizes, and when each was last used.

use clap::Args;
use serde_json::json;
use stockade::images::Images;
use stockade_core::Result;

use super::view::ImageView;
use crate::commands::ps::format_age;
use crate::terminal::printer::Printer;
use crate::terminal::table::{Cell, Table};

/// What to list.
#[derive(Debug, Args)]
pub struct ImageLsArgs {
    /// Print digests only.
    #[arg(short, long)]
    quiet: bool,
}

/// Lists them.
pub fn ls(args: &ImageLsArgs, images: &Images, printer: &Printer) -> Result<i32> {
    let stored = images.store()?.list()?;
    let views: Vec<_> = stored.iter().map(ImageView::from).collect();
    if printer.is_json() {
        printer.json(&json!({ "images": views }));
    } else if args.quiet {
        let mut digests: Vec<_> = views.iter().map(|view| format!("{}\n", view.digest)).collect();
        // An image with two names is one image.
        digests.sort();
        digests.dedup();
        printer.data(&digests.concat());
    } else if views.is_empty() {
        printer.note("no images are stored; `stockade image pull NAME` fetches one");
    } else {
        printer.data(&build_table(&views).render(printer));
    }
    Ok(0)
}

fn build_table(views: &[ImageView]) -> Table<5> {
    let mut table = Table::new(["ID", "PLATFORM", "SIZE", "USED", "IMAGE"]);
    for view in views {
        let used = view.unused_seconds().map(|seconds| format!("{} ago", format_age(seconds)));
        table.row([
            Cell::plain(view.short_id()),
            Cell::plain(&view.platform),
            Cell::plain(view.size()),
            Cell::plain(used.unwrap_or_else(|| "never".to_owned())),
            Cell::plain(view.name.as_deref().unwrap_or("-")),
        ]);
    }
    table
}
