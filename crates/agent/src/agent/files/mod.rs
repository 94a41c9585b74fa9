//! File operations. Every path is resolved by the kernel beneath its root (C-21), and the result is used by
//! descriptor, so that a link swapped in between leads nowhere.

mod archive;
mod failure;
mod list;
mod ops;
mod remove;
mod resolve;
mod unpack;

use std::fs::File;

pub use failure::OperationFailure;
pub use resolve::Roots;

use super::link::Link;
use crate::protocol::{FileRequest, FromAgent};

type Result<T> = std::result::Result<T, OperationFailure>;

/// What a worker reads and writes.
pub struct WorkerStreams {
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
pub fn answer_request(roots: &Roots, number: u32, request: &FileRequest<'_>, link: &mut Link) {
    let done = match *request {
        FileRequest::Stat(path) => ops::stat_path(roots, path).map(|(stat, name)| {
            link.send(&FromAgent::FileEntry(number, ops::to_file_entry(&stat, &name)));
        }),
        FileRequest::Read(path, offset, most) => ops::read_range(roots, path, offset, most)
            .map(|data| link.send(&FromAgent::FileData(number, &data))),
        FileRequest::Write(path, append, data) => ops::write_file(roots, path, append, data)
            .map(|()| link.send(&FromAgent::FileDone(number))),
        FileRequest::MakeDir(path) => {
            ops::make_dir(roots, path).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::SetMode(path, mode) => {
            ops::set_mode(roots, path, mode).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::Rename(from, to) => {
            ops::rename_path(roots, from, to).map(|()| link.send(&FromAgent::FileDone(number)))
        }
        FileRequest::List(path)
        | FileRequest::Remove(path)
        | FileRequest::Replace(path, _)
        | FileRequest::TarOut(path)
        | FileRequest::TarIn(path)
        | FileRequest::Watch(path) => {
            Err(OperationFailure::unsuitable(path, "is not supported by this request"))
        }
    };
    if let Err(failure) = done {
        link.send(&failure.to_message(number));
    }
}

/// Carries out a request that takes its time, in a worker.
pub fn run_request(roots: &Roots, request: &FileRequest<'_>, streams: WorkerStreams) -> Result<()> {
    match *request {
        FileRequest::List(path) => list::write_listing(roots, path, streams.output),
        FileRequest::Remove(path) => remove::remove_path(roots, path),
        FileRequest::Replace(path, with) => remove::replace_contents(roots, path, with),
        FileRequest::TarOut(path) => archive::write_archive(roots, path, streams.output),
        FileRequest::TarIn(path) => unpack::unpack_archive(roots, path, streams.input),
        FileRequest::Stat(path)
        | FileRequest::Read(path, ..)
        | FileRequest::Write(path, ..)
        | FileRequest::MakeDir(path)
        | FileRequest::SetMode(path, _)
        | FileRequest::Rename(path, _)
        | FileRequest::Watch(path) => {
            Err(OperationFailure::unsuitable(path, "is not supported by this request"))
        }
    }
}
