//! Makes all of a module's state visible from outside: every memory, table and changeable global gets an
//! export of this backend's own, so that it can be captured and brought back. The program cannot tell.

use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

/// Prefix of these exports' names.
const STATE_EXPORT_PREFIX: &str = "stockade:state:";

/// Whether an export is one of these.
pub(super) fn is_ours(name: &str) -> bool {
    name.starts_with(STATE_EXPORT_PREFIX)
}

/// How many of each there are, imported ones first.
#[derive(Default)]
struct PartCounts {
    memories: u32,
    tables: u32,
    globals: u32,
    changeable: Vec<u32>,
    imported: (u32, u32),
}

/// The same module with its state exported.
pub(super) fn export_state(binary: &[u8]) -> wasmtime::Result<Vec<u8>> {
    let mut exports = ExportSection::new();
    let counts = count_parts(binary, &mut exports)?;
    let (memories, tables) = counts.imported;
    let mut number = 0;
    let mut add = |kind, index| {
        exports.export(&format!("{STATE_EXPORT_PREFIX}{number}"), kind, index);
        number += 1;
    };
    (memories..counts.memories).for_each(|index| add(ExportKind::Memory, index));
    (tables..counts.tables).for_each(|index| add(ExportKind::Table, index));
    counts.changeable.iter().for_each(|index| add(ExportKind::Global, *index));
    rebuild_module(binary, &exports)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other sections hold no state")]
fn count_parts(binary: &[u8], exports: &mut ExportSection) -> wasmtime::Result<PartCounts> {
    let mut counts = PartCounts::default();
    for payload in Parser::new(0).parse_all(binary) {
        match payload? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    match import?.ty {
                        TypeRef::Memory(_) => counts.memories += 1,
                        TypeRef::Table(_) => counts.tables += 1,
                        TypeRef::Global(_) => counts.globals += 1,
                        TypeRef::Func(_) | TypeRef::FuncExact(_) | TypeRef::Tag(_) => {}
                    }
                }
                counts.imported = (counts.memories, counts.tables);
            }
            Payload::MemorySection(memories) => counts.memories += memories.count(),
            Payload::TableSection(tables) => counts.tables += tables.count(),
            Payload::GlobalSection(globals) => {
                for global in globals {
                    if global?.ty.mutable {
                        counts.changeable.push(counts.globals);
                    }
                    counts.globals += 1;
                }
            }
            Payload::ExportSection(own) => {
                for export in own {
                    let export = export?;
                    exports.export(export.name, export_kind(export.kind), export.index);
                }
            }
            _ => {}
        }
    }
    Ok(counts)
}

fn export_kind(kind: ExternalKind) -> ExportKind {
    match kind {
        ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
        ExternalKind::Table => ExportKind::Table,
        ExternalKind::Memory => ExportKind::Memory,
        ExternalKind::Global => ExportKind::Global,
        ExternalKind::Tag => ExportKind::Tag,
    }
}

/// Identifier of the export section in the binary format; sections follow in the order of theirs.
const EXPORT_SECTION_ID: u8 = 7;

/// Copies every section as it is, with other exports in their place.
fn rebuild_module(binary: &[u8], exports: &ExportSection) -> wasmtime::Result<Vec<u8>> {
    let mut module = Module::new();
    let mut added = false;
    for payload in Parser::new(0).parse_all(binary) {
        let payload = payload?;
        let Some((id, range)) = payload.as_section() else { continue };
        if !added && (id == EXPORT_SECTION_ID || (id > EXPORT_SECTION_ID && id < 12)) {
            module.section(exports);
            added = true;
        }
        if id != EXPORT_SECTION_ID {
            let data = binary.get(range).unwrap_or_default();
            module.section(&RawSection { id, data });
        }
    }
    if !added {
        module.section(exports);
    }
    Ok(module.finish())
}
