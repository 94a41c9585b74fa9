//! What an agent does to a large tree: searching it beside plain `rg`, getting a copy-on-write view of
//! it, and asking what changed in one.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stockade_backends::native::Native;
use stockade_core::{HostPath, Layers, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig, JournalOptions};
use stockade_tools::{Call, Cancelled, Nobody, Toolbox, ToolboxOptions};
use stockade_workspaces::{Hint, Request, WorkspaceProvider, Workspaces};

use crate::Measured;
use crate::table::{Row, print};

const FILES: usize = 100_000;
const IN_ONE: usize = 100;
const ROUNDS: usize = 15;
/// One file in so many holds what is looked for.
const NEEDLES: usize = 1000;

pub fn measure() -> Measured {
    let dir = tempfile::tempdir()?;
    let tree = dir.path().join("tree");
    plant(&tree)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        searches(&dir.path().join("search"), &tree).await?;
        views(&dir.path().join("views"), &tree).await
    })
}

/// A tree like a large repository's: small files of text, a hundred to a directory.
fn plant(tree: &Path) -> Measured {
    for number in 0..FILES {
        let directory =
            tree.join(format!("d{}", number / IN_ONE / 40)).join(format!("{}", number / IN_ONE));
        if number % IN_ONE == 0 {
            fs::create_dir_all(&directory)?;
        }
        let needle = if number % NEEDLES == 0 { "the needle is here\n" } else { "" };
        let text = format!("line of file {number}\n").repeat(20);
        fs::write(directory.join(format!("file{number}.txt")), format!("{text}{needle}"))?;
    }
    Ok(())
}

async fn searches(state: &Path, tree: &Path) -> Measured {
    let engine = Engine::open(EngineConfig::at(state), vec![Arc::new(Native::new())]).await?;
    let workspace = Workspace::Local(HostPath::try_from(tree.to_owned())?);
    let bound = Some(SandboxSpec { workspace, ..SandboxSpec::default() });
    let options = ToolboxOptions { bound, ..ToolboxOptions::at(state) };
    let toolbox = Toolbox::new(Arc::new(engine), options);
    println!("searching {FILES} files, {ROUNDS} rounds, in turns");
    let grep = json!({ "pattern": "needle is", "limit": 5000 });
    compare(&toolbox, tree, "grep", grep, &["-n", "needle is"]).await?;
    let glob = json!({ "pattern": "**/*777.txt", "limit": 20_000 });
    compare(&toolbox, tree, "glob", glob, &["--files", "-g", "**/*777.txt"]).await?;
    toolbox.close().await;
    Ok(())
}

async fn compare(
    toolbox: &Toolbox,
    tree: &Path,
    tool: &'static str,
    arguments: Value,
    words: &[&str],
) -> Measured {
    let mut rows = [Row::new("rg"), Row::new(tool)];
    for round in 0..=ROUNDS {
        let peer = timed(|| rg(tree, words));
        let begun = Instant::now();
        let answer = toolbox.call(tool, arguments.clone(), &nobody()).await;
        answer.map_err(|error| error.to_string())?;
        let own = begun.elapsed();
        match peer {
            // The first round warms the caches and builds the sandbox.
            Ok(_) if round == 0 => {}
            Ok(peer) => {
                rows[0].add(peer);
                rows[1].add(own);
            }
            Err(error) => return absent(&error.to_string()),
        }
    }
    print(&mut rows);
    Ok(())
}

fn absent(why: &str) -> Measured {
    println!("not compared: rg: {why} (remedy: install ripgrep)");
    Ok(())
}

fn nobody() -> Call {
    Call { progress: Arc::new(Nobody), ask: Arc::new(Nobody), cancelled: Cancelled::never() }
}

fn rg(tree: &Path, words: &[&str]) -> Result<(), Box<dyn Error>> {
    let done = Process::new("rg").args(words).arg(".").current_dir(tree).stdout(Stdio::null());
    match done.status()?.success() {
        true => Ok(()),
        false => Err("it failed".into()),
    }
}

fn timed(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

async fn views(state: &Path, tree: &Path) -> Measured {
    let workspaces = Workspaces::open(state, JournalOptions::default())?;
    let mut acquired = Row::new("acquire");
    let mut diffs = [("diff of 1", 1), ("diff of 100", 100), ("diff of 10000", 10_000)]
        .map(|(name, changes)| (Row::new(name), changes));
    println!("copy-on-write views of the same tree, {ROUNDS} rounds");
    for _ in 0..ROUNDS {
        for (row, changes) in &mut diffs {
            let begun = Instant::now();
            let view = workspaces.acquire(Request::new(Hint::Overlay(tree.to_owned()))).await?;
            acquired.add(begun.elapsed());
            change(view.spec(), *changes)?;
            let begun = Instant::now();
            let found = workspaces.diff(&view.id)?.changes.len();
            row.add(begun.elapsed());
            if found < *changes {
                return Err(format!("{found} of {changes} changes were found").into());
            }
            workspaces.discard(&view.id)?;
        }
    }
    let [one, hundred, many] = diffs.map(|(row, _)| row);
    print(&mut [acquired, one, hundred, many]);
    Ok(())
}

/// Writes to the layer what a guest's changes would leave there.
fn change(workspace: Workspace, files: usize) -> Measured {
    let Workspace::Overlay(Layers { upper, .. }) = workspace else {
        return Err("the view has no layers".into());
    };
    for number in 0..files {
        fs::write(upper.as_path().join(format!("new{number}")), "new\n")?;
    }
    Ok(())
}
