//! How the microvm backend is built from the table `[microvm]`.

use std::sync::Arc;

use serde::Deserialize;

use super::{Microvm, NAME, Options, store};
use crate::factory::{BackendFactory, TableReader, path_in, read_table};

/// The microvm backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        table: Some(TableReader {
            check: |table| Options::deserialize(table).map(drop),
            own_paths: |table| {
                let cache = path_in(table, "cache");
                cache.map(|path| (path, "the cache")).into_iter().collect()
            },
        }),
        caches: |table, _| store::cache_dirs(path_in(table, "cache")),
        typical_start: Some("0.7 s"),
        ..BackendFactory::new(NAME, |table, context| {
            // Only a caller who has asked for machines waits until the first is made.
            let options = Options { prepare: context.named, ..read_table(table)? };
            Ok(Arc::new(Microvm::with_progress(options, Arc::clone(&context.progress))))
        })
    }
}
