//! `stockade cp`: files and directories into a sandbox or out of it.
//!
//! The guest may change its tree, and a workspace that both sides see, while it is copied. So on the
//! host nothing is reached but through handles, and no symbolic link is followed below what the
//! caller named; and what a guest says about its tree is checked before it becomes a name here.
//!
//! Symbolic links that lead to something else in what is copied stay links. Others are left out and told:
//! on the peer they would point somewhere else.

mod guest;
mod host;
mod inward;
mod outward;
mod paths;
mod programs;
mod summary;

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde_json::json;
use stockade_core::{Bytes, Error, ErrorCode, Result, SandboxId};

use crate::config::Settings;
use crate::daemon::sandbox_directory::SandboxDirectory;
use crate::terminal::printer::Printer;

use guest::GuestFiles;
use programs::CopyPrograms;
use summary::CopySummary;

const CP_OPERATION: &str = "cp";

/// What to copy and where to.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// What to copy: a path here, or ID:PATH in a sandbox.
    #[arg(value_name = "SRC")]
    source: CopyEnd,
    /// Where to: ID:PATH, or a path here. Into it, if it is a directory.
    #[arg(value_name = "DST")]
    target: CopyEnd,
    /// Stop if more than this would be copied out.
    #[arg(long, value_name = "SIZE", default_value = "4g")]
    max_size: Bytes,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CopyEnd {
    Here(PathBuf),
    /// In the workspace where the path is relative or empty.
    There(SandboxId, String),
}

impl FromStr for CopyEnd {
    type Err = String;

    /// `ID:PATH` has no slash before its colon, so `./a:b` is always a path here.
    fn from_str(given: &str) -> Result<Self, String> {
        match given.split_once(':') {
            Some((id, path)) if !id.contains('/') => {
                let id = id.parse().map_err(|error| {
                    format!("{error}; for a file here whose name has a colon say `./{given}`")
                })?;
                Ok(Self::There(id, if path.is_empty() { ".".into() } else { path.into() }))
            }
            Some(_) | None => Ok(Self::Here(given.into())),
        }
    }
}

/// Copies, and says what was left out.
pub async fn cp(args: &CpArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let place = SandboxDirectory::open(&settings)?;
    let summary = printer.patiently("copying", copy_tree(args, &place)).await?;
    show_copy_summary(&summary, printer);
    Ok(0)
}

async fn copy_tree(args: &CpArgs, place: &SandboxDirectory) -> Result<CopySummary> {
    match (&args.source, &args.target) {
        (CopyEnd::Here(source), CopyEnd::There(id, target)) => {
            let mut guest = GuestFiles::new(place.reach(id, CP_OPERATION).await?);
            let mut summary = inward::copy_inward(source, &mut guest, target).await?;
            make_links(&CopyPrograms { place, id }, &mut summary).await?;
            Ok(summary)
        }
        (CopyEnd::There(id, source), CopyEnd::Here(target)) => {
            let mut guest = GuestFiles::new(place.reach(id, CP_OPERATION).await?);
            outward::copy_outward(
                &mut guest,
                CopyPrograms { place, id },
                source,
                target,
                args.max_size,
            )
            .await
        }
        (CopyEnd::Here(_), CopyEnd::Here(_)) => Err(one_side("neither side names a sandbox")),
        (CopyEnd::There(..), CopyEnd::There(..)) => Err(one_side("both sides name a sandbox")),
    }
}

/// The file operations make no symbolic links, so a program of the sandbox does, when all that they may
/// lead to is there.
async fn make_links(programs: &CopyPrograms<'_>, summary: &mut CopySummary) -> Result<()> {
    let links = std::mem::take(&mut summary.links_due);
    for path in programs.make_links(&links).await? {
        summary.skip(path, "left out: the sandbox cannot make a symbolic link there");
    }
    Ok(())
}

fn one_side(message: &str) -> Error {
    Error::new(ErrorCode::Invalid, CP_OPERATION, message).remedy("write one side as ID:PATH")
}

fn show_copy_summary(summary: &CopySummary, printer: &Printer) {
    if printer.is_json() {
        return printer.json(&json!({
            "files": summary.files,
            "directories": summary.directories,
            "links": summary.links,
            "bytes": summary.bytes,
            "skipped": summary.skipped,
        }));
    }
    for skipped in &summary.skipped {
        printer.note(&format!("`{}`: {}", skipped.path.escape_debug(), skipped.why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_after_a_slash_belongs_to_a_path_here() {
        let id: SandboxId = "abc".parse().unwrap();
        for (given, expected) in [
            ("abc:/x:y", CopyEnd::There(id.clone(), "/x:y".into())),
            ("abc:", CopyEnd::There(id, ".".into())),
            ("./a:b", CopyEnd::Here("./a:b".into())),
            ("/a:b", CopyEnd::Here("/a:b".into())),
            ("plain", CopyEnd::Here("plain".into())),
        ] {
            assert_eq!(given.parse(), Ok(expected), "{given}");
        }
        assert!("Not-an-id:x".parse::<CopyEnd>().is_err());
    }
}
