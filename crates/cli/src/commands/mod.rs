//! One file or folder for each command, by the command's name. What several commands share is elsewhere:
//! flags in `args`, the supervisor of a lasting sandbox in `daemon`, workspaces in `workspace`, standard
//! streams in `terminal`.

pub mod audit;
pub mod clean;
pub mod completions;
pub mod config;
pub mod cp;
pub mod create;
pub mod detect;
pub mod events;
pub mod exec;
pub mod explain;
pub mod fork;
pub mod image;
pub mod kill;
pub mod logs;
pub mod man;
pub mod mcp;
pub mod net;
pub mod pause;
pub mod port;
pub mod ps;
pub mod resume;
pub mod rm;
pub mod run;
pub mod serve;
pub mod shell;
pub mod snapshot;
#[cfg(feature = "tck")]
pub mod tck;
pub mod teleport;
pub mod token;
#[cfg(feature = "wasm")]
pub mod wasm;
pub mod workspace;
