//! File trees that a guest has filled, and private state.
//!
//! What a guest left is hostile input. Nothing here follows a symbolic link that it was not told to follow,
//! resolves a name twice where it may have become something else, or recurses as deep as a guest can nest.
//! Errors are those of the system calls; callers say what they were about.
//!
//! Walking a tree is left to callers: what they do about a directory that cannot be read, a name that vanishes
//! and a tree that is too deep depends on what they decide by it, a diff, a copy or a limit.
//!
//! Static programs use this crate too: without features it needs nothing but system calls.

mod atomic;
mod beneath;
mod by_name;
mod cache;
mod draft;
#[cfg(feature = "state")]
mod id;
mod kernel_file;
mod lock;
mod mode;
mod mount;
mod names;
mod real_paths;
mod remove;
mod sparse;
#[cfg(feature = "state")]
mod state;
#[cfg(feature = "state")]
mod timestamp;

pub use atomic::{Survives, write_atomically};
pub use beneath::{open_beneath, open_without_symlinks};
pub use cache::{CacheDir, CacheUsage, Cleaning};
pub use draft::draft_name;
#[cfg(feature = "state")]
pub use id::fresh_id;
pub use kernel_file::{read_kernel_bytes, read_kernel_file};
pub use lock::{LOCK_TIMEOUT, Locked, Sharing};
pub use mode::chmod_descriptor;
pub use mount::is_mount_point;
pub use names::list_names;
pub use real_paths::RealPaths;
pub use remove::{ClosedDirs, remove_entry, remove_tree};
pub use sparse::{clone_or_copy, copy_sparse, next_data, next_segment, read_full_at};
#[cfg(feature = "state")]
pub use state::{Directory, StateDir, find_foreign_file};
#[cfg(feature = "state")]
pub use timestamp::Timestamp;
