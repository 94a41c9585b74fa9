//! The state of an instance between two calls: memories, changeable globals and tables.

use std::sync::Arc;

use stockade_core::{Error, ErrorCode, Result};
use wasmtime::{Extern, Instance, Ref, Store, Val};

use super::exports::is_ours;
use crate::wasm::NAME;
use crate::wasm::state::StoreState;

/// The captured state of an instance. Clones are the same.
///
/// It fits the instance that it was taken of, and no other: a table's functions are that instance's own.
#[derive(Clone)]
pub struct CapturedInstance {
    parts: Arc<Vec<(String, ImagePart)>>,
    of: u64,
}

enum ImagePart {
    Memory(Vec<u8>),
    Global(Val),
    Table(Vec<Ref>),
}

impl std::fmt::Debug for CapturedInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image of {} parts", self.parts.len())
    }
}

fn image_error(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Invalid, "restore", what).backend(NAME)
}

impl CapturedInstance {
    /// The bytes of memory that were captured.
    pub fn bytes(&self) -> usize {
        let size = |part: &ImagePart| match part {
            ImagePart::Memory(bytes) => bytes.len(),
            ImagePart::Global(_) | ImagePart::Table(_) => 0,
        };
        self.parts.iter().map(|(_, part)| size(part)).sum()
    }

    pub(super) fn capture_from(
        store: &mut Store<StoreState>,
        instance: Instance,
        of: u64,
    ) -> Result<Self> {
        let state: Vec<(String, Extern)> = instance
            .exports(&mut *store)
            .filter(|export| is_ours(export.name()))
            .map(|export| (export.name().to_owned(), export.into_extern()))
            .collect();
        let mut parts = Vec::new();
        for (name, part) in state {
            parts.push((name, capture_part(store, part)?));
        }
        Ok(Self { parts: Arc::new(parts), of })
    }

    pub(super) fn bring_back(
        &self,
        store: &mut Store<StoreState>,
        instance: Instance,
        of: u64,
    ) -> Result<()> {
        if self.of != of {
            return Err(image_error("it was captured of another instance"));
        }
        for (name, part) in self.parts.iter() {
            let found = instance.get_export(&mut *store, name);
            let found = found.ok_or_else(|| image_error("the instance is another"))?;
            restore_part(store, found, part)?;
        }
        Ok(())
    }
}

fn capture_part(store: &mut Store<StoreState>, part: Extern) -> Result<ImagePart> {
    match part {
        Extern::Memory(memory) => Ok(ImagePart::Memory(memory.data(&*store).to_vec())),
        Extern::Global(global) => Ok(ImagePart::Global(global.get(&mut *store))),
        Extern::Table(table) => {
            let size = table.size(&*store);
            let all = (0..size).map(|at| table.get(&mut *store, at));
            let all: Option<Vec<Ref>> = all.collect();
            all.map(ImagePart::Table).ok_or_else(|| image_error("a table changed"))
        }
        Extern::Func(_) | Extern::SharedMemory(_) | Extern::Tag(_) => {
            Err(image_error("it holds state that cannot be captured"))
        }
    }
}

fn restore_part(store: &mut Store<StoreState>, into: Extern, part: &ImagePart) -> Result<()> {
    let failed = |error: wasmtime::Error| image_error(format!("{error:#}"));
    match (into, part) {
        (Extern::Memory(memory), ImagePart::Memory(bytes)) => {
            let data = memory.data_mut(&mut *store);
            let (front, rest) =
                data.split_at_mut_checked(bytes.len()).ok_or_else(|| image_error("it shrank"))?;
            front.copy_from_slice(bytes);
            // Memory never shrinks: what was added since is as it was when it was added.
            rest.fill(0);
            Ok(())
        }
        (Extern::Global(global), ImagePart::Global(value)) => {
            global.set(&mut *store, *value).map_err(failed)
        }
        (Extern::Table(table), ImagePart::Table(all)) => {
            for (at, entry) in (0..).zip(all) {
                table.set(&mut *store, at, entry.clone()).map_err(failed)?;
            }
            Ok(())
        }
        (
            Extern::Memory(_)
            | Extern::Global(_)
            | Extern::Table(_)
            | Extern::Func(_)
            | Extern::SharedMemory(_)
            | Extern::Tag(_),
            _,
        ) => Err(image_error("the instance is another")),
    }
}
