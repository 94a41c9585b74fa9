//! From the host into a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use stockade_core::{EntryKind, Error, ErrorCode, Result};

use super::guest::GuestFiles;
use super::paths::{join_path, name_of, stays_inside};
use super::summary::{CopySummary, ESCAPING_LINK_SKIPPED, SPECIAL_FILE_SKIPPED};
use super::{CP_OPERATION, host};
use crate::daemon::message::CHUNK_BYTES;

/// Something that is still to be copied.
struct InwardEntry {
    dir: Rc<OwnedFd>,
    name: OsString,
    /// Where it is, for messages.
    source: String,
    target: String,
    /// How deep its directory lies in what is copied.
    depth: usize,
}

/// Copies what is at `source` to `target`, or into it if that is a directory.
pub async fn copy_inward(
    source: &Path,
    guest: &mut GuestFiles,
    target: &str,
) -> Result<CopySummary> {
    let shown = source.display().to_string();
    let opened =
        host::open_named(source).map_err(|error| host::host_path_error("read", &shown, error))?;
    let target = resolve_target(source, guest, target).await?;
    let mut job = InwardCopy { guest, summary: CopySummary::default(), due: Vec::new() };
    job.copy_opened(opened, shown, target, 0).await?;
    while let Some(due) = job.due.pop() {
        job.summary.within_bounds()?;
        job.copy_due(due).await?;
    }
    Ok(job.summary)
}

/// Where it will be in the sandbox.
async fn resolve_target(source: &Path, guest: &mut GuestFiles, target: &str) -> Result<String> {
    if !guest.is_dir(target).await? {
        if !target.ends_with('/') {
            return Ok(target.to_owned());
        }
        guest.make_dir(target).await?;
    }
    let source = name_to_text(source.as_os_str())?;
    Ok(name_of(&source).map_or_else(|| target.to_owned(), |name| join_path(target, name)))
}

struct InwardCopy<'a> {
    guest: &'a mut GuestFiles,
    summary: CopySummary,
    due: Vec<InwardEntry>,
}

impl InwardCopy<'_> {
    async fn copy_due(&mut self, due: InwardEntry) -> Result<()> {
        let failed = |error| host::host_path_error("read", &due.source, error);
        match host::classify_name(&due.dir, &due.name).map_err(failed)? {
            EntryKind::Symlink => self.note_link(due)?,
            EntryKind::Other => self.summary.skip(&due.source, SPECIAL_FILE_SKIPPED),
            EntryKind::File | EntryKind::Directory => {
                let opened = host::open_entry(&due.dir, &due.name).map_err(failed)?;
                self.copy_opened(opened, due.source, due.target, due.depth + 1).await?;
            }
        }
        Ok(())
    }

    /// Notes a link that can be made when all it may lead to is there.
    fn note_link(&mut self, due: InwardEntry) -> Result<()> {
        let leads = host::read_link(&due.dir, &due.name)
            .map_err(|error| host::host_path_error("read", &due.source, error))?;
        match leads.filter(|leads| stays_inside(leads, due.depth)) {
            Some(leads) => {
                self.summary.links += 1;
                self.summary.links_due.push((leads, due.target));
            }
            None => self.summary.skip(&due.source, ESCAPING_LINK_SKIPPED),
        }
        Ok(())
    }

    /// Copies what was opened, whose content lies this deep. It is judged by its handle: its name may mean
    /// something else by now.
    async fn copy_opened(
        &mut self,
        opened: OwnedFd,
        source: String,
        target: String,
        depth: usize,
    ) -> Result<()> {
        let stat = rustix::fs::fstat(&opened)
            .map_err(|errno| host::host_path_error("read", &source, errno.into()))?;
        match host::classify_stat(&stat) {
            (EntryKind::File, executable) => {
                self.copy_file(opened.into(), &source, &target).await?;
                if executable {
                    self.make_executable(&target).await?;
                }
                Ok(())
            }
            (EntryKind::Directory, _) => self.copy_directory(opened, &source, &target, depth).await,
            (EntryKind::Symlink | EntryKind::Other, _) => {
                self.summary.skip(&source, SPECIAL_FILE_SKIPPED);
                Ok(())
            }
        }
    }

    async fn copy_file(&mut self, mut file: File, source: &str, target: &str) -> Result<()> {
        let mut piece = vec![0; CHUNK_BYTES as usize];
        let mut append = false;
        loop {
            let read = file
                .read(&mut piece)
                .map_err(|error| host::host_path_error("read", source, error))?;
            if read == 0 && append {
                break;
            }
            self.guest.write(target, &piece[..read], append).await?;
            self.summary.bytes += read as u64;
            append = true;
        }
        self.summary.files += 1;
        Ok(())
    }

    /// A file whose mode cannot be set is copied all the same.
    async fn make_executable(&mut self, target: &str) -> Result<()> {
        match self.guest.make_executable(target).await {
            Err(error) if error.code() == ErrorCode::Gone => return Err(error),
            Err(_) => self.summary.skip(target, "copied, but not made executable"),
            Ok(()) => {}
        }
        Ok(())
    }

    async fn copy_directory(
        &mut self,
        dir: OwnedFd,
        source: &str,
        target: &str,
        depth: usize,
    ) -> Result<()> {
        self.guest.make_dir(target).await?;
        self.summary.directories += 1;
        let names =
            host::list_names(&dir).map_err(|error| host::host_path_error("read", source, error))?;
        let dir = Rc::new(dir);
        for name in names.into_iter().rev() {
            let shown = name_to_text(&name)?;
            let (source, target) = (join_path(source, &shown), join_path(target, &shown));
            self.due.push(InwardEntry { dir: Rc::clone(&dir), name, source, target, depth });
        }
        Ok(())
    }
}

/// Paths in a sandbox are text.
fn name_to_text(name: &std::ffi::OsStr) -> Result<String> {
    name.to_str().map(str::to_owned).ok_or_else(|| {
        let message = format!("`{}` is not valid UTF-8", name.to_string_lossy());
        Error::new(ErrorCode::Invalid, CP_OPERATION, message)
            .remedy("rename it, or copy an archive")
    })
}
