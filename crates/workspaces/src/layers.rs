//! The directories of a kernel overlay.

use stockade_core::HostPath;

/// What a kernel overlay is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// The directory that is shown.
    pub lower: HostPath,
    /// What differs from it.
    pub upper: HostPath,
    /// For the kernel's own use.
    pub work: HostPath,
}
