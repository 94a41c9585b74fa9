//! Everything that arrives: framed, decoded, checked, handed to its channel. Never waits for a consumer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stockade_core::{
    Entry, EntryKind, ErrorCode, Exit, ExitStatus, Signal, Span, StartFailure, Unsent,
    clean_foreign,
};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::channel::{ChannelKind, ClientChannel, FileFailure, Finish};
use super::mux::{Closed, Mux};
use crate::protocol::{
    End, FileEntry, FileErrorKind, FileKind, FromAgent, HEADER_BYTES, Hello, MAX_FRAME,
    PROTOCOL_VERSION, StartKind, Stream, ToAgent, frame_length,
};

/// The buffer that is read into.
const READ_BUFFER_BYTES: usize = 2 * MAX_FRAME;
/// The least data that is passed on without being copied. Shorter data would keep a whole buffer
/// alive for a few bytes.
const MIN_SHARED_BYTES: usize = 32 * 1024;
/// The bits of a mode.
const MODE_BITS: u32 = 0o7777;
/// The largest file that any file system has.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// Reads until the pipe is gone or broken.
pub async fn read_messages(mux: Arc<Mux>, mut reader: impl AsyncRead + Unpin) {
    let closed = tokio::select! {
        closed = read_frames(&mux, &mut reader) => closed,
        closed = mux.wait_until_overfull() => closed,
        _ = mux.wait_until_closed() => return,
    };
    mux.fail_all(closed);
}

async fn read_frames(mux: &Mux, reader: &mut (impl AsyncRead + Unpin)) -> Closed {
    let mut buffer = BytesMut::with_capacity(READ_BUFFER_BYTES);
    loop {
        if let Err(closed) = take_frames(mux, &mut buffer) {
            return closed;
        }
        if buffer.capacity() - buffer.len() < MAX_FRAME / 2 {
            buffer.reserve(READ_BUFFER_BYTES);
        }
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return Closed::new(ErrorCode::Gone, "the agent closed the pipe"),
            Ok(_) => {}
            Err(error) => {
                let message = format!("the agent cannot be read from: {error}");
                return Closed::new(ErrorCode::Gone, message);
            }
        }
    }
}

fn take_frames(mux: &Mux, buffer: &mut BytesMut) -> Result<(), Closed> {
    while let Some(length) = frame_length(buffer).map_err(Closed::broken)? {
        if buffer.len() < HEADER_BYTES + length {
            return Ok(());
        }
        let frame = buffer.split_to(HEADER_BYTES + length).freeze();
        let body = frame.slice(HEADER_BYTES..);
        let message = FromAgent::decode(&body).map_err(Closed::broken)?;
        handle_message(mux, &body, message)?;
    }
    Ok(())
}

fn handle_message(mux: &Mux, body: &Bytes, message: FromAgent<'_>) -> Result<(), Closed> {
    if !mux.is_greeted() && !matches!(message, FromAgent::Hello(_)) {
        return Err(Closed::broken("its first frame was not Hello"));
    }
    match message {
        FromAgent::Hello(hello) => handle_hello(mux, hello),
        FromAgent::Started(number, pid) => {
            let channel = mux.find_channel(number)?;
            require_kind(&channel, ChannelKind::Run)?;
            channel.update_state(|state| state.pid = Some(pid));
            Ok(())
        }
        FromAgent::StartFailed(number, kind, _, detail) => {
            let status = ExitStatus::StartFailed(start_failure(kind, clean_foreign(detail)));
            mux.find_channel(number)?.update_state(|state| state.ended = true);
            finish_channel(mux, number, Finish::Exit(status.into()))
        }
        FromAgent::Output(number, stream, data) => {
            handle_output(mux, number, stream, share_slice(body, data))
        }
        FromAgent::Exited { channel, end, cpu_us, peak_kib, unsent: [stdout, stderr] } => {
            let exit =
                Exit { unsent: Unsent { stdout, stderr }, ..to_exit(end, cpu_us, peak_kib)? };
            finish_channel(mux, channel, Finish::Exit(exit))
        }
        FromAgent::Ended(number) => end_channel(mux, number, false),
        FromAgent::KeeperLost(number) => end_channel(mux, number, true),
        FromAgent::StdinCredit(number, amount) => mux.find_channel(number)?.grant_input(amount),
        FromAgent::FileDone(number) => finish_channel(mux, number, Finish::Done),
        FromAgent::FileEntry(number, entry) => {
            finish_channel(mux, number, Finish::Entry(to_entry(entry)))
        }
        FromAgent::FileData(number, data) => {
            finish_channel(mux, number, Finish::Data(share_slice(body, data)))
        }
        FromAgent::FileError(number, kind, _, path, detail) => {
            let failure =
                FileFailure { kind, path: clean_foreign(path), detail: clean_foreign(detail) };
            finish_channel(mux, number, Finish::Failed(failure))
        }
    }
}

fn handle_hello(mux: &Mux, hello: Hello) -> Result<(), Closed> {
    if hello.version != PROTOCOL_VERSION || (hello.max_frame as usize) < MAX_FRAME {
        let Hello { version, .. } = hello;
        return Err(Closed::broken(format_args!(
            "it speaks version {version}, not {PROTOCOL_VERSION}"
        )));
    }
    mux.note_hello()
}

fn require_kind(channel: &ClientChannel, kind: ChannelKind) -> Result<(), Closed> {
    if channel.kind == kind { Ok(()) } else { Err(Closed::broken("an answer that does not fit")) }
}

fn handle_output(mux: &Mux, number: u32, stream: Stream, data: Bytes) -> Result<(), Closed> {
    if let Some(amount) = mux.find_channel(number)?.push_output(stream, data)? {
        mux.send(&ToAgent::Credit(number, stream, amount));
    }
    Ok(())
}

/// A slice of what was read, or a copy where that is cheaper to keep.
fn share_slice(body: &Bytes, data: &[u8]) -> Bytes {
    if data.len() >= MIN_SHARED_BYTES { body.slice_ref(data) } else { Bytes::copy_from_slice(data) }
}

/// The channel's result. Comes once, and must be one that was asked for.
fn finish_channel(mux: &Mux, number: u32, finish: Finish) -> Result<(), Closed> {
    let channel = mux.find_channel(number)?;
    if !is_expected(channel.kind, &finish) {
        return Err(Closed::broken("an answer that does not fit"));
    }
    let over = channel.update_state(|state| {
        if state.finish.is_some() {
            return Err(Closed::broken("it ended a channel twice"));
        }
        if channel.kind == ChannelKind::Watch && matches!(finish, Finish::Done) {
            let twice = std::mem::replace(&mut state.confirmed, true);
            return if twice { Err(Closed::broken("it answered twice")) } else { Ok(false) };
        }
        state.finish = Some(finish);
        Ok(channel.kind != ChannelKind::Run || state.ended)
    })?;
    if over {
        mux.forget_channel(number);
    }
    Ok(())
}

fn is_expected(kind: ChannelKind, finish: &Finish) -> bool {
    match finish {
        Finish::Exit(_) => kind == ChannelKind::Run,
        Finish::Entry(_) => kind == ChannelKind::Entry,
        Finish::Data(data) => {
            matches!(kind, ChannelKind::Data(most) if data.len() <= most as usize)
        }
        Finish::Done => {
            matches!(kind, ChannelKind::Plain | ChannelKind::Stream | ChannelKind::Watch)
        }
        Finish::Failed(_) => kind != ChannelKind::Run,
        Finish::Closed(_) => true,
    }
}

/// No process of an execution is left, or a watch is over.
fn end_channel(mux: &Mux, number: u32, lost: bool) -> Result<(), Closed> {
    let channel = mux.find_channel(number)?;
    if channel.kind != ChannelKind::Watch {
        require_kind(&channel, ChannelKind::Run)?;
    }
    let over = channel.update_state(|state| {
        if state.ended {
            return Err(Closed::broken("it ended an execution twice"));
        }
        state.ended = true;
        state.lost = lost;
        if channel.kind == ChannelKind::Watch {
            state.finish = Some(Finish::Done);
        }
        Ok(state.finish.is_some())
    })?;
    if over {
        mux.forget_channel(number);
    }
    Ok(())
}

fn to_exit(end: End, cpu_us: u64, peak_kib: u64) -> Result<Exit, Closed> {
    let status = match end {
        End::Code(code) if (0..=255).contains(&code) => ExitStatus::Exited(code),
        End::Signal(number) if (1..=64).contains(&number) => ExitStatus::Signalled(Signal(number)),
        End::Code(_) | End::Signal(_) => return Err(Closed::broken("there is no such exit")),
        End::Lost => return Ok(ExitStatus::Lost("its keeper was killed from inside".into()).into()),
    };
    Ok(Exit {
        cpu_time: Some(Span::from(Duration::from_micros(cpu_us))),
        peak_memory: Some(stockade_core::Bytes(peak_kib.saturating_mul(1024))),
        ..status.into()
    })
}

fn start_failure(kind: StartKind, detail: String) -> StartFailure {
    match kind {
        StartKind::NotFound => StartFailure::NotFound(detail),
        StartKind::NotExecutable => StartFailure::NotExecutable(detail),
        StartKind::BadDirectory => StartFailure::BadDirectory(detail),
        StartKind::NoResources => StartFailure::NoResources(detail),
    }
}

/// The public form of an entry.
pub fn to_entry(entry: FileEntry<'_>) -> Entry {
    let kind = match entry.kind {
        FileKind::File => EntryKind::File,
        FileKind::Directory => EntryKind::Directory,
        FileKind::Symlink => EntryKind::Symlink,
        FileKind::Other => EntryKind::Other,
    };
    let (size, mode) = (entry.size.min(MAX_FILE_BYTES), entry.mode & MODE_BITS);
    Entry { name: entry.name.to_owned(), kind, size, mode }
}

/// The code for a kind of file error.
pub fn code_of(kind: FileErrorKind) -> ErrorCode {
    match kind {
        FileErrorKind::NotFound => ErrorCode::NotFound,
        FileErrorKind::PathEscapes => ErrorCode::PathEscapes,
        FileErrorKind::Denied => ErrorCode::Denied,
        FileErrorKind::Unsuitable => ErrorCode::Invalid,
        FileErrorKind::TooLarge => ErrorCode::TooLarge,
        FileErrorKind::System => ErrorCode::System,
    }
}
