//! A sandbox as it is described before it is built. A value that does not parse is told by `create`, so that a
//! description reads from top to bottom.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_core::{
    BackendChoice, Bytes, EnvName, Error, ErrorCode, Feature, HostPath, Image, Millicores, Mount,
    Network, Result, SandboxPath, SandboxSpec, SnapshotId, TenantName, Workspace,
};

use crate::sandbox::Sandbox;
use crate::stockade::Stockade;

const DESCRIBE_OPERATION: &str = "describe a sandbox";

/// A sandbox that is not built yet. What is not said is as configured, or the contract's default (C-03): no network
/// but the sandbox's own loopback, a clean environment, an empty workspace, every limit finite.
#[must_use = "nothing is built before `create`"]
pub struct SandboxBuilder {
    stockade: Option<Stockade>,
    spec: SandboxSpec,
    changes: Vec<Change>,
    from: Option<SnapshotId>,
}

/// A change to the spec that is made once it is known what is configured.
type Change = Box<dyn FnOnce(&mut SandboxSpec) -> Result<()> + Send>;

fn invalid(field: &str, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Invalid, DESCRIBE_OPERATION, format!("{field}: {why}"))
}

/// A value as the same flag of the command line takes it.
fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(field: &str, given: &str) -> Result<T> {
    given.parse().map_err(|why: T::Err| invalid(field, why))
}

/// A directory or file of the host by its real path.
fn resolve(field: &str, path: &Path) -> Result<HostPath> {
    let real = path.canonicalize().map_err(|error| {
        invalid(field, format_args!("`{}` cannot be used", path.display())).source(error)
    })?;
    HostPath::try_from(real).map_err(|why| invalid(field, why))
}

impl SandboxBuilder {
    pub(crate) fn new(stockade: Option<Stockade>, spec: SandboxSpec) -> Self {
        Self { stockade, spec, changes: Vec::new(), from: None }
    }

    fn change(
        mut self,
        change: impl FnOnce(&mut SandboxSpec) -> Result<()> + Send + 'static,
    ) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// Builds the walls with this backend or not at all; `auto` takes the strongest boundary that can do all that is
    /// asked for.
    pub fn backend(self, name: &str) -> Self {
        let choice = parse::<BackendChoice>("backend", name);
        self.change(|spec| choice.map(|choice| spec.backend = choice))
    }

    /// The most memory of the whole sandbox, such as `256m`.
    pub fn memory(self, size: &str) -> Self {
        let size = parse::<Bytes>("memory", size);
        self.change(|spec| size.map(|size| spec.limits.memory = Some(size)))
    }

    /// The most that is written to disk, such as `1g`.
    pub fn disk(self, size: &str) -> Self {
        let size = parse::<Bytes>("disk", size);
        self.change(|spec| size.map(|size| spec.limits.disk = Some(size)))
    }

    /// The most output of one command that is passed on, both streams together; the rest is dropped and counted.
    pub fn max_output(self, size: &str) -> Self {
        let size = parse::<Bytes>("max_output", size);
        self.change(|spec| size.map(|size| spec.limits.output = Some(size)))
    }

    /// The share of processor time: cores such as `1.5`, or millicores such as `500m`.
    pub fn cpus(self, share: &str) -> Self {
        let share = parse::<Millicores>("cpus", share);
        self.change(|spec| share.map(|share| spec.limits.cpu_rate = Some(share)))
    }

    /// The most processes and threads.
    pub fn processes(self, most: u32) -> Self {
        self.change(move |spec| {
            spec.limits.processes = Some(most);
            Ok(())
        })
    }

    /// How long one command may take.
    pub fn wall_time(self, most: Duration) -> Self {
        self.change(move |spec| {
            spec.limits.wall_time = Some(most.into());
            Ok(())
        })
    }

    /// How much processor time one command may use, descendants included.
    pub fn cpu_time(self, most: Duration) -> Self {
        self.change(move |spec| {
            spec.limits.cpu_time = Some(most.into());
            Ok(())
        })
    }

    /// Works on this directory of the host, in place. Without it the workspace is empty and gone with the sandbox.
    pub fn workspace(self, dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        self.change(move |spec| {
            spec.workspace = Workspace::Local(resolve("workspace", &dir)?);
            Ok(())
        })
    }

    /// Makes the workspace read-only, at the host's mount or device (C-20).
    pub fn read_only(self) -> Self {
        self.change(|spec| {
            spec.read_only = true;
            Ok(())
        })
    }

    /// Shows a further directory or file of the host, read-only.
    pub fn mount(self, source: impl Into<PathBuf>, target: &str) -> Self {
        let (source, target) = (source.into(), parse::<SandboxPath>("mount", target));
        self.change(move |spec| {
            let source = resolve("mount", &source)?;
            spec.mounts.push(Mount { source, target: target?, read_only: true });
            Ok(())
        })
    }

    /// Makes the root of this; without it the host's system directories, read-only.
    pub fn image(self, image: Image) -> Self {
        self.change(|spec| {
            spec.image = image;
            Ok(())
        })
    }

    /// Sets a variable for every command. Nothing is inherited from this process.
    pub fn env(self, name: &str, value: impl Into<String>) -> Self {
        let (name, value) = (parse::<EnvName>("env", name), value.into());
        self.change(|spec| name.map(|name| drop(spec.env.insert(name, value))))
    }

    /// Starts commands in this directory of the sandbox instead of the workspace's root.
    pub fn workdir(self, dir: &str) -> Self {
        let dir = parse::<SandboxPath>("workdir", dir);
        self.change(|spec| dir.map(|dir| spec.workdir = Some(dir)))
    }

    /// What may be reached.
    pub fn network(self, network: Network) -> Self {
        self.change(|spec| {
            spec.network = network;
            Ok(())
        })
    }

    /// The tenant it is run for: attribution, quota, audit.
    pub fn tenant(self, name: &str) -> Self {
        let name = parse::<TenantName>("tenant", name);
        self.change(|spec| name.map(|name| spec.tenant = name))
    }

    /// Gives up a feature by name (C-02). That is recorded.
    pub fn without(self, feature: Feature) -> Self {
        self.change(move |spec| {
            spec.without.insert(feature);
            Ok(())
        })
    }

    /// Refuses a limit that is named and could only be watched.
    pub fn strict(self) -> Self {
        self.change(|spec| {
            spec.strict = true;
            Ok(())
        })
    }

    /// Changes anything else of the spec.
    pub fn spec(self, change: impl FnOnce(&mut SandboxSpec) + Send + 'static) -> Self {
        self.change(|spec| {
            change(spec);
            Ok(())
        })
    }

    /// Begins with a state that [`Sandbox::snapshot`] has captured.
    pub fn from_snapshot(self, snapshot: &SnapshotId) -> Self {
        Self { from: Some(snapshot.clone()), ..self }
    }

    /// Builds the walls. What cannot be enforced is refused in one answer with every reason and remedy; then, and if
    /// the future is dropped, nothing is left (C-01, C-32).
    pub async fn create(self) -> Result<Sandbox> {
        let Self { stockade, mut spec, changes, from } = self;
        let stockade = match stockade {
            Some(stockade) => stockade,
            None => {
                let opened = Stockade::open().await?;
                spec = opened.usual_spec().clone();
                opened
            }
        };
        changes.into_iter().try_for_each(|change| change(&mut spec))?;
        let id = match &from {
            Some(snapshot) => stockade.engine().create_from(snapshot, spec).await?,
            None => stockade.engine().create(spec).await?,
        };
        Ok(Sandbox::new(stockade.engine().clone(), id))
    }
}
