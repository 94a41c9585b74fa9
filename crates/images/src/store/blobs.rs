//! Blobs: contents by digest, as registries have them. Kept compressed beside the trees, because export and push
//! have to give back the very bytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use bytes::Bytes;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use stockade_fs::{Locked, Sharing};

use super::ImageStore;
use super::locks::lock;
use super::trees::blocking;
use crate::manifest::Descriptor;
use crate::registry::{BlobStart, BodyReader};
use crate::source::Source;
use crate::{Digest, ImageError, PullEvent, PullProgress};

/// How often a blob is asked for again after its connection was lost, if each time brought some of it.
const MAX_ATTEMPTS: usize = 6;
/// Bytes that are gathered before they are written.
const WRITE_BATCH_BYTES: usize = 1 << 20;

/// A blob while it arrives. It holds its lock itself: a write that goes on after its future was dropped is still
/// the only one.
struct PartialBlob {
    file: File,
    hasher: Sha256,
    received: u64,
    _lock: Locked,
}

impl PartialBlob {
    /// Takes up what an earlier attempt left.
    fn resume(mut file: File, lock: Locked, size: u64) -> io::Result<Self> {
        if file.metadata()?.len() > size {
            file.set_len(0)?;
        }
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 128 << 10];
        let mut received = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => {
                    hasher.update(&buffer[..count]);
                    received += count as u64;
                }
            }
        }
        Ok(Self { file, hasher, received, _lock: lock })
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.received = 0;
        Ok(())
    }

    fn write(mut self, batch: Vec<Bytes>) -> io::Result<Self> {
        for bytes in batch {
            self.file.write_all(&bytes)?;
            self.hasher.update(&bytes);
            self.received += bytes.len() as u64;
        }
        Ok(self)
    }
}

impl ImageStore {
    /// Whether a blob is stored.
    pub(crate) fn has_blob(&self, digest: &Digest) -> Result<bool, ImageError> {
        self.blobs.exists(&digest.hex()).map_err(ImageError::io("found", self.blobs.path()))
    }

    /// A stored blob to be read, and its length.
    pub(crate) fn open_blob(&self, digest: &Digest) -> Result<(File, u64), ImageError> {
        let failed = || ImageError::io("opened", self.blobs.path_of(&digest.hex()));
        let file = self.blobs.open(&digest.hex(), OFlags::RDONLY).map_err(failed())?;
        let size = file.metadata().map_err(failed())?.len();
        Ok((file, size))
    }

    /// A small stored blob in memory.
    pub(crate) fn read_blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ImageError> {
        let (file, size) = self.open_blob(digest)?;
        if size > limit {
            return Err(ImageError::TooLarge { what: digest.to_string(), limit });
        }
        let mut bytes = Vec::new();
        file.take(limit)
            .read_to_end(&mut bytes)
            .map_err(ImageError::io("read", self.blobs.path_of(&digest.hex())))?;
        Ok(bytes)
    }

    /// Makes a file of this file system, which is on disk and has this digest, a blob.
    pub(crate) fn adopt_blob(&self, digest: &Digest, file: &Path) -> Result<(), ImageError> {
        let path = self.blobs.path_of(&digest.hex());
        std::fs::rename(file, &path).map_err(ImageError::io("published", &path))?;
        self.blobs.sync().map_err(ImageError::io("synced", self.blobs.path()))
    }

    /// Stores a small blob that is in memory.
    pub(crate) fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), ImageError> {
        if self.has_blob(digest)? {
            return Ok(());
        }
        let path = self.blobs.path_of(&digest.hex());
        let draft = stockade_fs::draft_name("blob");
        stockade_fs::write_atomically(&path, &draft, bytes, 0o600, stockade_fs::Survives::Power)
            .map_err(ImageError::io("written", &path))
    }

    /// Makes sure that a blob is stored: fetched from a source, resumed where an earlier attempt ended.
    pub(crate) async fn fetch_blob(
        &self,
        source: &Source,
        blob: &Descriptor,
        progress: &dyn PullProgress,
    ) -> Result<(), ImageError> {
        let digest = &blob.digest;
        if self.has_blob(digest)? {
            progress.report(PullEvent::LayerPresent { digest });
            return Ok(());
        }
        let waiting = || progress.report(PullEvent::Waiting { digest });
        let name = format!("blob-{}", digest.hex());
        let lock = lock(&self.locks, &name, Sharing::Exclusive, waiting).await?;
        if self.has_blob(digest)? {
            progress.report(PullEvent::LayerPresent { digest });
            return Ok(());
        }
        let failed = || ImageError::io("written", self.partial.path_of(&digest.hex()));
        let file =
            self.partial.open(&digest.hex(), OFlags::RDWR | OFlags::CREATE).map_err(failed())?;
        let size = blob.size;
        let partial =
            blocking(move || PartialBlob::resume(file, lock, size)).await?.map_err(failed())?;
        let partial = match source {
            Source::Registry(_) => self.download(source, blob, partial, progress).await?,
            Source::Layout(layout) => {
                let (layout, digest) = (layout.clone(), digest.clone());
                let copied = blocking(move || {
                    let (reader, _) = layout.open_blob(&digest)?;
                    copy_blob(reader, partial, size).map_err(ImageError::io("read", layout.path()))
                });
                copied.await??
            }
        };
        self.finish_blob(blob, partial).await?;
        progress.report(PullEvent::LayerFetched { digest });
        Ok(())
    }

    async fn download(
        &self,
        source: &Source,
        blob: &Descriptor,
        mut partial: PartialBlob,
        progress: &dyn PullProgress,
    ) -> Result<PartialBlob, ImageError> {
        for attempt in 1.. {
            let before = partial.received;
            if before == blob.size {
                break;
            }
            let (start, body) = source.open_blob(&blob.digest, before).await?;
            if start == BlobStart(0) && before > 0 {
                let restarted = partial.restart();
                restarted.map_err(ImageError::io("written", self.partial.path()))?;
            }
            let (written, ended) = self.receive(body, blob, partial, progress).await?;
            partial = written;
            match ended {
                Ok(()) if partial.received == blob.size => break,
                Err(error) if !is_lost_connection(&error) => return Err(error),
                Ok(()) | Err(_) if attempt < MAX_ATTEMPTS && partial.received > before => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let what = format!(
                        "{} ended after {} of {} bytes",
                        blob.digest, partial.received, blob.size
                    );
                    return Err(ImageError::Protocol { host: source.name(), what });
                }
            }
        }
        Ok(partial)
    }

    /// Receives one answer, and says how it ended. What arrived is kept in either case.
    async fn receive(
        &self,
        mut body: BodyReader,
        blob: &Descriptor,
        mut partial: PartialBlob,
        progress: &dyn PullProgress,
    ) -> Result<(PartialBlob, Result<(), ImageError>), ImageError> {
        let failed = || ImageError::io("written", self.partial.path_of(&blob.digest.hex()));
        loop {
            let (mut batch, mut gathered, mut ended) = (Vec::new(), 0, None);
            while ended.is_none() && gathered < WRITE_BATCH_BYTES {
                match body.chunk().await {
                    Ok(Some(chunk)) => {
                        gathered += chunk.len();
                        batch.push(chunk);
                    }
                    Ok(None) => ended = Some(Ok(())),
                    Err(error) => ended = Some(Err(error)),
                }
            }
            if partial.received + gathered as u64 > blob.size {
                let _ = self.partial.remove(&blob.digest.hex());
                let what = format!("{} is longer than {} bytes", blob.digest, blob.size);
                return Err(ImageError::Protocol { host: body.host().to_owned(), what });
            }
            partial = blocking(move || partial.write(batch)).await?.map_err(failed())?;
            let (digest, received, total) = (&blob.digest, partial.received, blob.size);
            progress.report(PullEvent::LayerProgress { digest, received, total });
            if let Some(ended) = ended {
                return Ok((partial, ended));
            }
        }
    }

    /// Publishes a blob that has its length and its digest; one that has not is removed.
    async fn finish_blob(&self, blob: &Descriptor, partial: PartialBlob) -> Result<(), ImageError> {
        let (name, expected) = (blob.digest.hex(), blob.digest.clone());
        let actual = Digest::from_hasher(partial.hasher.clone());
        if actual != expected || partial.received != blob.size {
            let _ = self.partial.remove(&name);
            let what = format!("a blob of {} bytes", partial.received);
            return Err(ImageError::DigestMismatch { what, expected, actual });
        }
        let (from, to) = (self.partial.path_of(&name), self.blobs.path_of(&name));
        let failed = ImageError::io("published", to.clone());
        let published = blocking(move || {
            partial.file.sync_data()?;
            std::fs::rename(from, to)
        });
        published.await?.map_err(failed)?;
        self.blobs.sync().map_err(ImageError::io("synced", self.blobs.path()))
    }
}

/// Whether asking again may bring the rest.
fn is_lost_connection(error: &ImageError) -> bool {
    matches!(error, ImageError::Unreachable { .. })
}

/// Copies a blob of a layout, no more of it than it should have.
fn copy_blob(reader: impl Read, mut partial: PartialBlob, size: u64) -> io::Result<PartialBlob> {
    partial.restart()?;
    let mut reader = reader.take(size.saturating_add(1));
    let mut buffer = vec![0; 128 << 10];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(partial),
            count => {
                partial.file.write_all(&buffer[..count])?;
                partial.hasher.update(&buffer[..count]);
                partial.received += count as u64;
            }
        }
    }
}
