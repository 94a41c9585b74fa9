//! The flags that say what a sandbox is made of, shared by every command that takes a spec. A value
//! that does not parse is refused by the flag's name; nothing is looked up but what a flag names.

mod caller;
pub mod command;
pub mod env;
pub mod host;
pub mod prefix;
pub mod secrets;
pub mod secrets_in_arguments;
pub mod wasm_module;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use stockade::images::PullPolicy;
use stockade_core::{
    BackendChoice, Boundary, Bytes, Error, ErrorCode, Feature, HostPath, Image, ImageName, Limits,
    Millicores, Mount, NameError, Network, Result, RootMode, SandboxPath, SandboxSpec, Span,
    TenantName, User, Workspace, WorkspaceAt, parse_egress_list,
};

use self::secrets::{SecretValues, gather_secrets, parse_bindings};
use crate::config::Settings;
use crate::project_cache::{self, CacheChoice, HeldCache, PlannedCache};
use crate::registry;
use crate::terminal::printer::Printer;
use crate::toolchains::{self, FoundToolchain, Packages, ToolchainChoice};
use crate::workspace::{self, AskedWorkspace};
use crate::workspace::{Configured, GitArg, WantedWorkspace, WorkspaceHandle};

/// What a sandbox is made of.
#[derive(Debug, Clone, Args)]
pub struct SpecArgs {
    /// Use `[profile.NAME]` of the configuration for flags that are not given.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Backend that builds the sandbox; `auto` chooses the strongest boundary that supports everything requested.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<BackendChoice>,
    /// Daemon that builds it, as unix:///PATH, http://127.0.0.1:PORT or https://HOST[:PORT]; or one of
    /// `[[ssh.hosts]]`, for --backend ssh. [default: the one with most room]
    #[arg(long, value_name = "URL|NAME")]
    pub host: Option<String>,
    /// Accept this boundary; may be given several times. Without it: any that makes a security claim.
    #[arg(long = "boundary", value_name = "NAME", value_delimiter = ',')]
    pub boundaries: Vec<Boundary>,
    /// Root file system: host, a name such as debian:12, dir:PATH, oci:PATH or wasm:PATH.
    /// [default: host]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<ImageArg>,
    /// When to ask the registry for an image that is named: always, missing (where it is not stored) or never.
    /// [default: missing]
    #[arg(long, value_name = "always|missing|never", value_parser = parse_pull_policy)]
    pub pull: Option<PullPolicy>,
    /// Take environment, working directory, entry point and numeric user from the image that is named; flags win.
    /// [default: where no command is given]
    #[arg(long)]
    pub image_defaults: bool,
    /// Make the root writable; changes to it are removed with the sandbox.
    #[arg(long)]
    pub writable_root: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub surroundings: SurroundingArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Which files there are.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Files")]
pub struct PlaceArgs {
    /// Directory to work on. [default: the current one]
    #[arg(long, value_name = "DIR", conflicts_with = "no_workspace")]
    pub workspace: Option<PathBuf>,
    /// Use an empty workspace that is removed with the sandbox.
    #[arg(long)]
    pub no_workspace: bool,
    /// Keep changes apart from the directory (copy-on-write), to be applied or discarded later.
    #[arg(long, conflicts_with = "no_workspace")]
    pub overlay: bool,
    /// Work on a checkout of a git repository; changes are kept apart as with --overlay.
    #[arg(long, value_name = "URL|DIR[@REV]", conflicts_with_all = ["workspace", "no_workspace"])]
    pub git: Option<GitArg>,
    /// Continue in a workspace that --overlay or --git has kept.
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["workspace", "no_workspace", "overlay", "git"]
    )]
    pub resume: Option<WorkspaceHandle>,
    /// Make the workspace read-only.
    #[arg(long)]
    pub read_only: bool,
    /// Mount a further directory or file of the host, read-only unless `rw` is given.
    #[arg(short = 'v', long = "mount", alias = "volume", value_name = "SRC:DST[:ro|rw]")]
    pub mounts: Vec<MountArg>,
    /// Show the workspace at this path as well as at /workspace. [default: its own path on the host's root, if free]
    #[arg(long, value_name = "PATH")]
    pub workspace_at: Option<SandboxPath>,
    /// Working directory of the command. [default: the workspace]
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<SandboxPath>,
}

/// What the command finds around it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Environment")]
pub struct SurroundingArgs {
    /// Network: none, loopback, or what may be reached: names, *.name (one label), **.name (any
    /// depth), addresses, each with an optional :port; names also with methods and a path, as in
    /// GET+HEAD@name/v1/*; preset:python|node|rust|go|debian|github; ! before what is denied.
    /// `ask` asks you about hosts that no rule names. `observe` lets every public host through and
    /// says which rules would have been enough: unsafe. [default: loopback, where the backend has
    /// one of its own]
    #[arg(long, alias = "network", value_name = "none|loopback|ask|observe|HOST[,HOST…]")]
    pub net: Option<NetArg>,
    /// Set an environment variable, or pass on yours of that name. Only language, time zone
    /// and git's name and mail are inherited otherwise.
    #[arg(short, long, value_name = "K=V|K")]
    pub env: Vec<String>,
    /// Set environment variables from a file, one K=V per line.
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Put a secret into requests to these hosts, outside the sandbox: inside, the variable holds a
    /// placeholder. The value is that of your variable, unless one of the next two names another.
    #[arg(long = "secret", value_name = "NAME=HOST[,HOST…][:header|:body]")]
    pub secrets: Vec<String>,
    /// Take the value of a secret from a file.
    #[arg(long = "secret-file", value_name = "NAME=FILE", requires = "secrets")]
    pub secret_files: Vec<String>,
    /// Take the value of a secret from what a command prints, which is run by sh on this host: the value alone, or
    /// {"value": "…", "expires": "2026-01-31T12:00:00Z"}. It is run again before that, after a 401 answer, and after
    /// resume and restore.
    #[arg(long = "secret-command", value_name = "NAME=COMMAND", requires = "secrets")]
    pub secret_commands: Vec<String>,
    /// Mount toolchains of the host that are in PATH, read-only and without credentials: auto, none, or some
    /// of rust, node, python, go, java and others. [default: auto on the host's root]
    #[arg(long, value_name = "auto|none|NAME[,NAME…]")]
    pub toolchain: Option<ToolchainChoice>,
    /// Keep package and build caches of Stockade's own for later runs on this workspace: none, auto or a name.
    /// [default: none]
    #[arg(long, value_name = "auto|none|NAME")]
    pub cache: Option<CacheChoice>,
    /// Run as this numeric user and group.
    #[arg(short, long, value_name = "UID[:GID]")]
    pub user: Option<User>,
    /// Tenant to run for: quotas and records are kept by tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<TenantName>,
    /// Add a label to the record. Labels must not hold secrets.
    #[arg(long = "label", value_name = "K=V")]
    pub labels: Vec<LabelArg>,
    /// Fix clocks, randomness and numbers, so that the same input gives the same output.
    #[arg(long)]
    pub deterministic: bool,
    /// Give up a feature that this host cannot enforce; may be given several times.
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    pub without: Vec<Feature>,
}

/// How much may be used.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// CPU share: cores such as 1.5, at most as many as there are, or millicores such as 500m.
    #[arg(long, alias = "cpus", allow_negative_numbers = true, value_name = "CORES")]
    pub cpu: Option<Millicores>,
    /// Memory of the whole sandbox. [default: 512m]
    #[arg(short, long, alias = "memory", allow_negative_numbers = true, value_name = "SIZE")]
    pub mem: Option<Bytes>,
    /// Bytes that may be written to disk. [default: 1g]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE")]
    pub disk: Option<Bytes>,
    /// Number of processes and threads. [default: 128]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = parse_count)]
    pub pids: Option<u32>,
    /// Timeout. [default: 60s; none with --detach or on a terminal]
    #[arg(long, allow_negative_numbers = true, value_name = "TIME")]
    pub timeout: Option<Span>,
    /// CPU time. [default: 30s; with --timeout that time on every core]
    #[arg(long, allow_negative_numbers = true, value_name = "TIME")]
    pub cpu_time: Option<Span>,
    /// Output that is passed on; the rest is dropped. [default: 16m]
    #[arg(long, allow_negative_numbers = true, value_name = "SIZE")]
    pub max_output: Option<Bytes>,
    /// Open files of each process. [default: 1024]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = parse_count)]
    pub open_files: Option<u32>,
    /// Refuse a limit that can only be watched (polled), instead of applying it as far as it goes.
    #[arg(long)]
    pub strict: bool,
    /// Number of instructions, the same on every machine; WebAssembly only.
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = parse_instruction_count)]
    pub fuel: Option<u64>,
}

const NOT_AN_IMAGE: &str = "is not an image: give `host`, a name such as `debian:12`, `dir:PATH`, \
                            `oci:PATH` or `wasm:PATH`";

/// A kind of image and where it is.
#[derive(Debug, Clone)]
pub enum ImageArg {
    /// The host's own directories.
    Host,
    /// One with a name.
    Named(ImageName),
    /// A path, and what it holds.
    At(fn(HostPath) -> Image, PathBuf),
}

/// A mount as it was written.
#[derive(Debug, Clone)]
pub struct MountArg {
    source: PathBuf,
    target: SandboxPath,
    read_only: bool,
}

/// A network policy.
#[derive(Debug, Clone)]
pub struct NetArg(Network);

/// A label.
#[derive(Debug, Clone)]
pub struct LabelArg(String, String);

impl SpecArgs {
    /// The workspace these flags mean: decided before configuration is read, which must not come from it.
    pub fn wanted(&self) -> Result<WantedWorkspace> {
        let place = &self.place;
        match (&place.git, &place.resume) {
            (Some(git), _) => return Ok(WantedWorkspace::Checkout(git.clone())),
            (None, Some(kept)) => return Ok(WantedWorkspace::Kept(kept.clone())),
            (None, None) => {}
        }
        let asked = match (&place.workspace, place.no_workspace) {
            (_, true) => AskedWorkspace::Nothing,
            (Some(dir), false) => AskedWorkspace::Directory(dir),
            (None, false) => AskedWorkspace::Here,
        };
        Ok(match workspace::resolve_workspace(&asked)? {
            Workspace::Local(dir) if place.overlay => WantedWorkspace::View(dir),
            plain @ (Workspace::Local(_) | Workspace::Overlay(_) | Workspace::Ephemeral) => {
                WantedWorkspace::Plain(plain)
            }
        })
    }

    /// The spec these flags mean, over what is configured. A workspace that has to be made is in it as
    /// it is planned.
    pub fn spec(&self, wanted: &WantedWorkspace, settings: &Settings) -> Result<SandboxSpec> {
        match self.under_profile(settings)? {
            Some((flags, settings)) => flags.own_spec(wanted, &settings),
            None => self.own_spec(wanted, settings),
        }
    }

    /// What these flags and settings are with the profile that was named.
    fn under_profile(&self, settings: &Settings) -> Result<Option<(Self, Settings)>> {
        let Some(name) = &self.profile else { return Ok(None) };
        settings.profile(name)?.under(name, self, settings).map(Some)
    }

    fn own_spec(&self, wanted: &WantedWorkspace, settings: &Settings) -> Result<SandboxSpec> {
        let workspace = wanted.planned(&settings.state_dir()?)?;
        let place = &self.place;
        let around = &self.surroundings;
        let boundaries: BTreeSet<_> = self.boundaries.iter().copied().collect();
        let mut spec = SandboxSpec {
            backend: self.backend.clone().or(settings.backend.clone()).unwrap_or_default(),
            host: self.host.clone().filter(|host| !host::is_daemon_url(host)),
            boundaries: if boundaries.is_empty() { settings.boundaries() } else { boundaries },
            image: self.image.as_ref().map_or(Ok(Image::Host), ImageArg::resolve)?,
            root: if self.writable_root { RootMode::CopyOnWrite } else { RootMode::ReadOnly },
            workspace,
            workspace_at: self.workspace_at(wanted),
            read_only: place.read_only,
            mounts: place.mounts.iter().map(MountArg::resolve).collect::<Result<_>>()?,
            env: env::gather_variables(&around.env_file, &around.env)?,
            user: around.user,
            workdir: place.workdir.clone(),
            network: around.net.clone().map(|net| net.0).unwrap_or_default(),
            secrets: parse_bindings(&around.secrets)?,
            deterministic: around.deterministic,
            limits: self.limits.limits().or(settings.limits),
            strict: self.limits.strict || settings.strict.unwrap_or(false),
            tenant: around.tenant.clone().or(settings.tenant.clone()).unwrap_or_default(),
            trees: Vec::new(),
            labels: around.labels.iter().cloned().map(|LabelArg(k, v)| (k, v)).collect(),
            without: around.without.iter().copied().collect(),
        };
        caller::add_to(&mut spec);
        check_cores(&spec)?;
        host::check_daemon(self.host.as_deref(), &spec, settings)?;
        host::check_host(&spec, settings)?;
        match wanted {
            WantedWorkspace::Plain(Workspace::Local(dir)) | WantedWorkspace::View(dir) => {
                workspace::refuse_state(dir, settings)?;
            }
            WantedWorkspace::Plain(Workspace::Ephemeral | Workspace::Overlay(_))
            | WantedWorkspace::Checkout(_)
            | WantedWorkspace::Kept(_) => {}
        }
        let named = SandboxSpec { workspace: wanted.named(), ..spec.clone() };
        workspace::check_views(&named, settings)?;
        Ok(spec)
    }
}

impl SpecArgs {
    /// The values of the secrets that these flags bind. They are no part of the spec.
    pub async fn secret_values(&self) -> Result<SecretValues> {
        let SurroundingArgs { secrets, secret_files, secret_commands, .. } = &self.surroundings;
        gather_secrets(&parse_bindings(secrets)?, secret_files, secret_commands).await
    }

    /// Where the workspace appears: where the flag says, or at its own path on the host's root.
    fn workspace_at(&self, wanted: &WantedWorkspace) -> Option<WorkspaceAt> {
        if let Some(path) = &self.place.workspace_at {
            return Some(WorkspaceAt { path: path.clone(), required: true });
        }
        let (
            None | Some(ImageArg::Host),
            WantedWorkspace::Plain(Workspace::Local(own)) | WantedWorkspace::View(own),
        ) = (&self.image, wanted)
        else {
            return None;
        };
        let at = WorkspaceAt { path: own.to_string().parse().ok()?, required: false };
        at.problem().is_none().then_some(at)
    }

    /// Adds the cache that is kept for this project to a spec; before toolchains, which are not looked for in it.
    pub fn plan_cache(
        &self,
        place: (&WantedWorkspace, &Workspace),
        spec: &mut SandboxSpec,
        settings: &Settings,
    ) -> Result<Option<PlannedCache>> {
        let profiled = self.under_profile(settings)?;
        let flags = profiled.as_ref().map_or(self, |(flags, _)| flags);
        let choice = flags.surroundings.cache.as_ref().or(settings.cache.as_ref());
        project_cache::plan_cache(choice.unwrap_or(&CacheChoice::None), place, spec, settings)
    }

    /// The same, with the cache made and held.
    pub fn open_cache(
        &self,
        wanted: &WantedWorkspace,
        configured: &mut Configured,
        spec: &mut SandboxSpec,
        printer: &Printer,
    ) -> Result<Option<HeldCache>> {
        let place = (wanted, &configured.origin);
        let Some(planned) = self.plan_cache(place, spec, &configured.settings)? else {
            return Ok(None);
        };
        let held = planned.open(printer)?;
        configured.settings.show_cache(planned.path());
        Ok(Some(held))
    }

    /// Adds the caller's toolchains to a spec that is otherwise complete.
    pub fn add_toolchains(
        &self,
        packages: Packages,
        spec: &mut SandboxSpec,
        settings: &Settings,
    ) -> Result<Vec<FoundToolchain>> {
        let profiled = self.under_profile(settings)?;
        let flags = profiled.as_ref().map_or(self, |(flags, _)| flags);
        let chosen = flags.surroundings.toolchain.as_ref().or(settings.toolchain.as_ref());
        let choice = match chosen {
            Some(choice) => choice.clone(),
            None if registry::shows_trees(&spec.backend) => ToolchainChoice::Auto,
            None => ToolchainChoice::None,
        };
        toolchains::add_toolchains(&choice, packages, spec, &settings.engine()?)
    }
}

impl LimitArgs {
    const fn limits(&self) -> Limits {
        Limits {
            cpu_rate: self.cpu,
            cpu_time: self.cpu_time,
            wall_time: self.timeout,
            memory: self.mem,
            disk: self.disk,
            processes: self.pids,
            open_files: self.open_files,
            output: self.max_output,
            fuel: self.fuel,
        }
    }
}

impl ImageArg {
    fn resolve(&self) -> Result<Image> {
        match self {
            Self::Host => Ok(Image::Host),
            Self::Named(name) => Ok(Image::Named(name.clone())),
            Self::At(kind, path) => resolve_existing_path("--image", path).map(kind),
        }
    }
}

impl MountArg {
    /// The same with another source, if there is one.
    pub fn with_source(self, source: impl FnOnce(&Path) -> Option<PathBuf>) -> Option<Self> {
        Some(Self { source: source(&self.source)?, ..self })
    }

    fn resolve(&self) -> Result<Mount> {
        let source = resolve_existing_path("--mount", &self.source)?;
        Ok(Mount { source, target: self.target.clone(), read_only: self.read_only })
    }
}

/// Refuses more cores than this machine has, unless the sandbox is for another one.
fn check_cores(spec: &SandboxSpec) -> Result<()> {
    if matches!(&spec.backend, BackendChoice::Named(name) if *name == stockade_backends::ssh::NAME)
    {
        return Ok(());
    }
    // Finding out takes some fifteen system calls.
    if spec.limits.cpu_rate.is_none() {
        return Ok(());
    }
    let cores = std::thread::available_parallelism()
        .map_or(u32::MAX, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
    match spec.limits.too_many_cores(cores) {
        None => Ok(()),
        Some((reason, remedy)) => {
            Err(Error::new(ErrorCode::Invalid, "--cpu", reason).remedy(remedy))
        }
    }
}

fn parse_count(given: &str) -> Result<u32, String> {
    given.parse().map_err(|_| format!("`{}` is not a whole number", given.escape_debug()))
}

fn parse_instruction_count(given: &str) -> Result<u64, String> {
    given.parse().map_err(|_| format!("`{}` is not a whole number", given.escape_debug()))
}

fn parse_pull_policy(given: &str) -> Result<PullPolicy, String> {
    given.parse().map_err(|_| "is none of `always`, `missing` and `never`".to_owned())
}

/// The path itself, behind all symbolic links, if it is there.
pub fn resolve_existing_path(flag: &'static str, path: &Path) -> Result<HostPath> {
    let real = path.canonicalize().map_err(|error| {
        Error::new(ErrorCode::Invalid, flag, format!("`{}` cannot be used", path.display()))
            .remedy("give a path that is there and that you may read")
            .source(error)
    })?;
    HostPath::try_from(real)
        .map_err(|error| Error::new(ErrorCode::Invalid, flag, error.to_string()))
}

impl FromStr for ImageArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let at = |kind: fn(HostPath) -> Image, path: &str| Ok(Self::At(kind, path.into()));
        match given.split_once(':') {
            None if given == "host" => Ok(Self::Host),
            Some(("dir", path)) if !path.is_empty() => at(Image::Directory, path),
            Some(("oci", path)) if !path.is_empty() => at(Image::Oci, path),
            Some(("wasm", path)) if !path.is_empty() => at(Image::Wasm, path),
            Some(("name", name)) => {
                name.parse().map(Self::Named).map_err(|error: NameError| error.to_string())
            }
            Some(("dir" | "oci" | "wasm", _)) => Err(NOT_AN_IMAGE.into()),
            // What a registry would take for a name is one; a path never is.
            _ => given.parse().map(Self::Named).map_err(|_: NameError| NOT_AN_IMAGE.into()),
        }
    }
}

impl FromStr for MountArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let parts: Vec<_> = given.split(':').collect();
        let (source, target, read_only) = match parts[..] {
            [source, target] | [source, target, "ro"] => (source, target, true),
            [source, target, "rw"] => (source, target, false),
            _ => return Err("is not a mount: give `SRC:DST`, `SRC:DST:ro` or `SRC:DST:rw`".into()),
        };
        let target: SandboxPath = target.parse().map_err(|error| format!("{error}"))?;
        if source.is_empty() || !target.is_absolute() {
            return Err(
                "is not a mount: give a source, and an absolute path where it appears".into()
            );
        }
        Ok(Self { source: source.into(), target, read_only })
    }
}

impl NetArg {
    /// The policy.
    pub fn into_policy(self) -> Network {
        self.0
    }

    /// Whether it lets every public host through.
    pub fn observes(&self) -> bool {
        self.0.observes()
    }
}

impl FromStr for NetArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        match given {
            "none" => Ok(Self(Network::None)),
            "loopback" => Ok(Self(Network::Loopback)),
            // Words of container engines, which would be taken for the names of hosts.
            "host" | "bridge" | "default" | "private" => Err(format!(
                "there is no network `{given}` here: name the hosts that are needed, as in `--net example.org` or \
                 `--net preset:python`, or try `--net observe`; a host of this name is `{given}:443`"
            )),
            list => parse_egress_list(list).map(|rules| Self(Network::Egress(rules))),
        }
    }
}

impl FromStr for LabelArg {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        match given.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self(key.into(), value.into())),
            Some(_) | None => Err("is not a label: give `KEY=VALUE`".into()),
        }
    }
}
