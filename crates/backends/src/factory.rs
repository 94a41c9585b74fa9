//! How a backend is built from its table of the configuration, the same way for each: a registry is a list of
//! these and knows nothing else about any backend.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use stockade_core::{Backend, BackendName, PullPolicy};
use stockade_fs::CacheDir;
use toml::de::ValueDeserializer;

/// Takes a line about something slow: an image on its way, a machine that is prepared.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// Builds a backend from its table.
pub type Build = fn(toml::Table, &BuildContext) -> Result<Arc<dyn Backend>, toml::de::Error>;

/// What a registry knows of one backend. Nothing is measured or touched by any of it.
pub struct BackendFactory {
    /// Its name, which is also that of its table in the configuration.
    pub name: BackendName,
    /// Builds it.
    pub build: Build,
    /// Its table, if it has one.
    pub table: Option<TableReader>,
    /// What it keeps to save work and makes again where it is missing, by its table and the state directory.
    pub caches: fn(&toml::Table, &Path) -> Vec<CacheDir>,
    /// Whether its sandboxes have namespaces of their own.
    pub namespaces: bool,
    /// Whether it can show programs of this host, so that the host's toolchains are worth looking for.
    pub shows_host: bool,
    /// Whether it has no walls and is left out unless it is named.
    pub only_by_name: bool,
    /// How long a sandbox takes to start once everything is prepared: an order of magnitude, not measured on this
    /// host.
    pub typical_start: Option<&'static str>,
}

/// How a backend's table is read where more than the backend itself wants to know.
pub struct TableReader {
    /// Refuses what the backend cannot read. Errors name the place in the text.
    pub check: fn(ValueDeserializer<'_>) -> Result<(), toml::de::Error>,
    /// What it names on this host that no guest may see, and what that is (C-06).
    pub own_paths: fn(&toml::Table) -> Vec<(PathBuf, &'static str)>,
}

/// What a backend is given beside its table.
#[derive(Clone)]
pub struct BuildContext {
    /// Whether the caller has named this backend: only then may building or measuring it take long.
    pub named: bool,
    /// The engine's state directory, below which a backend may keep a cache.
    pub state_dir: Option<PathBuf>,
    /// When a store of images of the backend's own asks a registry.
    pub pull: PullPolicy,
    /// Where the progress of what takes long is shown.
    pub progress: Progress,
    /// Whether a backend without a kernel boundary runs its programs in workers inside native walls.
    pub isolation: Isolation,
    /// The program that is such a worker; absent: there is none.
    pub worker: Option<WorkerProgram>,
}

/// Whether WebAssembly runs in workers inside native walls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Where walls are to be had.
    #[default]
    Usual,
    /// Always, or not at all.
    Demanded,
    /// In this process.
    Declined,
}

/// A program that becomes a worker when it is started with these arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub role: Vec<String>,
}

impl Default for BuildContext {
    fn default() -> Self {
        Self {
            named: false,
            state_dir: None,
            pull: PullPolicy::default(),
            progress: Arc::new(|_| {}),
            isolation: Isolation::default(),
            worker: None,
        }
    }
}

impl BackendFactory {
    /// A backend with walls that takes no settings.
    pub fn new(name: BackendName, build: Build) -> Self {
        Self {
            name,
            build,
            table: None,
            caches: |_, _| Vec::new(),
            namespaces: true,
            shows_host: false,
            only_by_name: false,
            typical_start: None,
        }
    }
}

/// Reads a table that was checked before, or refuses it.
pub fn read_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, toml::de::Error> {
    T::deserialize(toml::Value::Table(table))
}

/// The path that a table has under this key.
pub fn path_in(table: &toml::Table, key: &str) -> Option<PathBuf> {
    table.get(key).and_then(toml::Value::as_str).map(|path| Path::new(path).to_owned())
}

/// Passes on one line in each interval and drops the others.
pub fn throttle_progress(progress: Progress, interval: Duration) -> Progress {
    let last = Mutex::new(None::<Instant>);
    Arc::new(move |line| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= interval) {
            *last = Some(Instant::now());
            progress(line);
        }
    })
}
