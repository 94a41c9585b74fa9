//! Stockade for Rust: runs untrusted commands inside walls that are chosen, measured and read back.
//!
//! # One command
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stockade::Result<()> {
//! let output = stockade::run("echo hi").await?;
//! assert_eq!(output.stdout_utf8(), "hi\n");
//! # Ok(())
//! # }
//! ```
//!
//! That is a whole sandbox: the strongest boundary that this host has, no network but the sandbox's own loopback, a clean
//! environment, an empty workspace, and every limit finite. When `run` returns nothing of it is left.
//!
//! # A sandbox that stays
//!
//! [`Sandbox::builder`] describes one, [`Sandbox::exec`] runs a program in it, and files go in and out. A limit that
//! cannot be enforced here is refused before anything is built, with the reason and the remedy.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stockade::Result<()> {
//! # let state = tempfile::tempdir().unwrap();
//! # let state = state.path().join("state");
//! use std::time::Duration;
//! use stockade::{Settings, Stockade};
//!
//! let stockade = Stockade::builder().settings(Settings::default()).state_dir(state).open().await?;
//! let sandbox = stockade
//!     .sandbox()
//!     .backend("native")
//!     .memory("256m")
//!     .wall_time(Duration::from_secs(20))
//!     .env("GREETING", "hello")
//!     .create()
//!     .await?;
//! sandbox.write_file("name.txt", "world").await?;
//! let output = sandbox.shell("echo $GREETING $(cat name.txt) | tee said.txt").output().await?;
//! assert_eq!(output.stdout_utf8(), "hello world\n");
//! assert_eq!(sandbox.read_file("said.txt").await?, b"hello world\n");
//! sandbox.destroy().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Sandbox::builder`] opens an engine for one sandbox. A program that builds more than one opens a [`Stockade`] once, as
//! above, and may keep its state apart from that of the command `stockade`. With [`Settings::default`] nothing of the
//! host's configuration is read.
//!
//! # How it ended
//!
//! A program that fails is no error: [`Output::outcome`] says how it ended, and every [`Ending`] comes from the
//! mechanism (a wait status, a counter, a timer), never from text. [`Error`] is for what Stockade could not do; it has a
//! stable [`ErrorCode`] and a [hint](Error::hint).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stockade::Result<()> {
//! # let state = tempfile::tempdir().unwrap();
//! # let state = state.path().join("state");
//! # use std::time::Duration;
//! # use stockade::{Settings, Stockade};
//! # let stockade = Stockade::builder().settings(Settings::default()).state_dir(state).open().await?;
//! use stockade::{Ending, ErrorCode, StartFailure};
//!
//! let sandbox = stockade.sandbox().backend("native").create().await?;
//! let slow = sandbox.exec(["sleep", "60"]).wall_time(Duration::from_millis(200)).output().await?;
//! assert_eq!(slow.outcome.ending, Ending::TimedOut);
//! let absent = sandbox.exec(["no-such-program"]).output().await?;
//! assert!(matches!(absent.outcome.ending, Ending::StartFailed(StartFailure::NotFound(_))));
//! sandbox.destroy().await?;
//!
//! let refused = stockade.sandbox().memory("a lot").create().await.unwrap_err();
//! assert_eq!(refused.code(), ErrorCode::Invalid);
//! # Ok(())
//! # }
//! ```
//!
//! # Output as it comes
//!
//! [`Exec::start`] returns a [`Running`] program. Its [events](OutputEvent) are read one by one; it can be given input
//! and signals, and it is killed when the value is dropped.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stockade::Result<()> {
//! # let state = tempfile::tempdir().unwrap();
//! # let state = state.path().join("state");
//! # use stockade::{Settings, Stockade};
//! # let stockade = Stockade::builder().settings(Settings::default()).state_dir(state).open().await?;
//! use stockade::{OutputEvent, StreamId};
//!
//! let sandbox = stockade.sandbox().backend("native").create().await?;
//! let mut running = sandbox.exec(["cat"]).stdin_stream().start().await?;
//! running.write_stdin("one line\n").await?;
//! running.close_stdin().await?;
//! let mut said = Vec::new();
//! while let Some(event) = running.next().await {
//!     match event {
//!         OutputEvent::Output { stream: StreamId::Stdout, data, .. } => said.extend_from_slice(&data),
//!         OutputEvent::Output { .. } | OutputEvent::Gap { .. } => {}
//!         OutputEvent::End(outcome) => assert!(outcome.success()),
//!     }
//! }
//! assert_eq!(said, b"one line\n");
//! # sandbox.destroy().await
//! # }
//! ```
//!
//! # Copies
//!
//! [`Sandbox::snapshot`] captures a state, [`SandboxBuilder::from_snapshot`] begins with it, and [`Sandbox::fork`] makes
//! several copies at once, each with a workspace of its own.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stockade::Result<()> {
//! # let state = tempfile::tempdir().unwrap();
//! # let state = state.path().join("state");
//! # use stockade::{Settings, Stockade};
//! # let stockade = Stockade::builder().settings(Settings::default()).state_dir(state).open().await?;
//! let base = stockade.sandbox().backend("native").create().await?;
//! base.write_file("seed", "7").await?;
//! for (n, copy) in base.fork(2).await?.into_iter().enumerate() {
//!     let line = format!("echo $(( $(cat seed) + {n} ))");
//!     assert_eq!(copy.shell(line).output().await?.stdout_utf8(), format!("{}\n", 7 + n));
//!     copy.destroy().await?;
//! }
//! # base.destroy().await
//! # }
//! ```
//!
//! # Backends
//!
//! A cargo feature for each: `native`, `docker`, `gvisor`, `landlock`, `microvm`, `remote`, `ssh` by default, `wasm` and `mock` (for
//! tests) beside them. [`Stockade::detect`] says what each can enforce on this host; [`registry`] lists them. A backend of
//! your own implements [`contract::Backend`] and is added with [`StockadeBuilder::backend`]; the crate `stockade-tck`
//! judges it by the cases that judge ours. `examples/own_backend.rs` is one.
//!
//! # Images
//!
//! [`SandboxBuilder::image`] with [`Image::Named`] takes an image of a registry on every backend that can have another
//! root: [`images`] pulls it, checks it, unpacks it in native walls and keeps it for the next one.
//!
//! # Below
//!
//! [`contract`] has every type and trait that front ends, engine and backends agree on, and [`engine`] the pipeline itself:
//! audit journal, leases, pools, selection. Both are used through [`Stockade::engine`].

mod builder;
pub mod config;
mod exec;
pub mod images;
pub mod pools;
pub mod registry;
mod sandbox;
mod stockade;

/// What a registry of backends is made of.
pub mod backend {
    pub use stockade_backends::factory::{
        BackendFactory, Build, BuildContext, Isolation, Progress, TableReader, WorkerProgram,
        read_table,
    };
}

pub use stockade_core as contract;
pub use stockade_engine as engine;

pub use stockade_core::{
    Backend, BackendChoice, BackendName, Boundary, Capabilities, Command, DeniedHost, Ending,
    Error, ErrorCode, Feature, HostPath, Image, LimitKind, Limits, Mount, Network, Outcome,
    Refusals, Result, SandboxId, SandboxPath, SandboxSpec, Signal, SnapshotId, SnapshotKind,
    StartFailure, Stdin, StreamId, Support, Usage, Workspace,
};
pub use stockade_engine::{
    Engine, EngineConfig, Output, OutputEvent, PortStream, SandboxRequest, Snapshot,
};

pub use builder::SandboxBuilder;
pub use config::Settings;
pub use exec::{Exec, Running};
pub use sandbox::Sandbox;
pub use stockade::{Stockade, StockadeBuilder};

/// Runs a line of shell in a sandbox of its own, with what is configured for the command `stockade`, and returns what it
/// wrote once nothing of the sandbox is left. Opens an engine for this one call: see [`Stockade::run`] for many.
pub async fn run(line: impl Into<String>) -> Result<Output> {
    Stockade::open().await?.run(line).await
}
