//! File operations. Every path is resolved by the kernel beneath its root (C-21), and whatever was
//! resolved is used by descriptor, so that a link swapped in between leads nowhere.

mod archive;
mod failure;
mod list;
mod mounts;
mod ops;
mod remove;
mod resolve;
mod unpack;
mod walk;

use std::fs::File;

pub use failure::Failure;
pub use resolve::{Roots, open_beneath};

use super::link::Link;
use crate::protocol::{FileRequest, FromAgent};

type Result<T> = std::result::Result<T, Failure>;

/// What a worker reads and writes.
pub struct Streams {
    pub output: File,
    pub input: File,
}

/// The path a request is about.
pub fn path_of<'a>(request: &FileRequest<'a>) -> &'a str {
    match request {
        FileRequest::Stat(path)
        | FileRequest::Read(path, ..)
        | FileRequest::Write(path, ..)
        | FileRequest::MakeDir(path)
        | FileRequest::SetMode(path, _)
        | FileRequest::Rename(path, _)
        | FileRequest::List(path)
        | FileRequest::Remove(path)
        | FileRequest::Replace(path, _)
        | FileRequest::TarOut(path)
        | FileRequest::TarIn(path)
        | FileRequest::Watch(path) => path,
    }
}

/// Carries out a request that takes no time, and answers it.
pub fn answer(roots: &Roots, number: u32, request: &FileRequest<'_>, link: &mut Link) {
    let done = match *request {
        FileRequest::Stat(path) => ops::stat(roots, path).map(|(stat, name)| {
            link.send(&FromAgent::FileEntry(number, ops::entry(&stat, &name)));
        }),
        FileRequest::Read(path, offset, most) => ops::read(roots, path, offset, most)
            .map(|data| link.send(&FromAgent::FileData(number, &data))),
        FileRequest::Write(path, append, data) => {
            ops::write(roots, path, append, data).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::MakeDir(path) => {
            ops::make_dir(roots, path).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::SetMode(path, mode) => {
            ops::set_mode(roots, path, mode).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::Rename(from, to) => {
            ops::rename(roots, from, to).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::List(path)
        | FileRequest::Remove(path)
        | FileRequest::Replace(path, _)
        | FileRequest::TarOut(path)
        | FileRequest::TarIn(path)
        | FileRequest::Watch(path) => Err(Failure::unsuitable(path, "is not asked for this way")),
    };
    if let Err(failure) = done {
        link.send(&failure.message(number));
    }
}

/// Carries out a request that takes its time, in a worker.
pub fn work(roots: &Roots, request: &FileRequest<'_>, streams: Streams) -> Result<()> {
    match *request {
        FileRequest::List(path) => list::list(roots, path, streams.output),
        FileRequest::Remove(path) => remove::remove(roots, path),
        FileRequest::Replace(path, with) => remove::replace(roots, path, with),
        FileRequest::TarOut(path) => archive::archive(roots, path, streams.output),
        FileRequest::TarIn(path) => unpack::unpack(roots, path, streams.input),
        FileRequest::Stat(path)
        | FileRequest::Read(path, ..)
        | FileRequest::Write(path, ..)
        | FileRequest::MakeDir(path)
        | FileRequest::SetMode(path, _)
        | FileRequest::Rename(path, _)
        | FileRequest::Watch(path) => Err(Failure::unsuitable(path, "is not asked for this way")),
    }
}
