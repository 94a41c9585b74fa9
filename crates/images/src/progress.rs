//! What a pull or a push tells while it works, for bars and logs.

use crate::{Digest, ImageReference};

/// One step of a pull, or of a push, whose layers arrive at the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent<'a> {
    /// A tag was resolved: this is the manifest that is pulled.
    Resolved {
        /// What was asked for.
        reference: &'a ImageReference,
        /// The manifest's digest.
        manifest: &'a Digest,
        /// Compressed layers with their sizes in bytes, the lowest first.
        layers: &'a [(Digest, u64)],
    },
    /// Another pull, of this or another process, fetches the layer or unpacks the image; this one waits.
    Waiting {
        /// The layer or the image.
        digest: &'a Digest,
    },
    /// A layer is stored already.
    LayerPresent {
        /// The layer.
        digest: &'a Digest,
    },
    /// A part of a layer arrived.
    LayerProgress {
        /// The layer.
        digest: &'a Digest,
        /// Bytes so far, those of an earlier attempt included.
        received: u64,
        /// Bytes of the whole layer.
        total: u64,
    },
    /// A layer arrived whole and has its digest.
    LayerFetched {
        /// The layer.
        digest: &'a Digest,
    },
    /// A layer is being unpacked.
    Unpacking {
        /// The layer.
        digest: &'a Digest,
        /// Its place, from 1.
        number: usize,
        /// Of how many.
        count: usize,
    },
    /// The image can be used.
    Stored {
        /// The manifest's digest.
        manifest: &'a Digest,
        /// Whether it was stored before this pull.
        already: bool,
    },
    /// The image is in its registry.
    Pushed {
        /// The manifest's digest.
        manifest: &'a Digest,
    },
}

/// Where a pull tells what it does. Called often and from several tasks: must be quick and must not wait.
pub trait PullProgress: Send + Sync {
    /// Something happened.
    fn report(&self, event: PullEvent<'_>);
}

/// Tells nothing.
impl PullProgress for () {
    fn report(&self, _: PullEvent<'_>) {}
}
