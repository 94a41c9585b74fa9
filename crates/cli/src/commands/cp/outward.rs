//! From a sandbox to the host. What the guest says about its tree is hostile: names are checked,
//! sizes bounded, and nothing it made is followed here.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};
use std::rc::Rc;

use stockade_core::{Bytes, Entry, EntryKind, Error, ErrorCode, Result};

use super::guest::GuestFiles;
use super::paths::{join_path, name_of, stays_inside};
use super::programs::CopyPrograms;
use super::summary::{CopySummary, ESCAPING_LINK_SKIPPED, SPECIAL_FILE_SKIPPED};
use super::{CP_OPERATION, host};
use crate::daemon::message::CHUNK_BYTES;

/// Something that is still to be copied.
struct OutwardEntry {
    /// Where it will be.
    dir: Rc<OwnedFd>,
    /// Its name there; checked.
    name: String,
    source: String,
    entry: Entry,
    /// How deep its directory lies in what is copied.
    depth: usize,
}

/// Copies what is at `source` to `target`, or into it if that is a directory.
pub async fn copy_outward(
    guest: &mut GuestFiles,
    programs: CopyPrograms<'_>,
    source: &str,
    target: &Path,
    most: Bytes,
) -> Result<CopySummary> {
    let Some(entry) = guest.stat(source).await? else {
        let message = format!("the sandbox has no `{}`", source.escape_debug());
        return Err(Error::new(ErrorCode::NotFound, CP_OPERATION, message));
    };
    let (summary, due) = (CopySummary::default(), Vec::new());
    let mut job = OutwardCopy { guest, programs, summary, due, most: most.0 };
    match entry.kind {
        EntryKind::File | EntryKind::Directory => job.queue_first(source, target, entry).await?,
        EntryKind::Symlink | EntryKind::Other => return Err(not_copied(source, entry.kind)),
    }
    while let Some(due) = job.due.pop() {
        job.summary.within_bounds()?;
        job.copy_due(due).await?;
    }
    Ok(job.summary)
}

fn not_copied(source: &str, kind: EntryKind) -> Error {
    let what = if kind == EntryKind::Symlink { "a symbolic link" } else { "a special file" };
    let message = format!("`{}` is {what}", source.escape_debug());
    Error::new(ErrorCode::Invalid, CP_OPERATION, message).remedy("name a file or a directory")
}

struct OutwardCopy<'a> {
    guest: &'a mut GuestFiles,
    programs: CopyPrograms<'a>,
    summary: CopySummary,
    due: Vec<OutwardEntry>,
    /// Bytes that may still come.
    most: u64,
}

impl OutwardCopy<'_> {
    /// Settles where the whole will be, and takes it up.
    async fn queue_first(&mut self, source: &str, target: &Path, entry: Entry) -> Result<()> {
        let failed = |error| host::host_path_error("written", &target.display().to_string(), error);
        if target.is_dir() {
            let dir = Rc::new(host::open_named(target).map_err(failed)?);
            return match name_of(source) {
                Some(name) => {
                    let (name, source) = (name.into(), source.into());
                    self.due.push(OutwardEntry { dir, name, source, entry, depth: 0 });
                    Ok(())
                }
                None => self.queue_contents(dir, source, 0).await,
            };
        }
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = host::open_named(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        let name = target
            .file_name()
            .and_then(OsStr::to_str)
            .ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::InvalidFilename)))?;
        let (dir, name, source) = (Rc::new(dir), name.into(), source.into());
        self.due.push(OutwardEntry { dir, name, source, entry, depth: 0 });
        Ok(())
    }

    async fn copy_due(&mut self, due: OutwardEntry) -> Result<()> {
        let failed = |error| host::host_path_error("written", &due.name, error);
        match due.entry.kind {
            EntryKind::Symlink | EntryKind::Other => {
                self.summary.skip(&due.source, SPECIAL_FILE_SKIPPED)
            }
            EntryKind::Directory => {
                let dir = host::make_dir(&due.dir, OsStr::new(&due.name)).map_err(failed)?;
                self.summary.directories += 1;
                self.queue_contents(Rc::new(dir), &due.source, due.depth).await?;
            }
            EntryKind::File => {
                let executable = due.entry.mode & 0o111 != 0;
                let name = OsStr::new(&due.name);
                let file = host::create_file(&due.dir, name, executable).map_err(failed)?;
                self.copy_file(file, &due).await?;
            }
        }
        Ok(())
    }

    /// Takes up what is in a directory, which lies this deep.
    async fn queue_contents(&mut self, dir: Rc<OwnedFd>, source: &str, depth: usize) -> Result<()> {
        let mut links = Vec::new();
        for entry in self.guest.list(source).await? {
            let name = check_entry_name(&entry.name)?.to_owned();
            if entry.kind == EntryKind::Symlink {
                links.push(name);
                continue;
            }
            let source = join_path(source, &name);
            self.due.push(OutwardEntry {
                dir: Rc::clone(&dir),
                name,
                source,
                entry,
                depth: depth + 1,
            });
        }
        self.make_links(&dir, source, &links, depth).await
    }

    /// Makes the links of one directory that stay inside. Nothing that is written later follows one.
    async fn make_links(
        &mut self,
        dir: &OwnedFd,
        source: &str,
        names: &[String],
        depth: usize,
    ) -> Result<()> {
        let paths: Vec<_> = names.iter().map(|name| join_path(source, name)).collect();
        let targets = self.programs.read_links(&paths).await?;
        for ((name, path), leads) in names.iter().zip(&paths).zip(targets) {
            self.summary.within_bounds()?;
            match leads.filter(|leads| stays_inside(leads, depth)) {
                Some(leads) => {
                    host::make_link(dir, OsStr::new(name), &leads)
                        .map_err(|error| host::host_path_error("written", name, error))?;
                    self.summary.links += 1;
                }
                None => self.summary.skip(path, ESCAPING_LINK_SKIPPED),
            }
        }
        Ok(())
    }

    async fn copy_file(&mut self, mut file: File, due: &OutwardEntry) -> Result<()> {
        let mut offset = 0;
        loop {
            let piece = self.guest.read(&due.source, offset).await?;
            self.most = self.most.checked_sub(piece.len() as u64).ok_or_else(too_large)?;
            file.write_all(&piece)
                .map_err(|error| host::host_path_error("written", &due.name, error))?;
            offset += piece.len() as u64;
            if piece.len() < CHUNK_BYTES as usize {
                break;
            }
        }
        self.summary.bytes += offset;
        self.summary.files += 1;
        Ok(())
    }
}

/// A name that stays in its directory.
fn check_entry_name(name: &str) -> Result<&str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name && !name.contains('\0') => Ok(name),
        _ => {
            let message = format!("the sandbox names a file `{}`", name.escape_debug());
            Err(Error::new(ErrorCode::PathEscapes, CP_OPERATION, message))
        }
    }
}

fn too_large() -> Error {
    Error::new(ErrorCode::TooLarge, CP_OPERATION, "there is more than --max-size allows")
        .remedy("copy a part, or raise --max-size")
}

#[cfg(test)]
mod tests {
    use super::check_entry_name;

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for name in ["", ".", "..", "a/b", "/a", "a/", "../a", "./a", "a\0b"] {
            assert!(check_entry_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "...", "-rf", "a b", "\n"] {
            assert!(check_entry_name(name).is_ok(), "{name:?}");
        }
    }
}
