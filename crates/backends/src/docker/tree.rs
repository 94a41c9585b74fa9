//! Files of this host as the archives that an engine makes images of.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::Stream;
use stockade_launcher::{Made, Piece};
use tokio::sync::mpsc;

use crate::linux::fingerprint::visit_tree;

/// The size of a chunk of a packed archive.
const CHUNK_BYTES: usize = 1 << 18;
/// How many chunks may wait to be sent.
const MAX_QUEUED_CHUNKS: usize = 4;

/// A root of links, small files and mount points. The same pieces always give the same bytes.
pub(super) fn of_pieces(pieces: &[Piece]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut made_dirs = BTreeSet::new();
    for Piece { target, made } in pieces {
        let target = target.strip_prefix("/").unwrap_or(target);
        append_parents(&mut archive, target, &mut made_dirs)?;
        let mut header = tar::Header::new_gnu();
        match made {
            Made::Link(to) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                header.set_size(0);
                archive.append_link(&mut header, target, to)?;
            }
            Made::File(bytes) => {
                header.set_mode(0o644);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, target, bytes.as_slice())?;
            }
            Made::Mount(_) => append_directory(&mut archive, target)?,
        }
    }
    archive.into_inner()
}

/// Every directory has an entry of its own: some engines give others the mode 0600.
fn append_parents<'p>(
    archive: &mut tar::Builder<impl Write>,
    target: &'p Path,
    made: &mut BTreeSet<&'p Path>,
) -> io::Result<()> {
    let parents: Vec<_> = target.ancestors().skip(1).filter(|dir| *dir != Path::new("")).collect();
    for parent in parents.into_iter().rev() {
        if made.insert(parent) {
            append_directory(archive, parent)?;
        }
    }
    Ok(())
}

fn append_directory(archive: &mut tar::Builder<impl Write>, target: &Path) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o755);
    header.set_size(0);
    archive.append_data(&mut header, target, io::empty())
}

/// A tree, packed while it is sent. `as_root`: all of it root's, for an engine that has no other user.
pub(super) fn stream_tree(
    root: PathBuf,
    as_root: bool,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    from_thread(move |out| {
        let mut archive = tar::Builder::new(out);
        archive.follow_symlinks(false);
        visit_tree(&root, &mut |path| {
            let inside = path.strip_prefix(&root).map_err(io::Error::other)?;
            append_entry(&mut archive, path, inside, as_root)
        })?;
        archive.into_inner()?.flush()
    })
}

/// Sockets, fifos and devices are nothing that an image brings along.
fn append_entry(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    inside: &Path,
    as_root: bool,
) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let kind = found.file_type();
    let mut header = tar::Header::new_gnu();
    header.set_metadata(&found);
    if as_root {
        header.set_uid(0);
        header.set_gid(0);
    }
    if !kind.is_file() {
        header.set_size(0);
    }
    if kind.is_symlink() {
        return archive.append_link(&mut header, inside, fs::read_link(path)?);
    }
    if kind.is_dir() {
        return archive.append_data(&mut header, inside, io::empty());
    }
    match kind.is_file() {
        true => archive.append_data(&mut header, inside, fs::File::open(path)?.take(found.len())),
        false => Ok(()),
    }
}

/// An archive of an image, without its names, read while it is sent.
pub(super) fn stream_archive(
    path: PathBuf,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    from_thread(move |mut out| {
        super::archive::copy_without_names(&path, &mut out)?;
        out.flush()
    })
}

/// What a thread writes, as a stream with a short queue. The thread ends when the reader is gone.
fn from_thread(
    write: impl FnOnce(Sender) -> io::Result<()> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (send, receive) = mpsc::channel(MAX_QUEUED_CHUNKS);
    tokio::task::spawn_blocking(move || {
        let sender = Sender { to: send.clone(), piece: Vec::with_capacity(CHUNK_BYTES) };
        if let Err(error) = write(sender) {
            // A reader that is gone does not care why.
            let _ = send.blocking_send(Err(error));
        }
    });
    futures_util::stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|piece| (piece, receive))
    })
}

struct Sender {
    to: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(CHUNK_BYTES));
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.to.blocking_send(Ok(piece.into())).map_err(gone)
    }
}
