//! How the docker backend is built from the table `[docker]`.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::{Docker, DockerOptions, NAME};
use crate::factory::{BackendFactory, TableReader, path_in, read_table, throttle_progress};

/// How often it is reported that an image is still on its way.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The docker backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        table: Some(TableReader {
            check: |table| DockerOptions::deserialize(table).map(drop),
            own_paths: |table| {
                let socket = path_in(table, "socket");
                socket.map(|path| (path, "the container engine's socket")).into_iter().collect()
            },
        }),
        shows_host: true,
        typical_start: Some("0.4 s"),
        ..BackendFactory::new(NAME, |table, context| {
            let progress = throttle_progress(Arc::clone(&context.progress), PROGRESS_INTERVAL);
            Ok(Arc::new(Docker::pulling(read_table(table)?, context.pull, progress)))
        })
    }
}
