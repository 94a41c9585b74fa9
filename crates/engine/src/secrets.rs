//! Values of secrets, held in memory for the sandboxes of a tenant and for nothing else: no record, lease,
//! snapshot or error has one (C-41). A sandbox whose spec binds a secret is refused while no value is held (C-53).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use stockade_core::{
    EnvName, Error, ErrorCode, Feature, FilesExt, Refusal, Refusals, RenewalCause, Result, Sandbox,
    SandboxId, SandboxPath, SandboxSpec, SecretBinding, Support, TenantName,
};
use stockade_network::{
    GUEST_BUNDLE_PATH, GUEST_JAVA_STORE_PATH, SecretSet, SecretSupply, TrustStore,
};

use crate::engine::{Engine, EngineInner, lock_mutex};
use crate::lifecycle::RunningSandbox;

/// Where the files of certificates lie.
const GUEST_BUNDLE_DIR: &str = "/run/stockade";
/// Every user inside may read them.
const BUNDLE_MODE: u32 = 0o644;

/// The values that an engine holds, by tenant and name.
#[derive(Default)]
pub(crate) struct HeldSecrets(Mutex<HashMap<TenantName, BTreeMap<EnvName, Arc<SecretSupply>>>>);

impl HeldSecrets {
    fn supply(&self, tenant: &TenantName, secret: &SecretBinding) -> Option<Arc<SecretSupply>> {
        lock_mutex(&self.0).get(tenant)?.get(secret.name()).cloned()
    }

    /// A refusal for each secret of a spec that has no value.
    pub(crate) fn refuse_missing(&self, spec: &SandboxSpec) -> Vec<Refusal> {
        let missing = |secret: &&SecretBinding| self.supply(&spec.tenant, secret).is_none();
        let refuse = |secret: &SecretBinding| {
            let name = secret.name();
            Refusal {
                field: "secrets".into(),
                feature: None,
                reason: format!("there is no value for `{name}`"),
                remedy: format!(
                    "set the variable {name}, or name where it is: `--secret-file {name}=PATH`, \
                     `--secret-command {name}=COMMAND`"
                ),
                backend: None,
            }
        };
        spec.secrets.iter().filter(missing).map(refuse).collect()
    }
}

impl Engine {
    /// Holds values of secrets for sandboxes of this tenant that are made from now on: values as they are, or
    /// [supplies](SecretSupply) that are asked for another one when that is due. What was held under the same name is
    /// replaced; sandboxes that there are keep theirs.
    pub fn hold_secrets<S: Into<SecretSupply>>(
        &self,
        tenant: &TenantName,
        values: BTreeMap<EnvName, S>,
    ) {
        if !values.is_empty() {
            let share =
                |(name, value): (EnvName, S)| (name, Arc::<SecretSupply>::new(value.into()));
            let supplies = values.into_iter().map(share);
            lock_mutex(&self.inner.secrets.0).entry(tenant.clone()).or_default().extend(supplies);
        }
    }

    /// Stops a sandbox where it is. Values of its secrets are asked for again as after [`Engine::resume`]: ending a program
    /// in it may let it go on too.
    pub async fn pause(&self, id: &SandboxId) -> Result<()> {
        let live = self.inner.live(id)?;
        // Before the pause too: it may succeed after the caller has gone away or was told of a failure.
        live.mark_secrets_stale(RenewalCause::Resumed);
        if let Err(error) = live.sandbox.pause().await {
            return Err(self.explain_no_pause(&live, error).await);
        }
        live.mark_secrets_stale(RenewalCause::Resumed);
        Ok(())
    }

    /// With the reason that was measured, where the backend cannot pause here.
    async fn explain_no_pause(&self, live: &RunningSandbox, error: Error) -> Error {
        let backend = live.order.admitted.backend();
        if error.code() != ErrorCode::Unsupported {
            return error;
        }
        let measured = self.inner.registry.capabilities(backend).await;
        match measured.map(|measured| measured.support(Feature::Pause)) {
            Some(Support::Missing { reason, remedy }) => {
                let message = format!("{backend} cannot pause here: {reason}");
                Error::new(ErrorCode::Unsupported, "pause", message).remedy(remedy)
            }
            Some(Support::Full { .. } | Support::Partial { .. }) | None => error,
        }
    }

    /// Lets a paused sandbox go on. Values of its secrets that can be asked for again are, before they are used again.
    pub async fn resume(&self, id: &SandboxId) -> Result<()> {
        let live = self.inner.live(id)?;
        // Before anything in it goes on.
        live.mark_secrets_stale(RenewalCause::Resumed);
        live.sandbox.resume().await
    }
}

impl EngineInner {
    /// What stands for the secrets of a spec, puts them in, and opens connections whose requests are judged. Nothing
    /// where a spec binds no secret and names no request.
    pub(crate) fn bind_secrets(&self, spec: &SandboxSpec) -> Result<Option<Arc<SecretSet>>> {
        if spec.secrets.is_empty() && !spec.network.judges_requests() {
            return Ok(None);
        }
        let find = |secret: &SecretBinding| -> Result<(SecretBinding, Arc<SecretSupply>)> {
            match self.secrets.supply(&spec.tenant, secret) {
                Some(supply) => Ok((secret.clone(), supply)),
                None => {
                    let refusals = Refusals(self.secrets.refuse_missing(spec));
                    Err(Error::refused("admit", None, refusals))
                }
            }
        };
        let held = spec.secrets.iter().map(find).collect::<Result<Vec<_>>>()?;
        let trust = TrustStore::of_host(&self.config.trust)?;
        Ok(Some(Arc::new(SecretSet::new(held, trust)?)))
    }
}

impl RunningSandbox {
    /// Has values that can be asked for again asked for before they are used again.
    pub(crate) fn mark_secrets_stale(&self, cause: RenewalCause) {
        if let Some(secrets) = &self.order.secrets {
            secrets.mark_stale(cause);
        }
    }

    /// Puts its own certificates back, after files of another state have come in their place.
    pub(crate) async fn restore_bundle(&self) -> Result<()> {
        match &self.order.secrets {
            Some(secrets) => write_bundle(self.sandbox.as_ref(), secrets).await,
            None => Ok(()),
        }
    }

    /// Refuses to copy a sandbox with secrets: what its programs hold stands for values in this one alone.
    pub(crate) fn check_copyable(&self) -> Result<()> {
        if self.order.secrets.as_ref().is_none_or(|secrets| secrets.is_empty()) {
            return Ok(());
        }
        let message = "a sandbox with secrets is not copied: their values stay with it";
        Err(Error::new(ErrorCode::Unsupported, "fork", message)
            .remedy("take a snapshot, and bind the secrets again where it goes on"))
    }
}

/// Puts the certificates that programs inside are to trust where their variables say.
pub(crate) async fn write_bundle(sandbox: &dyn Sandbox, secrets: &SecretSet) -> Result<()> {
    let files = sandbox.files()?;
    files.make_dir(&parse_path(GUEST_BUNDLE_DIR)?).await?;
    let forms =
        [(GUEST_BUNDLE_PATH, secrets.bundle()), (GUEST_JAVA_STORE_PATH, secrets.java_store())];
    for (path, certificates) in forms {
        let path = parse_path(path)?;
        files.write_all(&path, certificates).await?;
        files.set_mode(&path, BUNDLE_MODE).await?;
    }
    Ok(())
}

fn parse_path(path: &str) -> Result<SandboxPath> {
    path.parse::<SandboxPath>().map_err(|error| {
        Error::new(ErrorCode::Invalid, "bind secrets", "a built-in path").source(error)
    })
}
