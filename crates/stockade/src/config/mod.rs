//! Settings from the system's file, the user's file and the environment; later ones win. They never come from the
//! workspace: what a guest can write must not decide how it is walled in.
//!
//! The table of a backend is read by the backend, and the keys of the command line by the command line.

mod network;
mod read;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade_core::{
    BackendChoice, BackendName, Boundary, Bytes, Error, Limits, Millicores, Result, SandboxSpec,
    TenantName, Workspace,
};
use stockade_engine::{EngineConfig, OwnPath, Quota, StateDir};

use crate::images::{ImageSettings, PullPolicy};
use crate::pools::PoolSetting;
use crate::registry;

use network::NetworkSetting;

pub use read::{ConfigSource, load_sources};

const READ_OPERATION: &str = "read the configuration";
/// Directory in a state directory for those of private daemons of the Python package.
const PRIVATE_DAEMONS_DIR: &str = "python";
const SYSTEM_CONFIG_PATH: &str = "/etc/stockade/config.toml";

/// The backend whose walls a daemon builds.
const DAEMON_BACKEND: BackendName = BackendName::literal("remote");
const DAEMON_URL_KEY: &str = "url";
const DAEMON_TOKEN_KEY: &str = "tokenFile";
const DAEMON_CA_KEY: &str = "caFile";

/// Keys of the configuration that the command line reads: a library passes them on unread.
const FRONT_END_KEYS: [&str; 6] =
    ["approval", "cache", "cacheLimit", "profile", "serve", "toolchain"];

/// Reads the front end's keys of one file or variable, each time it is called over those before.
pub type FrontEndReader<'a> = dyn FnMut(toml::Deserializer<'_>) -> Result<(), toml::de::Error> + 'a;

/// What is configured. Absent: not set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Who builds the walls.
    pub backend: Option<BackendChoice>,
    /// Boundaries that are accepted.
    boundaries: Option<BTreeSet<Boundary>>,
    /// The tenant that commands are run for.
    pub tenant: Option<TenantName>,
    /// Limits of every sandbox.
    pub limits: Limits,
    /// Whether a limit that is named and can only be watched is refused.
    pub strict: Option<bool>,
    /// Where journal and leases live.
    state_dir: Option<PathBuf>,
    /// What each tenant may use at once.
    quotas: BTreeMap<TenantName, QuotaSetting>,
    /// What every other tenant may use at once.
    default_quota: Option<QuotaSetting>,
    /// Sandboxes that a server keeps ready. A later file's take the place of an earlier one's.
    pool: Option<Vec<PoolSetting>>,
    /// How other hosts are reached.
    network: NetworkSetting,
    /// Where images come from and are kept.
    images: ImageSettings,
    /// The table of each backend that has one, by its name.
    #[serde(skip)]
    tables: BTreeMap<String, toml::Table>,
    /// The token that the environment names, for whichever daemon is used.
    #[serde(skip)]
    daemon_token: Option<String>,
    /// The file of authorities that the environment names, for whichever daemon is used.
    #[serde(skip)]
    daemon_ca: Option<String>,
    /// Package caches that guests of this process may see.
    #[serde(skip)]
    guest_caches: Vec<PathBuf>,
    /// Private files of a front end, each with what it is.
    #[serde(skip)]
    private_files: Vec<(PathBuf, &'static str)>,
}

/// What a tenant may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct QuotaSetting {
    /// Live sandboxes.
    sandboxes: Option<u32>,
    /// Executions at once.
    executions: Option<u32>,
    /// Sandboxes and executions that are started within a minute.
    starts_per_minute: Option<u32>,
    /// Memory of the live sandboxes, by their limits added up.
    memory: Option<Bytes>,
    /// What they write to disk, by their limits added up.
    disk: Option<Bytes>,
    /// Their processes and threads, by their limits added up.
    processes: Option<u32>,
    /// Their share of processor time, by their limits added up.
    cpus: Option<Millicores>,
    /// Processor time of its executions within an hour.
    cpu_seconds_per_hour: Option<u32>,
    /// Connections to other hosts at once.
    connections: Option<u32>,
    /// Connections to other hosts that begin within a minute.
    connections_per_minute: Option<u32>,
    /// Bytes that its sandboxes send and receive within an hour.
    egress_bytes_per_hour: Option<Bytes>,
}

impl From<QuotaSetting> for Quota {
    fn from(setting: QuotaSetting) -> Self {
        Self {
            sandboxes: setting.sandboxes,
            executions: setting.executions,
            starts_per_minute: setting.starts_per_minute,
            memory: setting.memory,
            disk: setting.disk,
            processes: setting.processes,
            cpus: setting.cpus,
            cpu_seconds_per_hour: setting.cpu_seconds_per_hour,
            connections: setting.connections,
            connections_per_minute: setting.connections_per_minute,
            egress_bytes_per_hour: setting.egress_bytes_per_hour,
        }
    }
}

impl Settings {
    /// Reads everything there is, except what lies in the workspace. What is ignored is told to `note`.
    pub fn load(workspace: Option<&Workspace>, note: &dyn Fn(&str)) -> Result<Self> {
        Self::load_with(workspace, note, &mut |_| Ok(()))
    }

    /// The same for a front end that reads keys of its own.
    pub fn load_with(
        workspace: Option<&Workspace>,
        note: &dyn Fn(&str),
        front_end: &mut FrontEndReader<'_>,
    ) -> Result<Self> {
        let mut settings = Self::default();
        for file in config_files() {
            if let Some(text) = read::read_trusted_file(&file, workspace, note)? {
                settings = read::parse_settings(&file, &text, front_end)?.merge_over(settings);
            }
        }
        Ok(variables::from_env(std::env::vars_os(), note, front_end)?.merge_over(settings))
    }

    /// These settings, with the state in this directory.
    #[must_use]
    pub fn with_state_dir(self, dir: impl Into<PathBuf>) -> Self {
        Self { state_dir: Some(dir.into()), ..self }
    }

    /// These settings, with sandboxes built by the daemon at this URL.
    #[must_use]
    pub fn with_daemon(mut self, url: &str) -> Self {
        self.set_daemon_url(url);
        self.backend = Some(BackendChoice::Named(DAEMON_BACKEND));
        self
    }

    /// These settings, with sandboxes built by no other daemon: for one that is a daemon, and may be the same.
    #[must_use]
    pub fn without_daemon(mut self) -> Self {
        self.tables.remove(DAEMON_BACKEND.as_str());
        self
    }

    fn set_daemon_url(&mut self, url: &str) {
        let table = self.tables.entry(DAEMON_BACKEND.to_string()).or_default();
        let later = toml::Table::from_iter([(DAEMON_URL_KEY.to_owned(), url.into())]);
        merge_table(DAEMON_BACKEND.as_str(), table, later);
    }

    /// These settings, with registries asked by this policy.
    #[must_use]
    pub fn with_pull(mut self, policy: PullPolicy) -> Self {
        self.images.pull = Some(policy);
        self
    }

    /// These settings, with a package cache below [`cache_dir`] that guests may see.
    #[must_use]
    pub fn with_guest_cache(mut self, dir: impl Into<PathBuf>) -> Self {
        self.guest_caches.push(dir.into());
        self
    }

    /// These settings, with a file that no guest may see; `what` it is stands in refusals: "the key of the daemon".
    #[must_use]
    pub fn with_private_file(mut self, file: impl Into<PathBuf>, what: &'static str) -> Self {
        self.private_files.push((file.into(), what));
        self
    }

    /// Where images come from and are kept.
    pub const fn images(&self) -> &ImageSettings {
        &self.images
    }

    /// A spec with everything that is configured for every sandbox.
    pub fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            backend: self.backend.clone().unwrap_or_default(),
            boundaries: self.boundaries(),
            tenant: self.tenant.clone().unwrap_or_default(),
            limits: self.limits,
            strict: self.strict.unwrap_or_default(),
            ..SandboxSpec::default()
        }
    }

    /// Boundaries that are accepted; none: any that makes a security claim.
    pub fn boundaries(&self) -> BTreeSet<Boundary> {
        self.boundaries.clone().unwrap_or_default()
    }

    /// Sandboxes that a server keeps ready.
    pub fn pools(&self) -> &[PoolSetting] {
        self.pool.as_deref().unwrap_or_default()
    }

    /// The table of a backend; empty if nothing is set in it.
    pub fn backend_table(&self, name: &BackendName) -> toml::Table {
        let mut table = self.tables.get(name.as_str()).cloned().unwrap_or_default();
        if *name == DAEMON_BACKEND {
            let files = [(DAEMON_TOKEN_KEY, &self.daemon_token), (DAEMON_CA_KEY, &self.daemon_ca)];
            for (key, file) in files {
                table.extend(file.clone().map(|file| (key.to_owned(), file.into())));
            }
        }
        table
    }

    /// Where journal and leases live.
    pub fn state_dir(&self) -> Result<PathBuf> {
        match &self.state_dir {
            Some(dir) => Ok(dir.clone()),
            None => StateDir::default_location(|name| std::env::var_os(name)).map_err(|error| {
                Error::new(error.code(), error.operation(), error.message())
                    .remedy("set HOME, XDG_STATE_HOME or STOCKADE_STATE_DIR")
            }),
        }
    }

    /// What the engine is opened with.
    pub fn engine(&self) -> Result<EngineConfig> {
        Ok(EngineConfig {
            quotas: self.quotas.iter().map(|(name, set)| (name.clone(), (*set).into())).collect(),
            default_quota: self.default_quota.map(Quota::from).unwrap_or_default(),
            own_paths: self.own_paths(),
            home: env_path("HOME"),
            shared_dirs: [env_path("TMPDIR"), env_path("XDG_RUNTIME_DIR")]
                .into_iter()
                .flatten()
                .collect(),
            resolver: self.network.resolver(),
            upstream_proxy: self.network.upstream_proxy(),
            trust: self.network.trust(),
            egress_limits: self.network.egress_limits(),
            guest_caches: self.guest_caches.clone(),
            ..EngineConfig::at(self.state_dir()?)
        })
    }

    /// What no guest may see beside the state directory: a writer of the configuration runs code on the
    /// host with the next command, and a process that reaches a connection's socket is on the other host.
    fn own_paths(&self) -> Vec<OwnPath> {
        let own = |what| move |path: PathBuf| OwnPath::fixed(path, what);
        // The directory, where a file may yet be made, and the file, which may be a link elsewhere.
        let configuration =
            config_files().flat_map(|file| [file.parent().map(Path::to_owned), Some(file)]);
        let runtime = PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
        let sockets = env_path("XDG_RUNTIME_DIR").into_iter().chain([runtime]);
        let sockets = sockets.map(|dir| dir.join("stockade-ssh"));
        let configuration = configuration.flatten().map(own("the configuration"));
        configuration
            .chain(cache_dir().map(own("the cache")))
            .chain(sockets.map(own("the sockets of connections")))
            .chain(self.named_paths().map(|(path, what)| OwnPath::fixed(path, what)))
            .chain(self.find_outer_state().map(own("a state directory")))
            .collect()
    }

    /// The state directory that this one lies in, if this is that of a private daemon of the Python package.
    fn find_outer_state(&self) -> Option<PathBuf> {
        let state = self.state_dir().ok()?;
        let outer = state.parent().filter(|dir| dir.ends_with(PRIVATE_DAEMONS_DIR))?.parent()?;
        let is_state = ["journal", "leases"].iter().all(|part| outer.join(part).is_dir());
        is_state.then(|| outer.to_owned())
    }

    /// What the tables of backends, of images and of the network, and the front end, name of the host.
    fn named_paths(&self) -> impl Iterator<Item = (PathBuf, &'static str)> {
        let private = self.private_files.iter().cloned().chain(self.network.own_paths());
        self.backends_paths().into_iter().chain(self.images.own_paths()).chain(private)
    }

    /// What the tables of backends name of the host.
    fn backends_paths(&self) -> Vec<(PathBuf, &'static str)> {
        let named = registry::factories().into_iter().filter_map(|factory| {
            let table = self.backend_table(&factory.name);
            Some((factory.table?.own_paths)(&table))
        });
        named.flatten().collect()
    }

    /// These settings, with the ones left out taken from `earlier`.
    fn merge_over(self, earlier: Self) -> Self {
        let mut quotas = earlier.quotas;
        quotas.extend(self.quotas);
        let mut tables = earlier.tables;
        for (name, table) in self.tables {
            merge_table(&name, tables.entry(name.clone()).or_default(), table);
        }
        Self {
            backend: self.backend.or(earlier.backend),
            boundaries: self.boundaries.or(earlier.boundaries),
            tenant: self.tenant.or(earlier.tenant),
            limits: self.limits.or(earlier.limits),
            strict: self.strict.or(earlier.strict),
            state_dir: self.state_dir.or(earlier.state_dir),
            quotas,
            default_quota: self.default_quota.or(earlier.default_quota),
            pool: self.pool.or(earlier.pool),
            network: self.network.merge_over(earlier.network),
            images: self.images.merge_over(earlier.images),
            tables,
            daemon_token: self.daemon_token.or(earlier.daemon_token),
            daemon_ca: self.daemon_ca.or(earlier.daemon_ca),
            guest_caches: [earlier.guest_caches, self.guest_caches].concat(),
            private_files: [earlier.private_files, self.private_files].concat(),
        }
    }
}

/// The files that are read, the earlier first.
fn config_files() -> impl Iterator<Item = PathBuf> {
    [Some(PathBuf::from(SYSTEM_CONFIG_PATH)), user_file()].into_iter().flatten()
}

fn user_file() -> Option<PathBuf> {
    let base = env_path("XDG_CONFIG_HOME").or_else(|| Some(env_path("HOME")?.join(".config")))?;
    Some(base.join("stockade/config.toml"))
}

/// Where what is large and can be made again is kept, if the environment says where the home is.
pub fn cache_dir() -> Option<PathBuf> {
    let base = env_path("XDG_CACHE_HOME").or_else(|| Some(env_path("HOME")?.join(".cache")))?;
    Some(base.join("stockade"))
}

fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Keys of `later` over those of `earlier`. A token is for the daemon that it is configured with: another one
/// that is named later does not get it, nor is it verified by that one's authorities.
fn merge_table(backend: &str, earlier: &mut toml::Table, later: toml::Table) {
    let url = later.get(DAEMON_URL_KEY);
    if backend == DAEMON_BACKEND.as_str() && url.is_some() && earlier.get(DAEMON_URL_KEY) != url {
        earlier.remove(DAEMON_TOKEN_KEY);
        earlier.remove(DAEMON_CA_KEY);
    }
    earlier.extend(later);
}

#[cfg(test)]
mod tests {
    use super::read::parse_settings;
    use super::*;

    fn from_toml(text: &str) -> Result<Settings> {
        parse_settings(Path::new("/etc/x.toml"), text, &mut |_| Ok(()))
    }

    #[test]
    fn a_token_stays_with_the_daemon_that_it_is_configured_with() {
        let text = "[remote]\nurl = \"unix:///a\"\ntokenFile = \"/token\"";
        let has_token =
            |settings: Settings| settings.backend_table(&DAEMON_BACKEND).contains_key("tokenFile");
        let configured = || from_toml(text).unwrap();
        let without_url = from_toml("[remote]\ntokenFile = \"/token\"").unwrap();
        assert!(!has_token(without_url.with_daemon("unix:///b")));
        assert!(has_token(configured().with_daemon("unix:///a")));
        assert!(!has_token(configured().with_daemon("unix:///b")));
        assert!(!has_token(Settings::default().with_daemon("unix:///b").merge_over(configured())));
        let chosen = Settings { daemon_token: Some("/other".into()), ..Settings::default() };
        assert!(has_token(chosen.merge_over(configured()).with_daemon("unix:///b")));
        let verified = from_toml("[remote]\nurl = \"https://a\"\ncaFile = \"/ca.pem\"").unwrap();
        assert!(verified.backend_table(&DAEMON_BACKEND).contains_key("caFile"));
        let moved = verified.with_daemon("https://b");
        assert!(!moved.backend_table(&DAEMON_BACKEND).contains_key("caFile"));
    }

    #[test]
    fn later_settings_win_one_by_one() {
        let early = from_toml("backend = \"native\"\n[limits]\nmemory = \"1g\"\ndisk = \"2g\"");
        let late = from_toml("tenant = \"a\"\n[limits]\nmemory = \"2g\"");
        let merged = late.unwrap().merge_over(early.unwrap());
        let expected =
            "backend = \"native\"\ntenant = \"a\"\n[limits]\nmemory = \"2g\"\ndisk = \"2g\"";
        assert_eq!(merged, from_toml(expected).unwrap());
    }

    #[test]
    fn the_state_around_that_of_a_private_daemon_is_hidden_too() {
        let base = tempfile::tempdir().unwrap();
        let state = base.path().join("python/tmp1");
        let settings = Settings { state_dir: Some(state), ..Settings::default() };
        assert_eq!(settings.find_outer_state(), None, "any directory may be called so");
        for part in ["journal", "leases"] {
            std::fs::create_dir(base.path().join(part)).unwrap();
        }
        assert_eq!(settings.find_outer_state().as_deref(), Some(base.path()));
        let elsewhere = Settings { state_dir: Some(base.path().join("x")), ..Settings::default() };
        assert_eq!(elsewhere.find_outer_state(), None);
    }

    #[cfg(feature = "docker")]
    #[test]
    fn the_keys_of_a_backends_table_are_merged_too_and_its_paths_are_hidden() {
        let early = from_toml("[docker]\nsocket = \"/run/a.sock\"\nruntime = \"runc\"");
        let late = from_toml("[docker]\nruntime = \"runsc\"");
        let merged = late.unwrap().merge_over(early.unwrap());
        let expected =
            from_toml("[docker]\nsocket = \"/run/a.sock\"\nruntime = \"runsc\"").unwrap();
        assert_eq!(merged, expected);
        let hidden = merged.backends_paths();
        assert_eq!(hidden, [("/run/a.sock".into(), "the container engine's socket")]);
    }
}
