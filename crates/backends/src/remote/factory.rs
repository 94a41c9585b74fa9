//! How the remote backend is built from the table `[remote]`.

use std::sync::Arc;

use serde::Deserialize;

use super::{DaemonBackend, DaemonOptions, DaemonUrl, NAME};
use crate::factory::{BackendFactory, TableReader, read_table};

/// The remote backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        table: Some(TableReader {
            check: |table| DaemonOptions::deserialize(table).map(drop),
            own_paths: |table| {
                let options: DaemonOptions = read_table(table.clone()).unwrap_or_default();
                let token = options.token_file.map(|file| (file, "the token for a daemon"));
                let socket = options.url.and_then(|url| match url {
                    DaemonUrl::Socket(path) => Some((path, "the socket of a daemon")),
                    DaemonUrl::Loopback(_) | DaemonUrl::Tls(_) => None,
                });
                token.into_iter().chain(socket).collect()
            },
        }),
        typical_start: Some("0.1 s"),
        ..BackendFactory::new(NAME, |table, _| Ok(Arc::new(DaemonBackend::new(read_table(table)?))))
    }
}
