//! Verbs about output and input.

use std::io::{self, Read, Write};

use crate::{Args, VerbOutcome};

/// Chunk size of a flood that names none.
const FLOOD_CHUNK_BYTES: u64 = 64 << 10;

fn open_stream(name: &str) -> Box<dyn Write> {
    if name == "stderr" { Box::new(io::stderr()) } else { Box::new(io::stdout()) }
}

fn write_stream(name: &str, data: &[u8]) -> io::Result<VerbOutcome> {
    let mut stream = open_stream(name);
    stream.write_all(data)?;
    stream.flush()?;
    Ok(VerbOutcome::Code(0))
}

/// `print STREAM TEXT`.
pub fn print_text(args: &Args) -> io::Result<VerbOutcome> {
    write_stream(args.text(0), args.text(1).as_bytes())
}

/// `print-hex STREAM HEX`.
pub fn print_hex(args: &Args) -> io::Result<VerbOutcome> {
    let digits = args.text(1).as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let data: Option<Vec<u8>> = digits.map(byte).collect();
    write_stream(args.text(0), &data.ok_or(io::ErrorKind::InvalidInput)?)
}

/// The byte of a flood at this place: no period that a chunk's size could divide.
fn pattern_byte(at: u64) -> u8 {
    (at % 251) as u8
}

/// `flood STREAM BYTES [CHUNK]`: a pattern in which every byte can be checked.
pub fn flood_output(args: &Args) -> io::Result<VerbOutcome> {
    let (total, chunk) = (args.number(1)?, args.number_or(2, FLOOD_CHUNK_BYTES)?.max(1));
    let mut stream = open_stream(args.text(0));
    let mut at = 0;
    while at < total {
        let end = total.min(at + chunk);
        let piece: Vec<u8> = (at..end).map(pattern_byte).collect();
        stream.write_all(&piece)?;
        at = end;
    }
    stream.flush()?;
    Ok(VerbOutcome::Code(0))
}

/// `interleave N`: numbered lines, in turn on both streams.
pub fn interleave_output(args: &Args) -> io::Result<VerbOutcome> {
    for number in 0..args.number(0)? {
        write_stream(
            if number % 2 == 0 { "stdout" } else { "stderr" },
            format!("{number}\n").as_bytes(),
        )?;
    }
    Ok(VerbOutcome::Code(0))
}

/// `echo`: gives its input back until it ends.
pub fn echo_stdin() -> io::Result<VerbOutcome> {
    let (mut input, mut out) = (io::stdin(), io::stdout());
    let mut buffer = vec![0; FLOOD_CHUNK_BYTES as usize];
    loop {
        let count = input.read(&mut buffer)?;
        if count == 0 {
            return Ok(VerbOutcome::Code(0));
        }
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}
