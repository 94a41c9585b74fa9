//! The guard of a workspace: acquired for one sandbox before its walls are built, released after they are
//! gone.

use std::collections::BTreeMap;

use serde::Serialize;
use stockade_core::{Result, SandboxSpec, Workspace as Place, WorkspaceId};
use stockade_engine::Engine;
use stockade_tools::{ViewSource, Views};
use stockade_workspaces::{Diff, Hint, Hold, Kind, Mechanism, Request, Workspace, Workspaces};

use super::args::RESUME_FLAG;
use super::{WantedWorkspace, claim_workspace, off_thread, open_workspaces};
use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::Printer;

/// A workspace that a sandbox has, or is about to have.
#[derive(Debug)]
pub struct WorkspaceGuard {
    workspaces: Workspaces,
    workspace: Workspace,
    /// Where the backend does not say for itself that it is in use.
    hold: Option<Hold>,
}

/// A workspace whose sandbox has ended, and what was changed in it.
#[derive(Debug)]
pub struct SettledWorkspace {
    /// Where it is kept.
    pub workspaces: Workspaces,
    /// It.
    pub workspace: Workspace,
    /// What was changed.
    pub diff: Diff,
}

/// What there is to say about it in one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSummary {
    id: WorkspaceId,
    changes: usize,
    held: usize,
}

/// Takes the workspace that is wanted and puts it into the spec; nothing where it needs no taking.
pub async fn take_view(
    wanted: &WantedWorkspace,
    spec: &mut SandboxSpec,
    engine: &Engine,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<WorkspaceGuard>> {
    let (workspaces, workspace) = match (wanted, wanted.hint()) {
        (WantedWorkspace::Kept(handle), _) => {
            let workspaces = open_workspaces(settings)?;
            let id = handle.find(&workspaces, RESUME_FLAG)?;
            // Said here by its name; a backend that lost a race would say the same of a path.
            drop(claim_workspace(
                &workspaces,
                &id,
                RESUME_FLAG,
                "end it first (`stockade ps`, `stockade kill`)",
            )?);
            let workspace = workspaces.get(&id)?;
            (workspaces, workspace)
        }
        (_, Some(hint)) => acquire_workspace(hint, spec, engine, settings, printer).await?,
        (_, None) => return Ok(None),
    };
    spec.workspace = workspace.spec();
    let hold = workspaces.hold(&workspace.id)?;
    Ok(Some(WorkspaceGuard { workspaces, workspace, hold }))
}

/// The same for a sandbox that another process builds.
pub async fn take_view_ahead(
    wanted: &WantedWorkspace,
    spec: &mut SandboxSpec,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<WorkspaceGuard>> {
    if let WantedWorkspace::Plain(_) = wanted {
        return Ok(None);
    }
    let engine = registry::engine(settings, &spec.backend).await?;
    let taken = take_view(wanted, spec, &engine, settings, printer).await;
    engine.close().await?;
    taken
}

async fn acquire_workspace(
    hint: Hint,
    spec: &SandboxSpec,
    engine: &Engine,
    settings: &Settings,
    printer: &Printer,
) -> Result<(Workspaces, Workspace)> {
    let workspaces = open_workspaces(settings)?;
    let request = build_request(hint, &workspaces, spec, engine).await;
    let what = match (&request.hint, request.mechanism) {
        (Hint::Git { .. }, _) => "fetching the repository",
        (_, Mechanism::Copy) => "copying the workspace",
        (_, Mechanism::Kernel) => "making the workspace",
    };
    let workspace = printer.patiently(what, workspaces.acquire(request)).await?;
    Ok((workspaces, workspace))
}

async fn build_request(
    hint: Hint,
    workspaces: &Workspaces,
    spec: &SandboxSpec,
    engine: &Engine,
) -> Request {
    Request {
        hint,
        tenant: spec.tenant.clone(),
        writable: !spec.read_only,
        mechanism: choose_mechanism(workspaces, spec, engine).await,
        metadata: BTreeMap::new(),
    }
}

/// Where each of an agent's sandboxes takes one of its own from; nothing where it needs no taking.
pub async fn build_view_source(
    wanted: &WantedWorkspace,
    spec: &SandboxSpec,
    engine: &Engine,
    settings: &Settings,
) -> Result<Option<Views>> {
    let (workspaces, source) = match (wanted, wanted.hint()) {
        (WantedWorkspace::Kept(handle), _) => {
            let workspaces = open_workspaces(settings)?;
            let id = handle.find(&workspaces, "--resume")?;
            (workspaces, ViewSource::Kept(id))
        }
        (_, Some(hint)) => {
            let workspaces = open_workspaces(settings)?;
            let request = build_request(hint, &workspaces, spec, engine).await;
            (workspaces, ViewSource::Fresh(request))
        }
        (_, None) => return Ok(None),
    };
    Ok(Some(Views::new(workspaces, source)))
}

/// An overlay by the kernel where a backend can build walls around it, else a copy, which all backends take.
async fn choose_mechanism(
    workspaces: &Workspaces,
    spec: &SandboxSpec,
    engine: &Engine,
) -> Mechanism {
    let Place::Overlay(layers) = &spec.workspace else { return Mechanism::default() };
    if workspaces.mechanism() == Mechanism::Copy {
        return Mechanism::Copy;
    }
    if engine.explain(spec).await.chosen.is_some() {
        return Mechanism::Kernel;
    }
    let copied = SandboxSpec { workspace: Place::Local(layers.lower.clone()), ..spec.clone() };
    match engine.explain(&copied).await.chosen {
        Some(_) => Mechanism::Copy,
        // What else stands in the way is told when the sandbox is asked for.
        None => Mechanism::Kernel,
    }
}

impl WorkspaceGuard {
    /// The same in the process that has the sandbox.
    pub fn again(id: &WorkspaceId, settings: &Settings) -> Result<Self> {
        let workspaces = open_workspaces(settings)?;
        let (workspace, hold) = (workspaces.get(id)?, workspaces.hold(id)?);
        Ok(Self { workspaces, workspace, hold })
    }

    /// Its id.
    pub fn id(&self) -> &WorkspaceId {
        &self.workspace.id
    }

    /// Gives it back, where no sandbox came of it.
    pub async fn give_back(self) -> Result<()> {
        drop(self.hold);
        self.workspaces.release(&self.workspace.id).await
    }

    /// Gives it back after its sandbox, and says what was changed. It is kept only for that.
    pub async fn settle(self) -> Result<SettledWorkspace> {
        let Self { workspaces, workspace, hold } = self;
        let (from, id) = (workspaces.clone(), workspace.id.clone());
        let diff = off_thread(move || from.diff(&id)).await;
        drop(hold);
        workspaces.release(&workspace.id).await?;
        Ok(SettledWorkspace { workspaces, workspace, diff: diff? })
    }
}

impl SettledWorkspace {
    /// What there is to say about it in one object.
    pub fn summary(&self) -> WorkspaceSummary {
        WorkspaceSummary {
            id: self.workspace.id.clone(),
            changes: self.diff.changes.len(),
            held: self.diff.held().count(),
        }
    }

    /// Says what was changed, and what can be done about it.
    pub fn tell(&self, printer: &Printer) {
        let id = &self.workspace.id;
        let kept = match self.diff.changes.len() {
            0 => return printer.note("nothing was changed in the workspace"),
            1 => "1 change is kept apart".to_owned(),
            many => format!("{many} changes are kept apart"),
        };
        let held = match self.diff.held().count() {
            0 => String::new(),
            held => format!(", {held} of them held back from apply"),
        };
        let to = match self.workspace.kind {
            Kind::Git => " --to DIR",
            Kind::Overlay | Kind::Local | Kind::Ephemeral => "",
        };
        printer.note(&format!("{kept} in workspace {id}{held}"));
        printer.note(&format!("  to see:      stockade workspace diff {id}"));
        printer.note(&format!("  to apply:    stockade workspace apply {id}{to}"));
        printer.note(&format!("  to discard:  stockade workspace discard {id}"));
    }
}
