//! From the host into a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use stockade_core::{EntryKind, Error, ErrorCode, Result};

use super::guest::Guest;
use super::{
    CP_OPERATION, ESCAPING_LINK_SKIPPED, SPECIAL_FILE_SKIPPED, Summary, host, join, name_of,
    stays_inside,
};
use crate::lasting::message::CHUNK_BYTES;

/// Something that is still to be copied.
struct Due {
    dir: Rc<OwnedFd>,
    name: OsString,
    /// Where it is, for messages.
    source: String,
    target: String,
    /// How deep its directory lies in what is copied.
    depth: usize,
}

/// Copies what is at `source` to `target`, or into it if that is a directory.
pub async fn copy(source: &Path, guest: &mut Guest, target: &str) -> Result<Summary> {
    let shown = source.display().to_string();
    let opened = host::open_named(source).map_err(|error| host::failed("read", &shown, error))?;
    let target = resolve_target(source, guest, target).await?;
    let mut job = Job { guest, summary: Summary::default(), due: Vec::new() };
    job.take(opened, shown, target, 0).await?;
    while let Some(due) = job.due.pop() {
        job.summary.within_bounds()?;
        job.step(due).await?;
    }
    Ok(job.summary)
}

/// Where it will be in the sandbox.
async fn resolve_target(source: &Path, guest: &mut Guest, target: &str) -> Result<String> {
    if !guest.is_dir(target).await? {
        if !target.ends_with('/') {
            return Ok(target.to_owned());
        }
        guest.make_dir(target).await?;
    }
    let source = text(source.as_os_str())?;
    Ok(name_of(&source).map_or_else(|| target.to_owned(), |name| join(target, name)))
}

struct Job<'a> {
    guest: &'a mut Guest,
    summary: Summary,
    due: Vec<Due>,
}

impl Job<'_> {
    async fn step(&mut self, due: Due) -> Result<()> {
        let failed = |error| host::failed("read", &due.source, error);
        match host::look(&due.dir, &due.name).map_err(failed)? {
            EntryKind::Symlink => self.link(due)?,
            EntryKind::Other => self.summary.skip(&due.source, SPECIAL_FILE_SKIPPED),
            EntryKind::File | EntryKind::Directory => {
                let opened = host::open(&due.dir, &due.name).map_err(failed)?;
                self.take(opened, due.source, due.target, due.depth + 1).await?;
            }
        }
        Ok(())
    }

    /// Notes a link that can be made when all it may lead to is there.
    fn link(&mut self, due: Due) -> Result<()> {
        let leads = host::read_link(&due.dir, &due.name)
            .map_err(|error| host::failed("read", &due.source, error))?;
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
    async fn take(
        &mut self,
        opened: OwnedFd,
        source: String,
        target: String,
        depth: usize,
    ) -> Result<()> {
        let stat = rustix::fs::fstat(&opened)
            .map_err(|errno| host::failed("read", &source, errno.into()))?;
        match host::kind(&stat) {
            (EntryKind::File, executable) => {
                if executable {
                    self.summary.executables.push(target.clone());
                }
                self.file(opened.into(), &source, &target).await
            }
            (EntryKind::Directory, _) => self.directory(opened, &source, &target, depth).await,
            (EntryKind::Symlink | EntryKind::Other, _) => {
                self.summary.skip(&source, SPECIAL_FILE_SKIPPED);
                Ok(())
            }
        }
    }

    async fn file(&mut self, mut file: File, source: &str, target: &str) -> Result<()> {
        let mut piece = vec![0; CHUNK_BYTES as usize];
        let mut append = false;
        loop {
            let read =
                file.read(&mut piece).map_err(|error| host::failed("read", source, error))?;
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

    async fn directory(
        &mut self,
        dir: OwnedFd,
        source: &str,
        target: &str,
        depth: usize,
    ) -> Result<()> {
        self.guest.make_dir(target).await?;
        self.summary.directories += 1;
        let names = host::names(&dir).map_err(|error| host::failed("read", source, error))?;
        let dir = Rc::new(dir);
        for name in names.into_iter().rev() {
            let shown = text(&name)?;
            let (source, target) = (join(source, &shown), join(target, &shown));
            self.due.push(Due { dir: Rc::clone(&dir), name, source, target, depth });
        }
        Ok(())
    }
}

/// Paths in a sandbox are text.
fn text(name: &std::ffi::OsStr) -> Result<String> {
    name.to_str().map(str::to_owned).ok_or_else(|| {
        let message = format!("`{}` is not valid UTF-8", name.to_string_lossy());
        Error::new(ErrorCode::Invalid, CP_OPERATION, message)
            .remedy("rename it, or copy an archive")
    })
}
