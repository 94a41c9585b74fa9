//! The tests of this crate from outside, as one program: linking one takes seconds, linking many minutes.
//! Those below a module `needs_X` need X; `CONTRIBUTING.md` lists what that may be.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where a value is missing"
)]

mod containers;
mod contract_page;
mod control;
mod engines;
mod hostile;
mod killed;
mod landlock;
mod machines;
mod mock;
mod native;
mod ordinary;
mod saboteurs;
mod sample;
mod scripts;
mod sshd;
mod needs_docker {
    mod docker;
}
mod needs_docker_gvisor {
    mod docker_runsc;
}
mod needs_podman {
    mod podman;
}
mod needs_gvisor {
    mod gvisor;
}
mod needs_vm {
    mod cgroup2;
    mod microvm;
    mod microvm_memory;
}
mod needs_ssh {
    mod ssh;
    mod ssh_copies;
    mod ssh_faults;
    mod ssh_killed;
}
mod needs_wasm {
    mod wasm;
}
