//! A push: the very blobs that were pulled, imported or built, then the manifest, which makes them an image.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::interval;

use crate::registry::{FileUpload, Session, open_push_session};
use crate::store::{ImageRecord, ImageStore};
use crate::{Digest, ImageError, ImageReference, PullEvent, PullOptions, PullProgress};

/// Blobs that are sent at once.
const PARALLEL_UPLOADS: usize = 3;
/// How often the progress of an upload is told.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Pushes a stored image, whose blobs are kept by the caller's lock.
pub(crate) async fn push(
    store: &ImageStore,
    record: &ImageRecord,
    target: &ImageReference,
    options: &PullOptions,
    progress: &dyn PullProgress,
) -> Result<(), ImageError> {
    check_target(record, target)?;
    let session = open_push_session(target, options)?;
    let manifest = &record.manifest;
    let sizes = record.layers.iter().map(|layer| (layer.digest.clone(), layer.size));
    let layers: Vec<_> = sizes.collect();
    progress.report(PullEvent::Resolved { reference: target, manifest, layers: &layers });
    let mut blobs: Vec<&Digest> = record.blobs().filter(|blob| *blob != manifest).collect();
    blobs.sort_unstable();
    blobs.dedup();
    let uploads: Vec<_> =
        blobs.into_iter().map(|blob| push_blob(store, &session, blob, progress).boxed()).collect();
    stream::iter(uploads).buffer_unordered(PARALLEL_UPLOADS).try_collect::<()>().await?;
    let bytes = store.read_blob(manifest, options.limits.manifest_bytes)?;
    session.upload_manifest(&target.version(), &record.manifest_type, &bytes).await?;
    progress.report(PullEvent::Pushed { manifest });
    Ok(())
}

/// Refuses a target whose digest is that of another image.
fn check_target(record: &ImageRecord, target: &ImageReference) -> Result<(), ImageError> {
    match target.digest().filter(|digest| **digest != record.manifest) {
        Some(other) => Err(ImageError::DigestMismatch {
            what: "the image".to_owned(),
            expected: other.clone(),
            actual: record.manifest.clone(),
        }),
        None => Ok(()),
    }
}

async fn push_blob(
    store: &ImageStore,
    session: &Session,
    digest: &Digest,
    progress: &dyn PullProgress,
) -> Result<(), ImageError> {
    if session.has_blob(digest).await? {
        progress.report(PullEvent::LayerPresent { digest });
        return Ok(());
    }
    let sent = Arc::new(AtomicU64::new(0));
    let (_, total) = store.open_blob(digest)?;
    let upload = session.upload_blob(digest, || {
        let (file, size) = store.open_blob(digest)?;
        sent.store(0, Ordering::Relaxed);
        Ok(FileUpload { file, size, sent: sent.clone() })
    });
    tokio::pin!(upload);
    let mut ticks = interval(REPORT_INTERVAL);
    loop {
        tokio::select! {
            uploaded = &mut upload => {
                uploaded?;
                break;
            }
            _ = ticks.tick() => {
                let received = sent.load(Ordering::Relaxed);
                progress.report(PullEvent::LayerProgress { digest, received, total });
            }
        }
    }
    progress.report(PullEvent::LayerFetched { digest });
    Ok(())
}
