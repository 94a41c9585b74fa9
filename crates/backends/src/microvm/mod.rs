//! Virtual machines with a kernel of their own.
#![cfg_attr(
    not(test),
    expect(dead_code, reason = "the backend that chooses among the drivers is not there yet")
)]

mod driver;
pub mod firecracker;
#[cfg(test)]
mod initramfs;
mod kvm;
mod sparse;

use stockade_core::BackendName;

/// The microvm backend's name.
pub const NAME: BackendName = BackendName::literal("microvm");
