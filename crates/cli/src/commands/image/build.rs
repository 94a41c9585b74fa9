//! `stockade image build`: an image of a Dockerfile, each RUN in a sandbox.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use stockade::images::{BuildReport, BuildRequest, ImageReference, Images};
use stockade_core::{BackendChoice, BackendName, Error, Network, Result};

use super::pull::parse_reference;
use super::unless_interrupted;
use super::view::ImageView;
use crate::args::NetArg;
use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::Printer;
use crate::terminal::pull_bar::PullBar;
use crate::terminal::status_line;

const NATIVE: BackendName = BackendName::literal("native");

/// What to build.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The directory with the files that COPY and ADD copy.
    #[arg(value_name = "DIR")]
    context: PathBuf,
    /// The name of the image.
    #[arg(short, long, value_name = "NAME", value_parser = parse_reference)]
    tag: ImageReference,
    /// The Dockerfile. [default: DIR/Dockerfile]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The value of an ARG.
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = parse_build_arg)]
    build_args: Vec<(String, String)>,
    /// Build this stage and what it needs, instead of the last one.
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,
    /// What RUN may reach. [default: none]
    #[arg(long, value_name = "none|loopback|HOST[,HOST…]")]
    net: Option<NetArg>,
    /// The backend that RUN runs on. [default: native]
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendName>,
}

fn parse_build_arg(given: &str) -> Result<(String, String), String> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("is no NAME=VALUE".to_owned()),
    }
}

/// Shows what a build does: on standard error, because the digest is its result.
pub(super) struct ShownBuild;

impl BuildReport for ShownBuild {
    fn step(&self, line: &str) {
        write_line(line);
    }

    fn output(&self, line: &str) {
        write_line(line);
    }
}

/// A line that is clean already.
fn write_line(line: &str) {
    status_line::clear();
    // Nobody may be reading.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Builds it, and prints the digest of the image.
pub async fn build(
    args: BuildArgs,
    images: Images,
    settings: &Settings,
    printer: &Printer,
) -> Result<i32> {
    let backend = BackendChoice::Named(args.backend.unwrap_or(NATIVE));
    let engine = registry::engine(settings, &backend).await?;
    let request = BuildRequest {
        context: args.context,
        dockerfile: args.file,
        args: args.build_args.into_iter().collect::<BTreeMap<_, _>>(),
        target: args.target,
        network: args.net.map_or(Network::None, NetArg::into_policy),
        backend,
        name: args.tag,
    };
    let work = async {
        let (shown, bar) = (ShownBuild, PullBar::default());
        let image = images.build(&request, &engine, &shown, &bar).await?;
        if printer.is_json() {
            printer.json(&json!({ "image": ImageView::from(&image) }));
        } else {
            printer.data(&format!("{}\n", image.manifest));
        }
        Ok::<(), Error>(())
    };
    let done = unless_interrupted(&images, work).await;
    engine.close().await.and(done)
}
