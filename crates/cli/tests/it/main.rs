//! The tests of this crate from outside, as one program: linking one takes seconds, linking many minutes.
//! Those below a module `needs_X` need X; `CONTRIBUTING.md` lists what that may be.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod asking;
mod asking_hosts;
mod bad_input;
mod clean;
mod common;
mod config;
mod copies;
mod credential_helpers;
mod docs_examples;
mod ending;
#[path = "../../../tck/tests/it/engines/mod.rs"]
mod engines;
mod input;
mod journal;
mod lasting;
mod lasting_ends;
mod limits;
mod listings;
#[path = "../../../tck/tests/it/machines/place.rs"]
mod machines;
mod mcp_ends;
mod mcp_http;
mod network;
mod network_clients;
mod network_escapes;
mod network_lives;
mod observe;
mod package_caches;
mod ports;
mod private;
mod readme_picture;
mod remote;
mod request_rules;
mod review;
mod run;
#[path = "../../../tck/tests/it/sample.rs"]
mod sample;
mod secret_renewal;
mod secrets;
mod serve;
mod serve_faults;
mod serve_lifetimes;
mod serve_routes;
mod serve_service;
mod serve_tenants;
mod serve_terminal;
mod serve_tls;
mod shell;
mod snapshots;
#[path = "../../../tck/tests/it/sshd/mod.rs"]
mod sshd;
mod surroundings;
mod tck_exec;
mod tck_mock;
mod terminal;
mod toolchains;
mod upstream_proxy;
mod workspaces;
mod workspaces_live;
mod needs_clients {
    mod mcp;
}
mod needs_docker {
    mod container;
}
mod needs_git {
    mod checkouts;
    mod worktrees;
}
mod needs_registry {
    mod archives;
    mod builds;
    mod images;
    mod killed_pulls;
    mod modules;
    mod starters;
}
mod needs_registry_docker {
    mod images;
}
mod needs_registry_gvisor {
    mod images;
}
mod needs_registry_vm {
    mod images;
}
mod needs_root_registry {
    mod full_disk;
}
mod needs_ssh {
    mod teleport;
}
mod needs_vm {
    mod tck;
}
mod needs_wasm {
    mod wasm;
}
