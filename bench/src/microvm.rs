//! The microvm backend: the first machine, copies of it, commands in one, and what a copy takes of memory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use stockade_backends::microvm::{Microvm, Options};
use stockade_core::{Backend, Command, SandboxSpec};
use stockade_engine::{Engine, EngineConfig};

use crate::Measured;
use crate::table::{Row, print};

const ROUNDS: usize = 20;
/// Commands in one sandbox for each that is made.
const EACH: usize = 5;
/// Copies that live at once.
const COPIES: usize = 20;

pub fn measure() -> Measured {
    let dir = tempfile::tempdir_in("/var/tmp")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(dir.path()))
}

async fn compare(dir: &Path) -> Measured {
    let root = dir.join("root");
    fs::create_dir_all(root.join("bin"))?;
    fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    symlink("busybox", root.join("bin/true"))?;
    let options = Options {
        root: Some(root),
        cache: Some(dir.join("store")),
        prepare: true,
        ..Options::default()
    };
    let backend: Arc<dyn Backend> = Arc::new(Microvm::new(options));
    let begun = Instant::now();
    if let Some((reason, _)) = backend.probe().await.unavailable {
        println!("microvm: skipped: {reason}");
        return Ok(());
    }
    println!("microvm: emulated, a root of one program; prepared in {:?}", begun.elapsed());
    let engine = Engine::open(EngineConfig::at(dir.join("state")), vec![backend]).await?;
    let spec = SandboxSpec { backend: "microvm".parse()?, ..SandboxSpec::default() };
    let mut rows = ["create", "second exec", "destroy"].map(Row::new);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let id = engine.create(spec.clone()).await?;
        rows[0].add(begun.elapsed());
        for _ in 0..EACH {
            let begun = Instant::now();
            engine.exec(&id, Command::program(["true"])).await?.outcome().await;
            rows[1].add(begun.elapsed());
        }
        let begun = Instant::now();
        engine.destroy(&id).await?;
        rows[2].add(begun.elapsed());
    }
    print(&mut rows);
    many(&engine, &spec).await
}

/// Copies that live at once, and what each has of its own.
async fn many(engine: &Engine, spec: &SandboxSpec) -> Measured {
    let begun = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..COPIES {
        ids.push(engine.create(spec.clone()).await?);
    }
    let took = begun.elapsed();
    let own: u64 = own_memory().iter().sum::<u64>() / COPIES as u64;
    println!("{COPIES} copies in {took:?}; each has {own} KiB of its own");
    for id in ids {
        engine.destroy(&id).await?;
    }
    Ok(())
}

/// The private memory of every emulator there is, in KiB.
fn own_memory() -> Vec<u64> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let told = entries.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let emulators = told.filter(|text| text.starts_with("Name:\tqemu-system"));
    let field = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    emulators.filter_map(field).collect()
}
