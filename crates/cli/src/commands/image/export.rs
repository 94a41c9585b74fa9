//! `stockade image export`: one file with everything of an image.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use stockade::images::Images;
use stockade_core::Result;

use super::run_blocking;
use crate::terminal::printer::Printer;

/// What to export.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The image: its name, or the first digits of its digest.
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The file to write, which must not exist.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Writes the file.
pub async fn export(args: ExportArgs, images: Images, printer: &Printer) -> Result<i32> {
    let ExportArgs { image, output } = args;
    let (named, file) = (image.clone(), output.clone());
    let writing = run_blocking(move || Ok(images.store()?.export(&named, &file)?));
    printer.patiently("writing the image", writing).await?;
    if printer.is_json() {
        printer.json(&json!({ "image": image, "file": output }));
    }
    Ok(0)
}
