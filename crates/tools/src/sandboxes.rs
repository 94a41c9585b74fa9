//! The tools about sandboxes themselves. An agent may ask for less than the user set out, or the same;
//! more takes a person's consent. It names no directory of the host but those beneath what the user allowed.

use serde::Serialize;
use stockade_core::{
    Boundary, HostPath, HostTree, Image, LimitKind, Limits, Network, SandboxId, SandboxSpec,
    Workspace, WorkspaceAt,
};

use crate::approval::{self, ApprovalSubject, Detail, Facts, NetworkFact, Programs};
use crate::arguments::{SandboxCreate, SandboxDestroy, SandboxList, SandboxUse};
use crate::binding::Binding;
use crate::directories::UsedDirectory;
use crate::repositories::Repository;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

pub(crate) async fn create_sandbox(
    session: &ToolSession,
    args: SandboxCreate,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let template = &session.options.template;
    let take = |given: &String| session.options.directories.take("workspace", given, template);
    let directory = args.workspace.as_ref().map(take).transpose()?;
    let repository = Repository::named_by(&args)?;
    let mut spec = requested_spec(template, &args, directory.as_ref().map(UsedDirectory::path))?;
    if let Some(repository) = &repository {
        repository.plan_workspace(&mut spec, &session.options.state_dir)?;
    }
    check_cores(&args.limits)?;
    let facts = Facts {
        tool: "sandbox_create".into(),
        programs: Programs::NONE,
        paths: Vec::new(),
        network: NetworkFact::from(&spec.network),
        backend: None,
        // Walls are about to stand; which ones is the user's choice, not the agent's.
        boundary: Boundary::SharedKernel,
        widens: is_wider_than_template(template, &spec) || repository.is_some(),
        person_only: false,
        details: requested_details(&args, &spec),
    };
    let subject = ApprovalSubject {
        engine: &session.engine,
        tenant: &spec.tenant,
        sandbox: None,
        job: None,
        facts,
    };
    approval::approve_call(&session.options.approval, subject, call).await?;
    let source = match &repository {
        Some(repository) => Some(repository.open_source(session, &spec).await?),
        None => None,
    };
    let place = session.places.create(spec, directory, source).await?;
    ToolAnswer::data(&Binding::of(&place))
}

/// What the agent chose, in words.
fn requested_details(args: &SandboxCreate, spec: &SandboxSpec) -> Vec<Detail> {
    let network = args.network.as_ref().map(|network| match network {
        Network::None => "none".to_owned(),
        Network::Auto | Network::Loopback => "its own loopback".to_owned(),
        Network::Egress(rules) => {
            rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }
    });
    let limits = (args.limits != Limits::default())
        .then(|| serde_json::to_string(&args.limits).unwrap_or_default());
    let workspace = match &spec.workspace {
        Workspace::Local(path) => args.workspace.as_ref().map(|_| path.to_string()),
        Workspace::Ephemeral | Workspace::Overlay(_) => {
            args.empty_workspace.then(|| "an empty one".to_owned())
        }
    };
    let image = args.image.as_ref().map(ToString::to_string);
    let git = args.git.clone();
    let open =
        [("network", network), ("limits", limits), ("workspace", workspace), ("image", image)];
    open.into_iter()
        .chain([("git", git), ("rev", args.rev.clone())])
        .filter_map(|(name, text)| Some(Detail::open(name, text?)))
        .collect()
}

/// Refuses more cores than this machine has, naming both readings of the number.
fn check_cores(limits: &Limits) -> Result<(), ToolError> {
    let cores = std::thread::available_parallelism()
        .map_or(u32::MAX, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
    match limits.too_many_cores(cores) {
        None => Ok(()),
        Some((reason, remedy)) => Err(ToolError::field("limits.cpuRate", reason).remedy(remedy)),
    }
}

fn requested_spec(
    template: &SandboxSpec,
    args: &SandboxCreate,
    directory: Option<&HostPath>,
) -> Result<SandboxSpec, ToolError> {
    let mut spec = template.clone();
    spec.limits = args.limits.or(template.limits);
    spec.labels.extend(args.labels.clone());
    if let Some(network) = &args.network {
        spec.network = network.clone();
    }
    if args.image.is_some() || directory.is_some() || args.git.is_some() || args.empty_workspace {
        // A package cache is kept for one project, by the programs of one root.
        spec.remove_trees(HostTree::CACHE_PART);
    }
    let elsewhere = directory.is_some_and(|dir| spec.workspace != Workspace::Local(dir.clone()));
    if elsewhere || args.git.is_some() || args.empty_workspace {
        // The git directory of the template's workspace, parts of which may be writable.
        spec.remove_trees(HostTree::GIT_PART);
    }
    if let Some(image) = &args.image {
        spec.image = Image::Named(image.clone());
        // The host's toolchains and paths belong to its own root.
        spec.trees.clear();
        spec.workspace_at = spec.workspace_at.filter(|at| at.required);
    }
    if args.git.is_some() && (directory.is_some() || args.empty_workspace) {
        let problem = "is a workspace, and another is asked for beside it";
        return Err(ToolError::field("git", problem).remedy("leave one of them out"));
    }
    match (directory, args.empty_workspace) {
        (Some(_), true) => {
            let problem = "is a directory, and `empty_workspace` asks for none";
            return Err(ToolError::field("workspace", problem).remedy("leave one of them out"));
        }
        (Some(directory), false) => {
            spec.workspace = Workspace::Local(directory.clone());
            spec.workspace_at = find_own_path(directory, &spec.image);
        }
        (None, true) => {
            spec.workspace = Workspace::Ephemeral;
            spec.read_only = false;
        }
        (None, false) => {}
    }
    Ok(spec)
}

/// A directory appears at its own path on the host's root, where that is free.
fn find_own_path(directory: &HostPath, image: &Image) -> Option<WorkspaceAt> {
    match image {
        Image::Host => {}
        Image::Directory(_) | Image::Oci(_) | Image::Named(_) | Image::Wasm(_) => return None,
    }
    let at = WorkspaceAt { path: directory.to_string().parse().ok()?, required: false };
    at.problem().is_none().then_some(at)
}

/// Whether a spec asks for more than its template.
fn is_wider_than_template(template: &SandboxSpec, spec: &SandboxSpec) -> bool {
    let reach = |network: &Network| match network {
        Network::None => 0,
        Network::Auto | Network::Loopback => 1,
        Network::Egress(_) => 2,
    };
    let network = match (&template.network, &spec.network) {
        (Network::Egress(allowed), Network::Egress(asked)) => {
            !asked.iter().all(|rule| allowed.contains(rule))
        }
        // A loopback of its own leads nowhere.
        (allowed, asked) => reach(asked) > reach(allowed).max(1),
    };
    let allowed = template.limits.or(Limits::defaults());
    network
        || spec.image != template.image
        || LimitKind::ALL.into_iter().any(|kind| is_limit_exceeded(kind, &spec.limits, &allowed))
}

fn is_limit_exceeded(kind: LimitKind, asked: &Limits, allowed: &Limits) -> bool {
    fn more<T: PartialOrd>(asked: Option<T>, allowed: Option<T>) -> bool {
        matches!((asked, allowed), (Some(asked), Some(allowed)) if asked > allowed)
    }
    match kind {
        LimitKind::CpuRate => more(asked.cpu_rate, allowed.cpu_rate),
        LimitKind::CpuTime => more(asked.cpu_time, allowed.cpu_time),
        LimitKind::WallTime => more(asked.wall_time, allowed.wall_time),
        LimitKind::Memory => more(asked.memory, allowed.memory),
        LimitKind::Disk => more(asked.disk, allowed.disk),
        LimitKind::Processes => more(asked.processes, allowed.processes),
        LimitKind::OpenFiles => more(asked.open_files, allowed.open_files),
        LimitKind::Output => more(asked.output, allowed.output),
        LimitKind::Fuel => more(asked.fuel, allowed.fuel),
    }
}

#[derive(Debug, Serialize)]
struct SandboxListing {
    sandboxes: Vec<Binding>,
    /// The one that calls use which name none, if the agent has chosen one.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<SandboxId>,
}

pub(crate) async fn list_sandboxes(
    session: &ToolSession,
    _args: SandboxList,
) -> Result<ToolAnswer, ToolError> {
    let places = session.places.all().await;
    let sandboxes = places.iter().filter(|place| place.lives()).map(|place| Binding::of(place));
    let chosen = session.places.chosen();
    ToolAnswer::data(&SandboxListing { sandboxes: sandboxes.collect(), chosen })
}

pub(crate) async fn use_sandbox(
    session: &ToolSession,
    args: SandboxUse,
) -> Result<ToolAnswer, ToolError> {
    session.places.choose(args.sandbox_id.as_ref()).await?;
    let data = serde_json::json!({ "sandboxId": args.sandbox_id });
    let text = match &args.sandbox_id {
        Some(id) => format!("calls that name no sandbox use {id} from now on"),
        None => "calls that name no sandbox use the one that the server was started with".into(),
    };
    ToolAnswer::told(&data, text)
}

pub(crate) async fn destroy_sandbox(
    session: &ToolSession,
    args: SandboxDestroy,
) -> Result<ToolAnswer, ToolError> {
    session.places.destroy(&args.sandbox_id).await?;
    let data = serde_json::json!({ "sandboxId": args.sandbox_id, "destroyed": true });
    ToolAnswer::told(&data, format!("sandbox {} is gone", args.sandbox_id))
}

#[cfg(test)]
mod tests {
    use stockade_core::Bytes;

    use super::*;

    fn args(json: serde_json::Value) -> SandboxCreate {
        serde_json::from_value(json).unwrap()
    }

    fn asks_for_more(template: &SandboxSpec, json: serde_json::Value) -> bool {
        is_wider_than_template(template, &requested_spec(template, &args(json), None).unwrap())
    }

    #[test]
    fn more_than_the_template_is_noticed() {
        let template = SandboxSpec::default();
        for (json, more) in [
            (serde_json::json!({}), false),
            (serde_json::json!({"network": "loopback"}), false),
            (serde_json::json!({"network": {"egress": ["example.com"]}}), true),
            (serde_json::json!({"limits": {"memory": "256m"}}), false),
            (serde_json::json!({"limits": {"memory": "1g"}}), true),
            (serde_json::json!({"limits": {"wallTime": "2m"}}), true),
            (serde_json::json!({"image": "debian:12"}), true),
        ] {
            assert_eq!(asks_for_more(&template, json.clone()), more, "{json}");
        }
        let wide = SandboxSpec {
            limits: Limits { memory: Some(Bytes::mib(4096)), ..Limits::default() },
            network: serde_json::from_value(
                serde_json::json!({"egress": ["a.example", "b.example"]}),
            )
            .unwrap(),
            ..template
        };
        assert!(!asks_for_more(&wide, serde_json::json!({"limits": {"memory": "1g"}})));
        assert!(!asks_for_more(&wide, serde_json::json!({"network": {"egress": ["a.example"]}})));
        assert!(asks_for_more(&wide, serde_json::json!({"network": {"egress": ["c.example"]}})));
    }

    #[test]
    fn a_root_of_the_host_cannot_be_asked_for() {
        for json in [
            serde_json::json!({"workspace": {"local": "/"}}),
            serde_json::json!({"image": "/etc"}),
            serde_json::json!({"image": "../root"}),
        ] {
            assert!(serde_json::from_value::<SandboxCreate>(json.clone()).is_err(), "{json}");
        }
    }

    #[test]
    fn a_directory_takes_the_place_of_the_usual_one_at_its_own_path() {
        let template = SandboxSpec { read_only: true, ..SandboxSpec::default() };
        let directory: HostPath = "/srv/project".parse().unwrap();
        let spec = requested_spec(&template, &SandboxCreate::default(), Some(&directory)).unwrap();
        assert_eq!(spec.workspace, Workspace::Local(directory.clone()));
        assert!(spec.read_only && spec.workspace_at.is_some());
        let both = args(serde_json::json!({"empty_workspace": true}));
        assert!(requested_spec(&template, &both, Some(&directory)).is_err());
    }

    #[test]
    fn the_git_directory_of_the_usual_workspace_is_not_shown_with_another_one() {
        let usual: HostPath = "/srv/usual".parse().unwrap();
        let mount = stockade_core::Mount {
            source: "/srv/main/.git".parse().unwrap(),
            target: "/srv/main/.git".parse().unwrap(),
            read_only: false,
        };
        let tree = HostTree { part_of: HostTree::GIT_PART.into(), mount, required: false };
        let (workspace, trees) = (Workspace::Local(usual.clone()), vec![tree]);
        let template = SandboxSpec { workspace, trees, ..SandboxSpec::default() };
        let shown = |json: serde_json::Value, directory: Option<&HostPath>| {
            requested_spec(&template, &args(json), directory).unwrap().trees.len()
        };
        let other: HostPath = "/srv/other".parse().unwrap();
        assert_eq!(shown(serde_json::json!({}), None), 1);
        assert_eq!(shown(serde_json::json!({}), Some(&usual)), 1);
        assert_eq!(shown(serde_json::json!({}), Some(&other)), 0);
        assert_eq!(shown(serde_json::json!({"empty_workspace": true}), None), 0);
        assert_eq!(shown(serde_json::json!({"git": "https://a.example/b.git"}), None), 0);
    }
}
