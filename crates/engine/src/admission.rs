//! The first steps of the pipeline: whose a sandbox is, and whether every field of its spec and of its command can be
//! honoured. Nothing is created here (C-01).

use std::sync::Arc;

use stockade_core::{
    Admitted, BackendChoice, BackendName, Capabilities, Command, Error, ErrorCode, Refusal,
    Refusals, Result, SandboxSpec, admit_command,
};

use crate::engine::EngineInner;
use crate::host_views::{WorkspaceBy, behind_links, refuse_moved_git_trees};
use crate::lease_quota::{enforced_limits, refuse_uncounted};
use crate::lifecycle::{RunningSandbox, SandboxOrder};
use crate::request::SandboxRequest;
use crate::select::{Choice, Selection, select};

impl EngineInner {
    /// Admits what a caller asks for, and reads the captured state that it starts with.
    pub(crate) async fn admit_request(
        &self,
        request: &SandboxRequest,
        command: Option<&Command>,
    ) -> Result<SandboxOrder> {
        let by = request.workspace_by();
        let Some(snapshot) = &request.from else {
            return self.admit_spec(&request.spec, by, command).await;
        };
        let stored = self.snapshots.get(snapshot)?;
        let order = self.admit_restored(&stored, request.spec.clone(), by, command).await?;
        let origin = self.read_origin(&stored).await?;
        Ok(order.beginning_with(origin))
    }

    /// Admits one more command of a sandbox that lives.
    pub(crate) async fn admit_command_in(
        &self,
        live: &RunningSandbox,
        command: &Command,
    ) -> Result<()> {
        let admitted = &live.order.admitted;
        match self.registry.capabilities(admitted.backend()).await {
            Some(capabilities) => self.admit_command(command, admitted.spec(), capabilities).await,
            None => Ok(()),
        }
    }

    /// Checks everything before anything is created (C-01).
    pub(crate) async fn admit_spec(
        &self,
        spec: &SandboxSpec,
        workspace_by: WorkspaceBy,
        command: Option<&Command>,
    ) -> Result<SandboxOrder> {
        self.check_known_backend(spec)?;
        let named = spec;
        let spec = &behind_links(named);
        let measured = self.registry.measured(spec).await;
        let mut selection = select(spec, &measured);
        let admitted = selection.admitted.take();
        let Refusals(mut refusals) = self.config.refused_views_with(spec, workspace_by);
        refusals.extend(refuse_moved_git_trees(named, spec));
        refusals.extend(self.secrets.refuse_missing(spec));
        refusals.extend(self.refuse_asking(spec.network.asks()));
        if let Some(admitted) = &admitted {
            let (tenant, limits) = (&spec.tenant, enforced_limits(admitted));
            refusals.extend(refuse_uncounted(tenant, &self.quota(tenant), &limits));
        }
        if admitted.is_none() {
            refusals.extend(every_refusal(spec, &selection).0);
        }
        let Some(admitted) = admitted.filter(|_| refusals.is_empty()) else {
            return Err(self.record_refusals(spec, Refusals(refusals)).await);
        };
        let taken =
            measured.iter().find(|capabilities| capabilities.backend == *admitted.backend());
        if let (Some(command), Some(capabilities)) = (command, taken) {
            self.admit_command(command, spec, capabilities).await?;
        }
        self.resolve_order_image(self.build_order(admitted, workspace_by)?).await
    }

    async fn admit_command(
        &self,
        command: &Command,
        spec: &SandboxSpec,
        capabilities: &Capabilities,
    ) -> Result<()> {
        match admit_command(command, spec, capabilities) {
            Ok(()) => Ok(()),
            Err(refusals) => Err(self.record_refusals(spec, refusals).await),
        }
    }

    fn check_known_backend(&self, spec: &SandboxSpec) -> Result<()> {
        match &spec.backend {
            BackendChoice::Named(name) if self.registry.get(name).is_none() => {
                Err(no_such_backend(name, &self.registry.names()))
            }
            BackendChoice::Named(_) | BackendChoice::Auto => Ok(()),
        }
    }

    fn build_order(&self, admitted: Admitted, workspace_by: WorkspaceBy) -> Result<SandboxOrder> {
        match self.registry.get(admitted.backend()) {
            Some(backend) => {
                let secrets = self.bind_secrets(admitted.spec())?;
                let backend = Arc::clone(backend);
                let (from, image) = (None, None);
                Ok(SandboxOrder { backend, admitted, workspace_by, from, secrets, image })
            }
            None => Err(no_such_backend(admitted.backend(), &self.registry.names())),
        }
    }
}

fn no_such_backend(name: &BackendName, known: &[BackendName]) -> Error {
    let known: Vec<_> = known.iter().map(BackendName::as_str).collect();
    Error::new(ErrorCode::NotFound, "select a backend", format!("there is no backend `{name}`"))
        .remedy(format!("choose one of: auto, {}", known.join(", ")))
}

/// All that stood in the way of every backend, or the plain fact that there is none.
fn every_refusal(spec: &SandboxSpec, selection: &Selection) -> Refusals {
    let mut refusals: Vec<Refusal> = Vec::new();
    for choice in &selection.choices {
        for mut refusal in choice.refusals.iter().cloned() {
            // A field that is wrong is wrong for everybody, and where there is one it is plain who.
            let unclear = refusal.feature.is_some() && selection.choices.len() > 1;
            refusal.backend = unclear.then(|| choice.backend.clone());
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
    }
    if spec.backend == BackendChoice::Auto && !spec.boundaries.is_empty() {
        refusals.extend(refuse_passed_over(spec, selection));
    }
    if refusals.is_empty() {
        refusals.push(Refusal {
            field: "backend".into(),
            feature: None,
            reason: "no backend may be chosen automatically here".into(),
            remedy: "name one; `stockade detect` lists them".into(),
            backend: None,
        });
    }
    Refusals(refusals)
}

/// Who asks for a boundary is told of those backends that have it, or may have it, and are not chosen by themselves.
fn refuse_passed_over(spec: &SandboxSpec, selection: &Selection) -> Vec<Refusal> {
    let may_have_it = |choice: &&Choice| {
        let known = choice.boundary.makes_a_security_claim();
        choice.refusals.is_empty() && (!known || spec.boundaries.contains(&choice.boundary))
    };
    let refuse = |choice: &Choice| Refusal {
        field: "boundaries".into(),
        feature: None,
        reason: format!("{} was passed over: {}", choice.backend, choice.why),
        remedy: format!("name it; `stockade detect` says what {} lacks here", choice.backend),
        backend: Some(choice.backend.clone()),
    };
    selection.choices.iter().filter(may_have_it).map(refuse).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stockade_core::Boundary;

    use super::*;

    #[test]
    fn a_boundary_that_is_to_be_had_only_by_name_is_told_of() {
        let mut machines = Capabilities::none(BackendName::literal("machines"), Boundary::Emulated);
        machines.only_by_name = Some("it emulates, since there is no KVM".into());
        let walls = Capabilities::none(BackendName::literal("walls"), Boundary::SharedKernel);
        let kernel = BackendName::literal("kernel");
        let mut kernel = Capabilities::none(kernel, Boundary::UserspaceKernel);
        kernel.only_by_name = Some("`ls` fails in it".into());
        let boundaries = BTreeSet::from([Boundary::Hardware]);
        let spec = SandboxSpec { boundaries, ..SandboxSpec::default() };
        let told = every_refusal(&spec, &select(&spec, &[machines, walls, kernel])).to_string();
        for part in ["machines was passed over", "no KVM", "walls has the boundary"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("`ls` fails"), "it has another boundary: {told}");
    }
}
