//! Replacing a file in one step: written beside it under another name, then renamed.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{EntryKind, Error, ErrorCode, Files, FilesExt, SandboxPath};

use crate::ToolError;
use crate::place::ToolPlace;

/// The permissions of the regular file at a path, or nothing where there is none. Anything else is
/// refused by name.
pub(crate) async fn read_existing_mode(
    files: &dyn Files,
    path: &SandboxPath,
) -> Result<Option<u32>, ToolError> {
    let entry = match files.stat(path).await {
        Ok(entry) => entry,
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let what = match entry.kind {
        EntryKind::File => return Ok(Some(entry.mode)),
        EntryKind::Symlink => "is a symbolic link; write to the file it points to",
        EntryKind::Directory => "is a directory",
        EntryKind::Other => "is a device, fifo or socket",
    };
    Err(ToolError::new(ErrorCode::Invalid, format!("`{path}` {what}")))
}

/// Puts a file with this content in place, making the directories above it. Readers see the old one or
/// the new one; if it fails, the old one is there still.
pub(crate) async fn replace_file(
    files: &dyn Files,
    path: &SandboxPath,
    content: Bytes,
    mode: u32,
) -> Result<(), ToolError> {
    let (parent, name) = split_path(path)?;
    if let Some(parent) = parent {
        let parent: SandboxPath = parent.parse()?;
        files.make_dir(&parent).await.map_err(|error| file_error(path, error))?;
    }
    let temporary = temporary_path(parent, name)?;
    let placed = write_and_rename(files, path, &temporary, content, mode).await;
    if placed.is_err() {
        // What could not be written cannot always be removed either; the first failure counts.
        let _ = files.remove(&temporary).await;
    }
    placed.map_err(|error| file_error(path, error))
}

/// The same, to its end even if the caller gives up: stopping would only leave a temporary file.
pub(crate) async fn replace_file_uncancelled(
    place: Arc<ToolPlace>,
    path: SandboxPath,
    content: Bytes,
    mode: u32,
) -> Result<(), ToolError> {
    let written =
        tokio::spawn(async move { replace_file(place.files()?, &path, content, mode).await });
    written
        .await
        .unwrap_or_else(|_| Err(ToolError::new(ErrorCode::System, "writing was interrupted")))
}

async fn write_and_rename(
    files: &dyn Files,
    path: &SandboxPath,
    temporary: &SandboxPath,
    content: Bytes,
    mode: u32,
) -> Result<(), Error> {
    files.write_all(temporary, content).await?;
    files.set_mode(temporary, mode).await?;
    files.rename(temporary, path).await
}

/// A failure that names the file it is about rather than the temporary one.
fn file_error(path: &SandboxPath, error: Error) -> ToolError {
    let told = ToolError::from(error);
    if told.message.contains(&format!("`{path}`")) {
        return told;
    }
    ToolError { message: format!("`{path}`: {}", told.message), ..told }
}

/// The directory, if one is named, and the name.
fn split_path(path: &SandboxPath) -> Result<(Option<&str>, &str), ToolError> {
    let whole = path.as_str();
    let (parent, name) = match whole.rsplit_once('/') {
        Some(("", name)) => (Some("/"), name),
        Some((parent, name)) => (Some(parent), name),
        None => (None, whole),
    };
    if matches!(name, "" | "." | "..") {
        return Err(ToolError::new(ErrorCode::Invalid, format!("`{path}` names no file")));
    }
    Ok((parent, name))
}

/// A random name: a guest cannot guess it, and so cannot have put anything in the way before.
fn temporary_path(parent: Option<&str>, name: &str) -> Result<SandboxPath, ToolError> {
    let mut random = [0u8; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(random.len()) {
        return Err(ToolError::new(ErrorCode::System, "the kernel gave no random bytes"));
    }
    let random = u128::from_ne_bytes(random);
    let short: String = name.chars().take(40).collect();
    let dir = parent.map_or(String::new(), |parent| format!("{}/", parent.trim_end_matches('/')));
    Ok(format!("{dir}.{short}.{random:032x}.tmp").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_name_is_beside_the_file_and_short_enough() {
        let long = "x".repeat(255);
        for (parent, name, start) in
            [(None, "a", ".a."), (Some("d/e"), "a", "d/e/.a."), (Some("/"), "a", "/.a.")]
        {
            assert!(temporary_path(parent, name).unwrap().as_str().starts_with(start));
        }
        assert!(temporary_path(None, &long).unwrap().as_str().len() < 255);
        assert!(temporary_path(None, &"😀".repeat(60)).unwrap().as_str().len() < 255);
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        for path in ["/", ".", "a/..", "a/"] {
            assert!(split_path(&path.parse().unwrap()).is_err(), "{path}");
        }
    }
}
