//! `stockade-unpack REQUEST`: applies the layer on its standard input beneath its working directory, and prints
//! one line: what was applied, or why it was not. Nothing else is read or written.

use std::io::Write;
use std::process::ExitCode;

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_unpack::{UnpackError, UnpackReply, UnpackRequest, Unpacked, apply_layer};

fn main() -> ExitCode {
    let request = std::env::args().nth(1).and_then(|text| serde_json::from_str(&text).ok());
    let Some(request) = request else {
        return ExitCode::from(64);
    };
    let reply = match apply_here(&request) {
        Ok(unpacked) => UnpackReply::Unpacked(unpacked),
        Err(UnpackError::Refused(reason)) => UnpackReply::Refused(reason),
        Err(error @ UnpackError::Io { .. }) => UnpackReply::Failed(error.to_string()),
    };
    match print_reply(&reply) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(74),
    }
}

fn apply_here(request: &UnpackRequest) -> Result<Unpacked, UnpackError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, ".", flags, Mode::empty()).map_err(|errno| UnpackError::Io {
        step: "opened",
        name: "the working directory".to_owned(),
        source: errno.into(),
    })?;
    apply_layer(std::io::stdin().lock(), request, root)
}

fn print_reply(reply: &UnpackReply) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, reply)?;
    out.write_all(b"\n")?;
    out.flush()
}
