//! Files without walls: paths are joined and used, links are followed wherever they lead.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes as Data;
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Files, Result, SandboxPath};

pub(super) struct PlainFiles {
    root: PathBuf,
}

fn file_error(path: &SandboxPath) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |error| {
        let code = [
            (std::io::ErrorKind::NotFound, ErrorCode::NotFound),
            (std::io::ErrorKind::InvalidInput, ErrorCode::Invalid),
        ]
        .into_iter()
        .find_map(|(kind, code)| (error.kind() == kind).then_some(code))
        .unwrap_or(ErrorCode::System);
        Error::new(code, "use a file", format!("`{path}` cannot be used")).source(error)
    }
}

fn read_entry(path: &Path) -> std::io::Result<Entry> {
    let found = path.symlink_metadata()?;
    let kind = match found.file_type() {
        kind if kind.is_symlink() => EntryKind::Symlink,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_file() => EntryKind::File,
        _ => EntryKind::Other,
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Entry { name, kind, size: found.len(), mode: found.permissions().mode() & 0o7777 })
}

impl PlainFiles {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn resolve_str(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn resolve_path(&self, path: &SandboxPath) -> PathBuf {
        self.resolve_str(path.as_str())
    }
}

fn read_range(path: &Path, offset: u64, most: u32) -> std::io::Result<Data> {
    if !path.metadata()?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::new();
    file.take(most.into()).read_to_end(&mut data)?;
    Ok(data.into())
}

fn write_file(path: &Path, data: &[u8], append: bool) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(append).write(true).truncate(!append);
    options.open(path)?.write_all(data)
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    }
}

#[async_trait]
impl Files for PlainFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        read_entry(&self.resolve_path(path)).map_err(file_error(path))
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        let entries =
            std::fs::read_dir(self.resolve_path(path)).map_err(file_error(path))?.flatten();
        entries.map(|found| read_entry(&found.path()).map_err(file_error(path))).collect()
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Data> {
        read_range(&self.resolve_path(path), offset, most).map_err(file_error(path))
    }

    async fn write(&self, path: &SandboxPath, data: Data, append: bool) -> Result<()> {
        write_file(&self.resolve_path(path), &data, append).map_err(file_error(path))
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        let mode = std::fs::Permissions::from_mode(mode & 0o777);
        std::fs::set_permissions(self.resolve_path(path), mode).map_err(file_error(path))
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        std::fs::create_dir_all(self.resolve_path(path)).map_err(file_error(path))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        std::fs::rename(self.resolve_path(from), self.resolve_path(to)).map_err(file_error(from))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        remove_tree(&self.resolve_path(path)).map_err(file_error(path))
    }
}
