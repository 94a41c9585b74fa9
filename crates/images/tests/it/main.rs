//! The crate from outside: layers and layouts that are built here, registries that lie, and a real one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod docker_archives;
mod engine_trees;
#[path = "../../../tck/tests/it/engines/mod.rs"]
mod engines;
mod hostile_layers;
mod hostile_registry;
mod hostile_uploads;
mod killed;
mod layers;
mod modules;
mod needs_registry;
mod needs_registry_docker;
mod needs_root;
mod needs_root_registry_podman;
mod proxies;
#[path = "../../../tck/tests/it/sample.rs"]
mod sample;
mod store;
mod support;
