//! Where the workspaces of a command's sandboxes come from, and what there is to say about one that was released.
//! The engine acquires and releases them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use stockade_core::{Image, Result, SandboxSpec, Workspace as SpecWorkspace, WorkspaceId};
use stockade_engine::{Engine, WorkspaceGuard};
use stockade_workspaces::{
    Diff, Hint, Kind, ManagedWorkspace, Mechanism, Request, SandboxWorkspaces, WorkspaceOrigin,
    Workspaces,
};

use super::args::RESUME_FLAG;
use super::{WantedWorkspace, claim_workspace, open_workspaces};
use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::Printer;

/// A workspace whose sandbox has ended, and what was changed in it.
#[derive(Debug)]
pub struct SettledWorkspace {
    /// Where it is kept.
    pub workspaces: Workspaces,
    /// It.
    pub workspace: ManagedWorkspace,
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

/// Where the one sandbox of a command gets its workspace from; nothing where the spec is taken as it is.
pub async fn build_source(
    wanted: &WantedWorkspace,
    spec: &SandboxSpec,
    engine: &Engine,
    settings: &Settings,
) -> Result<Option<SandboxWorkspaces>> {
    let WantedWorkspace::Kept(handle) = wanted else {
        return build_fresh_source(wanted, spec, engine, settings).await;
    };
    let workspaces = open_workspaces(settings)?;
    let id = handle.find(&workspaces, RESUME_FLAG)?;
    // Said here by its name; a backend that lost a race would say the same of a path.
    drop(claim_workspace(
        &workspaces,
        &id,
        RESUME_FLAG,
        "end it first (`stockade ps`, `stockade kill`)",
    )?);
    Ok(Some(SandboxWorkspaces::new(workspaces, WorkspaceOrigin::Kept(id))))
}

/// The same for each of an agent's sandboxes.
pub async fn build_shared_source(
    wanted: &WantedWorkspace,
    spec: &SandboxSpec,
    engine: &Engine,
    settings: &Settings,
) -> Result<Option<SandboxWorkspaces>> {
    let WantedWorkspace::Kept(handle) = wanted else {
        return build_fresh_source(wanted, spec, engine, settings).await;
    };
    let workspaces = open_workspaces(settings)?;
    let id = handle.find(&workspaces, RESUME_FLAG)?;
    Ok(Some(SandboxWorkspaces::new(workspaces, WorkspaceOrigin::KeptOrForked(id))))
}

/// The same in the process that builds the sandbox, of a workspace that was acquired for it.
pub fn reopen_source(id: &WorkspaceId, settings: &Settings) -> Result<SandboxWorkspaces> {
    let origin = WorkspaceOrigin::Kept(id.clone());
    Ok(SandboxWorkspaces::new(open_workspaces(settings)?, origin))
}

/// Acquires the workspace of a sandbox that another process builds; nothing where the spec is taken as it is.
pub async fn acquire_ahead(
    wanted: &WantedWorkspace,
    spec: &mut SandboxSpec,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<WorkspaceGuard>> {
    if let WantedWorkspace::Plain(_) = wanted {
        return Ok(None);
    }
    let engine = registry::engine(settings, &spec.backend).await?;
    let acquired = acquire_from_source(wanted, spec, &engine, settings, printer).await;
    engine.close().await?;
    acquired
}

async fn acquire_from_source(
    wanted: &WantedWorkspace,
    spec: &mut SandboxSpec,
    engine: &Engine,
    settings: &Settings,
    printer: &Printer,
) -> Result<Option<WorkspaceGuard>> {
    let Some(source) = build_source(wanted, spec, engine, settings).await? else {
        return Ok(None);
    };
    // The image has been pulled by now.
    let what = describe_wait(Some(&source), &Image::Host);
    let acquired = engine.acquire_workspace(Arc::new(source), spec);
    printer.patiently(what, acquired).await.map(Some)
}

/// What a person waits for while a sandbox is built: what takes longest.
pub fn describe_wait(source: Option<&SandboxWorkspaces>, image: &Image) -> &'static str {
    match source.map(SandboxWorkspaces::origin) {
        Some(WorkspaceOrigin::Fresh(Request { hint: Hint::Git { .. }, .. })) => {
            "fetching the repository"
        }
        Some(WorkspaceOrigin::Fresh(Request { mechanism: Mechanism::Copy, .. })) => {
            "copying the workspace"
        }
        Some(
            WorkspaceOrigin::Fresh(_) | WorkspaceOrigin::Kept(_) | WorkspaceOrigin::KeptOrForked(_),
        )
        | None => describe_build(image),
    }
}

fn describe_build(image: &Image) -> &'static str {
    match image {
        Image::Named(_) => "pulling the image and building the sandbox",
        Image::Host | Image::Directory(_) | Image::Oci(_) | Image::Wasm(_) => {
            "building the sandbox"
        }
    }
}

async fn build_fresh_source(
    wanted: &WantedWorkspace,
    spec: &SandboxSpec,
    engine: &Engine,
    settings: &Settings,
) -> Result<Option<SandboxWorkspaces>> {
    let Some(hint) = wanted.hint() else { return Ok(None) };
    let workspaces = open_workspaces(settings)?;
    let request = build_request(hint, &workspaces, spec, engine).await;
    Ok(Some(SandboxWorkspaces::new(workspaces, WorkspaceOrigin::Fresh(request))))
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

/// An overlay by the kernel where a backend can build walls around it, else a copy, which all backends take.
async fn choose_mechanism(
    workspaces: &Workspaces,
    spec: &SandboxSpec,
    engine: &Engine,
) -> Mechanism {
    let SpecWorkspace::Overlay(layers) = &spec.workspace else { return Mechanism::default() };
    if workspaces.mechanism() == Mechanism::Copy {
        return Mechanism::Copy;
    }
    if engine.explain(spec).await.chosen.is_some() {
        return Mechanism::Kernel;
    }
    let copied =
        SandboxSpec { workspace: SpecWorkspace::Local(layers.lower.clone()), ..spec.clone() };
    match engine.explain(&copied).await.chosen {
        Some(_) => Mechanism::Copy,
        // What else stands in the way is told when the sandbox is asked for.
        None => Mechanism::Kernel,
    }
}

impl SettledWorkspace {
    /// The workspace that was released with the sandbox of a run, if there was one.
    pub fn of(source: Option<&SandboxWorkspaces>) -> Result<Option<Self>> {
        let Some(source) = source else { return Ok(None) };
        let Some(loan) = source.loans().pop() else { return Ok(None) };
        let Some(diff) = loan.changes().cloned().transpose()? else { return Ok(None) };
        let workspaces = source.workspaces().clone();
        Ok(Some(Self { workspaces, workspace: loan.workspace().clone(), diff }))
    }

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
