//! Where an image comes from: a registry with its mirrors, or an OCI layout.

use std::sync::Arc;

use crate::layout::Layout;
use crate::manifest::Descriptor;
use crate::registry::{BlobStart, BodyReader, FetchedDocument, Session};
use crate::{Digest, ImageError};

/// Where manifests and blobs are had.
pub(crate) enum Source {
    /// Mirrors in their order, then the registry.
    Registry(Vec<Session>),
    /// A directory or an archive.
    Layout(Arc<Layout>),
}

impl Source {
    /// Its name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Registry(sessions) => sessions.last().map_or("", Session::source).to_owned(),
            Self::Layout(layout) => layout.path().display().to_string(),
        }
    }

    /// A manifest or an index that a descriptor points to, with the digest, the size and the type that it says.
    pub async fn fetch_child(
        &self,
        child: &Descriptor,
        limit: u64,
    ) -> Result<FetchedDocument, ImageError> {
        let document = match self {
            Self::Registry(_) => self.fetch_document(&child.digest.to_string(), limit).await?,
            Self::Layout(layout) => FetchedDocument {
                bytes: layout.read_blob(&child.digest, limit)?,
                media_type: child.media_type.clone(),
                digest: child.digest.clone(),
            },
        };
        check_digest("a manifest", &document.bytes, &child.digest)?;
        if document.media_type != child.media_type {
            let (said, listed) = (&document.media_type, &child.media_type);
            return Err(ImageError::refused(format!(
                "its index lists `{}` as `{}`, and it is sent as `{}`",
                child.digest,
                stockade_core::clean_foreign(listed),
                stockade_core::clean_foreign(said)
            )));
        }
        Ok(document)
    }

    /// A manifest or an index by tag or digest, from the first that has it.
    pub async fn fetch_document(
        &self,
        version: &str,
        limit: u64,
    ) -> Result<FetchedDocument, ImageError> {
        let Self::Registry(sessions) = self else {
            return Err(ImageError::NotStored(version.to_owned()));
        };
        let mut result = Err(ImageError::Settings("there is no registry".to_owned()));
        for session in sessions {
            result = session.fetch_document(version, limit).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// A small blob, checked.
    pub async fn fetch_small(&self, blob: &Descriptor, limit: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = match self {
            Self::Registry(_) => {
                let (_, body) = self.open_blob(&blob.digest, 0).await?;
                body.read_all("a config", blob.size.min(limit)).await?
            }
            Self::Layout(layout) => layout.read_blob(&blob.digest, blob.size.min(limit))?,
        };
        check_digest("its config", &bytes, &blob.digest)?;
        Ok(bytes)
    }

    /// Begins to read a blob of a registry, from the first that has it.
    pub async fn open_blob(
        &self,
        digest: &Digest,
        offset: u64,
    ) -> Result<(BlobStart, BodyReader), ImageError> {
        let sessions = match self {
            Self::Registry(sessions) => sessions.as_slice(),
            Self::Layout(_) => &[],
        };
        let mut result = Err(ImageError::NotStored(digest.to_string()));
        for session in sessions {
            result = session.open_blob(digest, offset).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

/// Refuses contents that have another digest than was promised.
pub(crate) fn check_digest(what: &str, bytes: &[u8], expected: &Digest) -> Result<(), ImageError> {
    let actual = Digest::of(bytes);
    match actual == *expected {
        true => Ok(()),
        false => Err(ImageError::DigestMismatch {
            what: what.to_owned(),
            expected: expected.clone(),
            actual,
        }),
    }
}
