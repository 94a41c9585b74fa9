//! Settings from the system's file, the user's file, the environment and flags; later ones win. They
//! never come from the workspace: what a guest can write must not decide how it is walled in.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade_backends::docker;
use stockade_backends::microvm;
use stockade_backends::ssh::Host;
use stockade_core::{
    BackendChoice, Boundary, Error, ErrorCode, Limits, Result, TenantName, Workspace,
};
use stockade_engine::{EngineConfig, OwnPath, Quota, StateDir, real_path};
use stockade_tools::ApprovalConfig;

use crate::pools::PoolSetting;
use crate::profiles::{self, Profile};
use crate::terminal::printer::Printer;
use crate::toolchains::ToolchainChoice;

const READ_OPERATION: &str = "read the configuration";
const SYSTEM_CONFIG_PATH: &str = "/etc/stockade/config.toml";
const ENV_PREFIX: &str = "STOCKADE_";

/// One file or variable that sets something.
#[derive(Debug)]
pub struct ConfigSource {
    /// What people call it.
    pub name: String,
    /// Which file; nothing if it is a variable.
    pub file: Option<PathBuf>,
    /// What it sets.
    pub values: toml::Table,
}

/// Everything that sets something, the earlier first.
pub fn load_sources() -> Result<Vec<ConfigSource>> {
    let mut sources = Vec::new();
    for file in [Some(PathBuf::from(SYSTEM_CONFIG_PATH)), user_file()].into_iter().flatten() {
        // The caller has loaded the settings before, so the text parses.
        if let Some(text) = read_file(&file)?
            && let Ok(values) = toml::from_str(&text)
        {
            let name = file.display().to_string();
            sources.push(ConfigSource { name, file: Some(file), values });
        }
    }
    for (variable, key, _) in ENV_VARIABLES {
        let name = format!("{ENV_PREFIX}{variable}");
        if let Ok(value) = std::env::var(&name) {
            let values = toml::Table::from_iter([(key.to_owned(), toml::Value::String(value))]);
            sources.push(ConfigSource { name, file: None, values });
        }
    }
    Ok(sources)
}

/// What is configured. Absent: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Who builds the walls.
    pub backend: Option<BackendChoice>,
    /// Boundaries that are accepted.
    boundaries: Option<BTreeSet<Boundary>>,
    /// Whom commands are run for.
    pub tenant: Option<TenantName>,
    /// Limits of every sandbox.
    pub limits: Limits,
    /// Whether a limit that is named and can only be watched is refused.
    pub strict: Option<bool>,
    /// Which toolchains of the host are shown.
    pub toolchain: Option<ToolchainChoice>,
    /// Where journal and leases live.
    state_dir: Option<PathBuf>,
    /// What each tenant may use at once.
    quotas: BTreeMap<TenantName, QuotaSetting>,
    /// What every other tenant may use at once.
    default_quota: Option<QuotaSetting>,
    /// What an agent's tools may do without asking.
    pub approval: ApprovalConfig,
    /// Which container engine is used, and how.
    docker: DockerSetting,
    /// How virtual machines are made.
    microvm: MicrovmSetting,
    /// Other hosts.
    ssh: SshSettings,
    /// Sandboxes that a server keeps ready. A later file's take the place of an earlier one's.
    pool: Option<Vec<PoolSetting>>,
    /// Flags under a name. A later file's take the place of an earlier one's of the same name.
    profile: BTreeMap<String, Profile>,
}

/// Which container engine is used, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DockerSetting {
    /// Its socket; absent: DOCKER_HOST, or the usual places.
    socket: Option<PathBuf>,
    /// A runtime that is registered there; absent: its default.
    runtime: Option<String>,
}

/// How virtual machines are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct MicrovmSetting {
    /// The directory that is their root; absent: this host's own system directories.
    root: Option<PathBuf>,
    /// Where what was prepared is kept; absent: below the user's cache.
    cache: Option<PathBuf>,
    /// The Firecracker that runs them; absent: QEMU does.
    firecracker: Option<microvm::firecracker::Settings>,
}

/// Other hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SshSettings {
    /// Those that sandboxes may be built on. A later file's take the place of an earlier one's.
    hosts: Option<Vec<Host>>,
    /// The `stockade` that a teleport uses there; absent: the one in PATH.
    program: Option<PathBuf>,
}

/// What a tenant may use at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QuotaSetting {
    sandboxes: u32,
}

impl Settings {
    /// Reads everything there is, except what lies in the workspace.
    pub fn load(workspace: Option<&Workspace>, printer: &Printer) -> Result<Self> {
        let mut settings = Self::default();
        for file in [Some(PathBuf::from(SYSTEM_CONFIG_PATH)), user_file()].into_iter().flatten() {
            if let Some(text) = read_trusted_file(&file, workspace, printer)? {
                settings = parse_settings(&file, &text)?.merge_over(settings);
            }
        }
        Ok(from_env(std::env::vars_os(), printer)?.merge_over(settings))
    }

    /// Boundaries that are accepted; none: any that makes a security claim.
    pub fn boundaries(&self) -> BTreeSet<Boundary> {
        self.boundaries.clone().unwrap_or_default()
    }

    /// The hosts that sandboxes may be built on.
    pub fn hosts(&self) -> Vec<Host> {
        self.ssh.hosts.clone().unwrap_or_default()
    }

    /// The `stockade` to use on other hosts.
    pub fn program_elsewhere(&self) -> Option<&Path> {
        self.ssh.program.as_deref()
    }

    /// Sandboxes that a server keeps ready.
    pub fn pools(&self) -> &[PoolSetting] {
        self.pool.as_deref().unwrap_or_default()
    }

    /// The profile of that name.
    pub fn profile(&self, name: &str) -> Result<&Profile> {
        let known: Vec<_> = self.profile.keys().map(String::as_str).collect();
        self.profile.get(name).ok_or_else(|| profiles::unknown_profile_error(name, &known))
    }

    /// Every profile.
    pub fn profiles(&self) -> impl Iterator<Item = (&str, &Profile)> {
        self.profile.iter().map(|(name, profile)| (name.as_str(), profile))
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

    /// Which container engine is used, and how.
    pub fn docker(&self) -> docker::Options {
        let DockerSetting { socket, runtime } = self.docker.clone();
        docker::Options { socket, runtime }
    }

    /// How virtual machines are made.
    pub fn microvm(&self) -> microvm::Options {
        let MicrovmSetting { root, cache, firecracker } = self.microvm.clone();
        microvm::Options { root, cache, firecracker, prepare: false }
    }

    /// What the engine is opened with.
    pub fn engine(&self) -> Result<EngineConfig> {
        let quota = |setting: QuotaSetting| Quota { sandboxes: Some(setting.sandboxes) };
        Ok(EngineConfig {
            quotas: self.quotas.iter().map(|(name, set)| (name.clone(), quota(*set))).collect(),
            default_quota: self.default_quota.map(quota).unwrap_or_default(),
            own_paths: self.own_paths(),
            shared_dirs: [env_path("TMPDIR"), env_path("XDG_RUNTIME_DIR")]
                .into_iter()
                .flatten()
                .collect(),
            ..EngineConfig::at(self.state_dir()?)
        })
    }

    /// What no guest may see beside the state directory: a writer of the configuration runs code on the
    /// host with the next command, and a process that reaches a connection's socket is on the other host.
    fn own_paths(&self) -> Vec<OwnPath> {
        let own = |what| move |path: PathBuf| OwnPath::fixed(path, what);
        let files = [Some(PathBuf::from(SYSTEM_CONFIG_PATH)), user_file()].into_iter().flatten();
        // The directory, where a file may yet be made, and the file, which may be a link elsewhere.
        let configuration = files.flat_map(|file| [file.parent().map(Path::to_owned), Some(file)]);
        let hosts = self.ssh.hosts.iter().flatten().filter_map(|host| host.config.clone());
        let caches = [cache_dir(), self.microvm.cache.clone()].into_iter().flatten();
        let sockets = env_path("XDG_RUNTIME_DIR").map(|dir| dir.join("stockade-ssh"));
        let configuration = configuration.flatten().map(own("the configuration"));
        configuration
            .chain(hosts.map(own("the configuration of a host")))
            .chain(caches.map(own("the cache")))
            .chain(sockets.into_iter().map(own("the sockets of connections")))
            .chain(self.docker.socket.iter().cloned().map(own("the container engine's socket")))
            .collect()
    }

    /// These settings, with the ones left out taken from `earlier`.
    fn merge_over(self, earlier: Self) -> Self {
        let mut quotas = earlier.quotas;
        quotas.extend(self.quotas);
        let mut profile = earlier.profile;
        profile.extend(self.profile);
        // The first rule that matches decides: a later file's come first.
        let mut rules = self.approval.rules;
        rules.extend(earlier.approval.rules);
        let ask_timeout = self.approval.ask_timeout.or(earlier.approval.ask_timeout);
        Self {
            backend: self.backend.or(earlier.backend),
            boundaries: self.boundaries.or(earlier.boundaries),
            tenant: self.tenant.or(earlier.tenant),
            limits: self.limits.or(earlier.limits),
            strict: self.strict.or(earlier.strict),
            toolchain: self.toolchain.or(earlier.toolchain),
            state_dir: self.state_dir.or(earlier.state_dir),
            quotas,
            default_quota: self.default_quota.or(earlier.default_quota),
            approval: ApprovalConfig { ask_timeout, rules },
            docker: DockerSetting {
                socket: self.docker.socket.or(earlier.docker.socket),
                runtime: self.docker.runtime.or(earlier.docker.runtime),
            },
            microvm: MicrovmSetting {
                root: self.microvm.root.or(earlier.microvm.root),
                cache: self.microvm.cache.or(earlier.microvm.cache),
                firecracker: self.microvm.firecracker.or(earlier.microvm.firecracker),
            },
            ssh: SshSettings {
                hosts: self.ssh.hosts.or(earlier.ssh.hosts),
                program: self.ssh.program.or(earlier.ssh.program),
            },
            pool: self.pool.or(earlier.pool),
            profile,
        }
    }
}

fn user_file() -> Option<PathBuf> {
    let base = env_path("XDG_CONFIG_HOME").or_else(|| Some(env_path("HOME")?.join(".config")))?;
    Some(base.join("stockade/config.toml"))
}

fn cache_dir() -> Option<PathBuf> {
    let base = env_path("XDG_CACHE_HOME").or_else(|| Some(env_path("HOME")?.join(".cache")))?;
    Some(base.join("stockade"))
}

fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The text of a file, if it is there and no guest can have written it.
fn read_trusted_file(
    file: &Path,
    workspace: Option<&Workspace>,
    printer: &Printer,
) -> Result<Option<String>> {
    let Some(text) = read_file(file)? else { return Ok(None) };
    let dir = match workspace {
        Some(Workspace::Local(dir)) => Some(dir),
        Some(Workspace::Overlay(layers)) => Some(&layers.lower),
        Some(Workspace::Ephemeral) | None => None,
    };
    if dir.is_some_and(|dir| real_path(file).starts_with(dir.as_path())) {
        let file = file.display();
        printer.note(&format!("note: `{file}` is ignored: it lies in the workspace"));
        return Ok(None);
    }
    Ok(Some(text))
}

/// The text of a file, if it is there.
fn read_file(file: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("`{}` cannot be read", file.display());
            Err(Error::new(ErrorCode::Invalid, READ_OPERATION, message)
                .remedy("make it a readable text file, or remove it")
                .source(error))
        }
    }
}

fn parse_settings(file: &Path, text: &str) -> Result<Settings> {
    let settings: Settings = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map(|line| format!(" line {line}")).unwrap_or_default();
        let message = format!("`{}`{place}: {}", file.display(), error.message());
        Error::new(ErrorCode::Invalid, READ_OPERATION, message.replace('\n', " "))
            .remedy("correct or remove that line")
    })?;
    let wrong = settings.ssh.hosts.iter().flatten().find_map(|host| Some((host, host.problem()?)));
    if let Some((host, problem)) = wrong {
        let name = host.name.escape_debug();
        let message = format!("`{}`: ssh.hosts: `{name}` {problem}", file.display());
        return Err(
            Error::new(ErrorCode::Invalid, READ_OPERATION, message).remedy("correct or remove it")
        );
    }
    match &settings.state_dir {
        Some(dir) if !dir.is_absolute() => {
            let message = format!("`{}`: stateDir is not an absolute path", file.display());
            Err(Error::new(ErrorCode::Invalid, READ_OPERATION, message)
                .remedy("give the whole path"))
        }
        Some(_) | None => Ok(settings),
    }
}

/// One variable, the key of a file that means the same, and where its value goes.
type Variable = (&'static str, &'static str, fn(&mut Settings, &str) -> Result<(), String>);

const ENV_VARIABLES: [Variable; 14] = [
    ("BACKEND", "backend", |to, given| set_parsed(&mut to.backend, given)),
    ("BOUNDARIES", "boundaries", |to, given| {
        let all: Result<_, String> = given.split(',').map(str::parse).collect();
        to.boundaries = Some(all?);
        Ok(())
    }),
    ("TENANT", "tenant", |to, given| set_parsed(&mut to.tenant, given)),
    ("TOOLCHAIN", "toolchain", |to, given| set_parsed(&mut to.toolchain, given)),
    ("STATE_DIR", "stateDir", |to, given| {
        let dir = std::path::absolute(given).map_err(|error| error.to_string())?;
        to.state_dir = Some(dir);
        Ok(())
    }),
    ("CPU", "limits.cpuRate", |to, given| set_parsed(&mut to.limits.cpu_rate, given)),
    ("MEM", "limits.memory", |to, given| set_parsed(&mut to.limits.memory, given)),
    ("DISK", "limits.disk", |to, given| set_parsed(&mut to.limits.disk, given)),
    ("PIDS", "limits.processes", |to, given| set_parsed(&mut to.limits.processes, given)),
    ("TIMEOUT", "limits.wallTime", |to, given| set_parsed(&mut to.limits.wall_time, given)),
    ("CPU_TIME", "limits.cpuTime", |to, given| set_parsed(&mut to.limits.cpu_time, given)),
    ("MAX_OUTPUT", "limits.output", |to, given| set_parsed(&mut to.limits.output, given)),
    ("OPEN_FILES", "limits.openFiles", |to, given| set_parsed(&mut to.limits.open_files, given)),
    ("STRICT", "strict", |to, given| set_parsed(&mut to.strict, given)),
];

fn set_parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    to: &mut Option<T>,
    given: &str,
) -> Result<(), String> {
    *to = Some(given.parse().map_err(|error: T::Err| error.to_string())?);
    Ok(())
}

fn from_env(
    variables: impl Iterator<Item = (OsString, OsString)>,
    printer: &Printer,
) -> Result<Settings> {
    let mut settings = Settings::default();
    for (name, value) in variables {
        let Some(name) = name.to_str() else { continue };
        let Some(setting) = name.strip_prefix(ENV_PREFIX) else { continue };
        // The conformance kit's own, for the engines that it starts.
        if setting.starts_with("TCK_") {
            continue;
        }
        match ENV_VARIABLES.iter().find(|(known, ..)| *known == setting) {
            Some((.., apply)) => {
                let applied = value
                    .to_str()
                    .map_or(Err("is not valid UTF-8".into()), |value| apply(&mut settings, value));
                applied.map_err(|why| wrong_variable(name, &why))?;
            }
            None => printer.note(&format!("note: {name} is no setting of stockade: ignored")),
        }
    }
    Ok(settings)
}

fn wrong_variable(name: &str, why: &str) -> Error {
    Error::new(ErrorCode::Invalid, READ_OPERATION, format!("{name}: {why}"))
        .remedy("correct or unset it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_toml(text: &str) -> Result<Settings> {
        parse_settings(Path::new("/etc/x.toml"), text)
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_and_key() {
        for (text, key) in [
            ("backends = \"native\"", "backends"),
            ("[limits]\nram = \"1g\"", "ram"),
            ("[quotas.a]\nboxes = 1", "boxes"),
            ("[[ssh.hosts]]\nname = \"a\"\nkey = \"b\"", "key"),
            ("[[pool]]\nready = 2", "ready"),
            ("[[pool]]\n[pool.spec]\nnetwrok = \"none\"", "netwrok"),
        ] {
            let error = from_toml(text).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("/etc/x.toml"), "{error}");
        }
    }

    /// The keys of a table, as the parser lists them for one that it does not know.
    fn keys(table: &str) -> Vec<String> {
        let error = from_toml(&format!("{table}\nno-such-key = 1")).unwrap_err().to_string();
        let listed = error.split_once("expected").unwrap_or_else(|| panic!("{table}: {error}")).1;
        // Every other piece between backticks is a name; the error's own remedy has none.
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_on_configuration_names_every_key_and_variable() {
        const CONFIG_DOCS: &str = include_str!("../../../docs/configuration.md");
        const CONFIG_TABLES: [(&str, &str); 14] = [
            ("", ""),
            ("[limits]", "limits."),
            ("[quotas.a]", "quotas.NAME."),
            ("[defaultQuota]", "defaultQuota."),
            ("[approval]", "approval."),
            ("[[approval.rules]]", "approval.rules."),
            ("[approval.rules.match]", "approval.rules.match."),
            ("[docker]", "docker."),
            ("[microvm]", "microvm."),
            ("[microvm.firecracker]", "microvm.firecracker."),
            ("[microvm.firecracker.jailer]", "microvm.firecracker.jailer."),
            ("[[ssh.hosts]]", "ssh.hosts."),
            ("[[pool]]", "pool."),
            ("[profile.a]", "profile.NAME."),
        ];
        for (table, prefix) in CONFIG_TABLES {
            let table = table.replace(
                "[approval.rules.match]",
                "[[approval.rules]]\nverdict = \"ask\"\n[approval.rules.match]",
            );
            for key in keys(&table) {
                let named = format!("`{prefix}{key}");
                assert!(
                    CONFIG_DOCS.contains(&named),
                    "docs/configuration.md does not name {named}`"
                );
            }
        }
        for key in keys("[ssh]") {
            assert!(CONFIG_DOCS.contains(&format!("`ssh.{key}")), "ssh.{key}");
        }
        for (variable, key, _) in ENV_VARIABLES {
            let row = format!("| `{ENV_PREFIX}{variable}` | `{key}` |");
            assert!(CONFIG_DOCS.contains(&row), "docs/configuration.md has no row {row}");
        }
    }

    #[test]
    fn hosts_are_named_one_by_one_and_a_name_that_is_none_is_refused() {
        let text = "[[ssh.hosts]]\nname = \"a\"\ncapacity = 2\n[[ssh.hosts]]\nname = \"u@b\"";
        let hosts = from_toml(text).unwrap().hosts();
        assert_eq!(hosts.iter().map(|host| &*host.name).collect::<Vec<_>>(), ["a", "u@b"]);
        let error = from_toml("[[ssh.hosts]]\nname = \"-oX=y\"").unwrap_err().to_string();
        assert!(error.contains("-oX=y") && error.contains("ssh.hosts"), "{error}");
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
    fn every_variable_is_a_setting_and_nonsense_is_refused_by_its_name() {
        let printer = Printer::new(false);
        let given = |name: &str, value: &str| {
            let all = [(OsString::from(name), OsString::from(value))];
            from_env(all.into_iter(), &printer)
        };
        assert_eq!(given("STOCKADE_MEM", "1g").unwrap().limits.memory.unwrap().0, 1 << 30);
        assert_eq!(given("STOCKADE_STRICT", "true").unwrap().strict, Some(true));
        for name in ["STOCKADE_MEM", "STOCKADE_TIMEOUT", "STOCKADE_PIDS", "STOCKADE_BOUNDARIES"] {
            let error = given(name, "lots").unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("unset"), "{error}");
        }
    }
}
