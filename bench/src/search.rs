//! `grep` and `glob` as an agent calls them, in a sandbox, beside plain `rg` over the same tree.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use stockade_backends::native::Native;
use stockade_core::{HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig};
use stockade_tools::{Call, Toolbox, ToolboxOptions};

use crate::Measured;
use crate::report::BenchReport;
use crate::table::Row;

const DIRECTORY_COUNT: usize = 1000;
const FILES_EACH: usize = 100;
/// How many files the tree has.
pub const FILE_COUNT: usize = DIRECTORY_COUNT * FILES_EACH;
const ROUNDS: usize = 15;

/// Prints medians of both searches and their peers, taken in turns.
pub fn measure(report: &mut BenchReport) -> Measured {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    plant(&tree)?;
    report.title(format!(
        "search: {FILE_COUNT} files, the tools in a live native sandbox, rg on the host"
    ));
    let toolbox = runtime.block_on(toolbox(dir.path(), &tree))?;
    let measured = runtime.block_on(compare(report, &toolbox, &tree));
    runtime.block_on(toolbox.close());
    measured
}

/// A tree of source-like text in which one file in a thousand holds what is looked for.
pub fn plant(tree: &Path) -> std::io::Result<()> {
    let line = "let alpha = beta(gamma, delta); // return what was given\n";
    for number in 0..DIRECTORY_COUNT {
        let dir = tree.join(format!("d{}/e{}", number % 50, number / 50));
        fs::create_dir_all(&dir)?;
        for file in 0..FILES_EACH {
            let end = if (number * FILES_EACH + file) % 1000 == 7 { "needle_x\n" } else { "" };
            let kind = if file % 3 == 0 { "txt" } else { "rs" };
            let text = format!("{}{end}", line.repeat(10 + file % 20));
            fs::write(dir.join(format!("f{file}.{kind}")), text)?;
        }
    }
    Ok(())
}

async fn toolbox(dir: &Path, tree: &Path) -> Result<Toolbox, Box<dyn Error>> {
    let state = dir.join("state");
    let engine = Engine::open(EngineConfig::at(&state), vec![Arc::new(Native::new())]).await?;
    let workspace = Workspace::Local(HostPath::try_from(tree.to_owned())?);
    let mut options = ToolboxOptions::at(state);
    options.bound = Some(SandboxSpec { workspace, ..SandboxSpec::default() });
    Ok(Toolbox::new(Arc::new(engine), options))
}

async fn compare(report: &mut BenchReport, toolbox: &Toolbox, tree: &Path) -> Measured {
    let grep = json!({ "pattern": "needle_x" });
    let glob = json!({ "pattern": "**/*.rs", "limit": 20_000 });
    let mut rows = ["grep", "rg", "glob", "rg --files"].map(Row::new);
    // The first call carries the program in, and everybody finds the same warm cache.
    tool(toolbox, "grep", &grep).await?;
    for _ in 0..ROUNDS {
        rows[0].add(tool(toolbox, "grep", &grep).await?);
        rows[1].add(rg(tree, &["-n", "needle_x", "."])?);
        rows[2].add(tool(toolbox, "glob", &glob).await?);
        rows[3].add(rg(tree, &["--files", "-g", "*.rs", "."])?);
    }
    let (lines, names) = rows.split_at_mut(2);
    report.timings(lines);
    report.timings(names);
    Ok(())
}

async fn tool(
    toolbox: &Toolbox,
    name: &str,
    arguments: &Value,
) -> Result<std::time::Duration, Box<dyn Error>> {
    let start = Instant::now();
    toolbox.call(name, arguments.clone(), &Call::alone()).await?;
    Ok(start.elapsed())
}

fn rg(tree: &Path, words: &[&str]) -> Result<std::time::Duration, Box<dyn Error>> {
    let start = Instant::now();
    let mut rg = Command::new("rg");
    rg.args(words).current_dir(tree).stdin(Stdio::null()).stdout(Stdio::piped());
    let done = rg.output().map_err(|error| format!("rg: {error} (remedy: install ripgrep)"))?;
    match done.status.success() {
        true => Ok(start.elapsed()),
        false => Err("rg found nothing".into()),
    }
}
