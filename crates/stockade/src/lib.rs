//! The front door for Rust: the backends and the configuration of `stockade`.

pub mod config;
pub mod pools;
pub mod registry;

/// What a registry of backends is made of.
pub mod backend {
    pub use stockade_backends::factory::{
        BackendFactory, Build, BuildContext, Isolation, Progress, TableReader, WorkerProgram,
        read_table,
    };
}

pub use config::Settings;
