//! `stockade image inspect`: what is known of an image. Its config is a stranger's text: shown, never obeyed here.

use clap::Args;
use serde_json::json;
use stockade::images::Images;
use stockade_core::{Bytes, Result};

use super::view::{ConfigView, ImageDetails};
use crate::terminal::printer::Printer;
use crate::terminal::table::{Cell, Table};

/// Which image.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The images: names, or the first digits of their digests.
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
}

/// Shows them.
pub fn inspect(args: &InspectArgs, images: &Images, printer: &Printer) -> Result<i32> {
    let store = images.store()?;
    let mut details = Vec::new();
    for image in &args.images {
        details.push(ImageDetails::from(&store.inspect(image)?));
    }
    if printer.is_json() {
        printer.json(&json!({ "images": details }));
        return Ok(0);
    }
    let shown: Vec<_> = details.iter().map(|one| build_table(one).render(printer)).collect();
    printer.data(&shown.join("\n"));
    Ok(0)
}

fn build_table(details: &ImageDetails) -> Table<2> {
    let ImageDetails { image, config, all_layers, skipped_devices, .. } = details;
    let mut table = Table::new(["FIELD", "VALUE"]);
    let mut add = |name: &str, value: Vec<String>| {
        if !value.is_empty() {
            table.row([Cell::plain(name), Cell::lines(value)]);
        }
    };
    add("name", image.name.iter().cloned().collect());
    add("digest", vec![image.digest.clone()]);
    add("platform", vec![image.platform.clone()]);
    let compressed = Bytes(image.compressed_bytes).rounded();
    add("size", vec![format!("{}, {compressed} compressed", image.size())]);
    add("created", image.created.iter().cloned().collect());
    add("stored", vec![image.stored.to_string()]);
    add("last used", vec![image.last_used.map_or("never".to_owned(), |used| used.to_string())]);
    add_config(config, &mut add);
    let layer_size = |size| Bytes(size).rounded();
    let layers = all_layers.iter();
    add("layers", layers.map(|one| format!("{} {}", one.diff_id, layer_size(one.size))).collect());
    if *skipped_devices > 0 {
        add("left out", vec![format!("{skipped_devices} devices below /dev")]);
    }
    table
}

fn add_config(config: &ConfigView, add: &mut dyn FnMut(&str, Vec<String>)) {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let words = |words: &[String]| {
        let quoted = words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>();
        Some(quoted.join(" ")).filter(|line| !line.is_empty())
    };
    add("user", text(&config.user).into_iter().collect());
    add("workdir", text(&config.working_dir).into_iter().collect());
    add("entry point", words(&config.entrypoint).into_iter().collect());
    add("command", words(&config.cmd).into_iter().collect());
    add("environment", config.env.clone());
    add("ports", config.exposed_ports.clone());
    let labels = config.labels.iter();
    add("labels", labels.map(|(name, value)| format!("{name}={value}")).collect());
}
