//! Images of registries: pulled, checked, unpacked and kept for sandboxes to start from.
//!
//! An image is what its digest says, layer by layer (C-60). A registry, its images and whatever it points to are
//! hostile input: every answer has a bound in bytes and in time, every content has the digest that was promised
//! before it is used, and layers are unpacked behind walls by an [`Unpack`] that the caller brings.
//!
//! The client is written on `hyper` rather than on `oci-client`: there, neither redirects, addresses and bounds of
//! answers nor the reading deadline can be governed, and all of them are decided here.

mod build;
mod commit;
mod config;
mod digest;
mod docker_archive;
mod error;
mod image;
mod layout;
mod manifest;
mod module;
mod options;
mod progress;
mod pull;
mod push;
mod reference;
mod registry;
mod settings;
mod source;
mod store;
mod unpack;

pub use build::{
    BuildStage, BuildStep, CommandForm, CopyRequest, CopySource, CopyStep, Dockerfile,
    DockerfileError, IgnoreRules, Instruction, PackedCopy, expand_word, in_tree, pack_copy,
};
pub use commit::{AssembledConfig, LayerDraft, SandboxRoot};
pub use digest::{Digest, DigestError};
pub use error::ImageError;
pub use image::{ImageConfig, ImageLease, PruneOptions, Removed, StoredImage, StoredLayer};
pub use layout::ImportName;
pub use module::MODULE_FILE;
pub use options::{ImageLimits, Platform, PullOptions};
pub use progress::{PullEvent, PullProgress};
pub use reference::{ImageReference, ReferenceError};
pub use registry::{CredentialFiles, RegistryProxies};
pub use settings::{Registries, RegistrySettings};
pub use stockade_core::PullPolicy;
pub use stockade_unpack::{EntryState, LayerWriter, PackedLayer, compress_archive};
pub use store::{BuildRecord, ImageStore, StoreHold};
pub use unpack::{
    Compression, InProcess, LayerFile, Unpack, UnpackLimits, UnpackReply, UnpackRequest, Unpacked,
    unpack_program,
};
