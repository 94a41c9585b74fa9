//! Looking at a module before anything is compiled: what would cost more than it may is refused by name.

use bytes::Bytes as Data;
use wasmparser::{Parser, Payload};

/// Largest file that is taken for a program.
pub(super) const MAX_PROGRAM_BYTES: u64 = 128 << 20;
/// The largest one in text form.
const LARGEST_TEXT: usize = 16 << 20;
/// Most functions that are compiled.
const MAX_FUNCTIONS: u64 = 200_000;
/// Most code in one function: compiling takes more than proportionally longer.
const MAX_FUNCTION_BYTES: usize = 4 << 20;
/// Most entries of a table.
pub(super) const MAX_TABLE_ENTRIES: u64 = 100_000;
/// Most memories, and most tables, of one module.
pub(super) const MAX_MODULE_PARTS: u32 = 16;
/// Deepest nesting of components.
const MAX_COMPONENT_DEPTH: usize = 16;

/// Why a file is no program that can be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnfitProgram {
    /// It is something else.
    #[error("{0}")]
    Malformed(String),
    /// It would cost too much.
    #[error("{0}")]
    TooMuch(String),
}

/// A module or a component, in binary form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// A core module.
    Core,
    /// A component.
    Component,
}

/// The binary form of what was given.
pub(super) fn to_binary(given: Data) -> Result<Data, UnfitProgram> {
    if given.starts_with(b"\0asm") {
        return Ok(given);
    }
    if !looks_like_text(&given) {
        return Err(UnfitProgram::Malformed("is neither a WebAssembly module nor its text".into()));
    }
    if given.len() > LARGEST_TEXT {
        return Err(UnfitProgram::TooMuch(format!("has more than {LARGEST_TEXT} bytes of text")));
    }
    match wat::parse_bytes(&given) {
        Ok(binary) => Ok(binary.into_owned().into()),
        Err(error) => Err(UnfitProgram::Malformed(first_line(&error.to_string()))),
    }
}

/// Text begins with a parenthesis, after blanks and comments.
fn looks_like_text(given: &[u8]) -> bool {
    let first = given.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'(' | b';'))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Counts what is in it; everything else is found by validation when it is compiled.
#[expect(clippy::wildcard_enum_match_arm, reason = "other sections are left to validation")]
pub(super) fn validate_binary(binary: &[u8]) -> Result<ProgramKind, UnfitProgram> {
    let malformed = |error: wasmparser::BinaryReaderError| {
        UnfitProgram::Malformed(first_line(&error.to_string()))
    };
    let mut kind = None;
    let (mut functions, mut depth) = (0_u64, 0_usize);
    for payload in Parser::new(0).parse_all(binary) {
        match payload.map_err(malformed)? {
            Payload::Version { encoding, .. } => {
                kind.get_or_insert(match encoding {
                    wasmparser::Encoding::Module => ProgramKind::Core,
                    wasmparser::Encoding::Component => ProgramKind::Component,
                });
            }
            Payload::MemorySection(memories) if memories.count() > MAX_MODULE_PARTS => {
                return Err(UnfitProgram::TooMuch(format!(
                    "has more than {MAX_MODULE_PARTS} memories"
                )));
            }
            Payload::TableSection(tables) => {
                if tables.count() > MAX_MODULE_PARTS {
                    return Err(UnfitProgram::TooMuch(format!(
                        "has more than {MAX_MODULE_PARTS} tables"
                    )));
                }
                for table in tables {
                    if table.map_err(malformed)?.ty.initial > MAX_TABLE_ENTRIES {
                        return Err(UnfitProgram::TooMuch(format!(
                            "has a table of more than {MAX_TABLE_ENTRIES} entries"
                        )));
                    }
                }
            }
            Payload::FunctionSection(section) => functions += u64::from(section.count()),
            Payload::CodeSectionEntry(body) if body.as_bytes().len() > MAX_FUNCTION_BYTES => {
                return Err(UnfitProgram::TooMuch(format!(
                    "has a function of more than {MAX_FUNCTION_BYTES} bytes"
                )));
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        if functions > MAX_FUNCTIONS {
            return Err(UnfitProgram::TooMuch(format!("has more than {MAX_FUNCTIONS} functions")));
        }
        if depth > MAX_COMPONENT_DEPTH {
            return Err(UnfitProgram::TooMuch("has components too deep in each other".into()));
        }
    }
    kind.ok_or_else(|| UnfitProgram::Malformed("is empty".into()))
}
