//! Where layers are unpacked: behind walls, by [`unpack_program`], or in this process for tests.

use std::fs::File;
use std::path::Path;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};
pub use stockade_unpack::{Compression, UnpackLimits, UnpackReply, UnpackRequest, Unpacked};
use stockade_unpack::{UnpackError, apply_layer};

use crate::ImageError;

/// A layer as it is stored: its compressed digest was checked, nothing else.
#[derive(Debug)]
pub struct LayerFile {
    /// The file, at its start.
    pub file: File,
    /// How it is compressed, by its media type.
    pub compression: Compression,
    /// Its bounds.
    pub limits: UnpackLimits,
}

/// Unpacks layers.
#[async_trait]
pub trait Unpack: Send + Sync {
    /// Applies a layer beneath a directory that has the layers below it, and nothing else.
    ///
    /// - Writes nowhere but beneath `destination`, whatever the layer says (C-60).
    /// - A layer that does not fit is [`ImageError::Refused`], with the name of the entry.
    /// - Where it fails, or its future is dropped, the caller removes the whole destination.
    async fn unpack(&self, layer: LayerFile, destination: &Path) -> Result<Unpacked, ImageError>;
}

/// Unpacks in this process, without walls: for tests, and for images that the caller made itself.
#[derive(Debug, Clone, Copy)]
pub struct InProcess;

#[async_trait]
impl Unpack for InProcess {
    async fn unpack(&self, layer: LayerFile, destination: &Path) -> Result<Unpacked, ImageError> {
        let destination = destination.to_owned();
        // A blocking task cannot be dropped half-way: the caller's future may be, and then removes the destination
        // while this writes to it. Removing is repeated by whoever opens the store next.
        let unpacked = tokio::task::spawn_blocking(move || apply(&layer, &destination)).await;
        unpacked.map_err(|error| ImageError::Unpack(error.to_string()))?
    }
}

fn apply(layer: &LayerFile, destination: &Path) -> Result<Unpacked, ImageError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(destination, flags, Mode::empty())
        .map_err(|errno| ImageError::io("opened", destination)(errno.into()))?;
    let request = UnpackRequest { compression: layer.compression, limits: layer.limits };
    apply_layer(&layer.file, &request, root).map_err(|error| match error {
        UnpackError::Refused(reason) => ImageError::Refused(reason),
        error @ UnpackError::Io { .. } => ImageError::Unpack(error.to_string()),
    })
}

/// The static program that applies one layer: its argument is an [`UnpackRequest`] as JSON, its standard input the
/// layer, its working directory the destination, and its one line of output an [`UnpackReply`].
pub fn unpack_program() -> &'static [u8] {
    include_bytes!(env!("STOCKADE_UNPACK"))
}
