//! How the ssh backend is built from the table `[ssh]`.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::Error as _;

use super::{Host, NAME, Ssh, upload};
use crate::factory::{BackendFactory, TableReader, read_table};

/// Other hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SshSettings {
    /// Those that sandboxes may be built on.
    pub hosts: Vec<Host>,
    /// The `stockade` that a teleport uses there; absent: the one in PATH.
    pub program: Option<PathBuf>,
}

/// The ssh backend's line in a registry.
pub fn factory() -> BackendFactory {
    BackendFactory {
        table: Some(TableReader {
            check: |table| check_hosts(&SshSettings::deserialize(table)?),
            own_paths: |table| {
                let settings: SshSettings = read_table(table.clone()).unwrap_or_default();
                let files = settings.hosts.into_iter().filter_map(|host| host.config);
                files.map(|file| (file, "the configuration of a host")).collect()
            },
        }),
        caches: |_, _| upload::cache_dirs(),
        typical_start: Some("0.15 s"),
        ..BackendFactory::new(NAME, |table, _| {
            Ok(Arc::new(Ssh::new(read_table::<SshSettings>(table)?.hosts)))
        })
    }
}

fn check_hosts(settings: &SshSettings) -> Result<(), toml::de::Error> {
    let wrong = settings.hosts.iter().find_map(|host| Some((host, host.problem()?)));
    match wrong {
        Some((host, problem)) => {
            let name = host.name.escape_debug();
            Err(toml::de::Error::custom(format!("ssh.hosts: `{name}` {problem}")))
        }
        None => Ok(()),
    }
}
