//! The places of one session: the bound one, those an agent made, and local execution.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use stockade_backends::local::Local;
use stockade_core::{ErrorCode, SandboxId, SandboxSpec};
use stockade_engine::{CacheDir, Engine, EngineConfig};
use stockade_workspaces::SandboxWorkspaces;
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::{ToolPlace, WallsDown};
use crate::directories::UsedDirectory;
use crate::options::{AdoptedSandbox, SandboxShare};
use crate::{LocalOptions, SandboxQuota, SpecRenewal, ToolError, ToolboxOptions};

/// Directory of kept output, below the state directory: one directory for each sandbox.
const SPOOL_DIR: &str = "spools";

/// What became of a sandbox that was no loss.
const KILLED_MESSAGE: &str = "was ended on purpose by another process (`stockade kill`)";
/// Age below which kept output is not cleaned away: its sandbox may be newer than the list of those that live.
const MIN_SPOOL_AGE: Duration = Duration::from_secs(3600);

/// The output that sessions have kept of their sandboxes, for `stockade clean`. That of `sandboxes` is in use.
pub fn spool_cache(state_dir: &Path, sandboxes: BTreeSet<String>) -> CacheDir {
    CacheDir {
        kind: "output of agents' sessions",
        path: state_dir.join(SPOOL_DIR),
        is_entry: |_| true,
        used: sandboxes,
        min_age: MIN_SPOOL_AGE,
        maker_lock: None,
    }
}

/// The places of one session.
pub(crate) struct ToolPlaces {
    engine: Arc<Engine>,
    bound: Option<SandboxSpec>,
    adopted: Option<AdoptedSandbox>,
    local: Option<LocalOptions>,
    workspaces: Option<SandboxWorkspaces>,
    renewal: Option<SpecRenewal>,
    state_dir: PathBuf,
    quota: SandboxQuota,
    /// What the next answer has to say about sandboxes that were lost.
    notices: std::sync::Mutex<Vec<String>>,
    /// The place of calls that name none, and whether this session is over.
    usual: Mutex<Usual>,
    made: std::sync::Mutex<BTreeMap<SandboxId, Arc<ToolPlace>>>,
    /// The one that calls use which name none, where the agent has chosen one of those that it made.
    chosen: std::sync::Mutex<Option<SandboxId>>,
}

#[derive(Default)]
struct Usual {
    place: Option<Arc<ToolPlace>>,
    closed: bool,
}

impl ToolPlaces {
    pub(crate) fn new(engine: Arc<Engine>, options: &ToolboxOptions) -> Self {
        Self {
            engine,
            bound: options.bound.clone(),
            adopted: options.adopted.clone(),
            local: options.local.clone(),
            workspaces: options.workspaces.clone(),
            renewal: options.renewal.clone(),
            state_dir: options.state_dir.clone(),
            quota: options.quota.clone(),
            notices: std::sync::Mutex::default(),
            usual: Mutex::default(),
            made: std::sync::Mutex::default(),
            chosen: std::sync::Mutex::default(),
        }
    }

    fn lock_made(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<ToolPlace>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spools_dir(&self) -> PathBuf {
        self.state_dir.join(SPOOL_DIR)
    }

    /// The place a call names, or the usual one, built now if need be.
    ///
    /// A usual one that was lost is replaced, and the answer of the call says so; one that was named is
    /// forgotten, and its loss is the answer.
    pub(crate) async fn find(&self, id: Option<&SandboxId>) -> Result<Arc<ToolPlace>, ToolError> {
        let Some(id) = id.cloned().or_else(|| self.chosen()) else {
            return goes_on(self.find_or_build_default().await?);
        };
        let place = self.find_named(&id).await?;
        if place.lives() {
            return goes_on(place);
        }
        let message = describe_loss(&place).await;
        self.end_dead(&place).await;
        Err(ToolError::new(ErrorCode::Gone, message)
            .remedy("make another with `sandbox_create`, or leave `sandbox_id` out"))
    }

    /// Has calls that name none use this one, or the usual one again.
    pub(crate) async fn choose(&self, id: Option<&SandboxId>) -> Result<(), ToolError> {
        if let Some(id) = id {
            self.find(Some(id)).await?;
        }
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = id.cloned();
        Ok(())
    }

    /// The one that the agent has chosen.
    pub(crate) fn chosen(&self) -> Option<SandboxId> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What there is to say about sandboxes that were lost, once.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn find_named(&self, id: &SandboxId) -> Result<Arc<ToolPlace>, ToolError> {
        let usual = self.usual.lock().await.place.clone();
        let mut known = usual.into_iter().chain(self.lock_made().get(id).cloned());
        known.find(|place| place.id == *id).ok_or_else(|| {
            let message = format!("there is no sandbox `{id}` in this session");
            ToolError::new(ErrorCode::NotFound, message).remedy(
                "`sandbox_list` names the ones there are; those made by other programs cannot be \
                 used from here",
            )
        })
    }

    async fn find_or_build_default(&self) -> Result<Arc<ToolPlace>, ToolError> {
        // Held while it is built, so that concurrent first calls share one.
        let mut usual = self.usual.lock().await;
        if let Some(place) = usual.place.clone().filter(|place| place.lives()) {
            return Ok(place);
        }
        refuse_if(usual.closed)?;
        if self.adopted.is_some()
            && let Some(dead) = &usual.place
        {
            return Err(ToolError::new(ErrorCode::Gone, describe_loss(dead).await)
                .remedy("have the server started anew, or make one with `sandbox_create`"));
        }
        if let Some(dead) = usual.place.take() {
            let told = format!("{}; this call works in a new one", describe_loss(&dead).await);
            self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(told);
            // What cannot be ended keeps its lease and is reaped by a later engine.
            let _ = dead.end().await;
        }
        let place = Arc::new(self.build_usual().await?);
        if !place.adopted {
            place.watch();
        }
        usual.place = Some(Arc::clone(&place));
        Ok(place)
    }

    async fn build_usual(&self) -> Result<ToolPlace, ToolError> {
        self.sweep_spools().await;
        if let Some(adopted) = &self.adopted {
            return ToolPlace::adopt(&self.engine, adopted, self.spools_dir());
        }
        if let Some(spec) = &self.bound {
            return self.build_place(spec.clone(), None, None).await;
        }
        let Some(options) = &self.local else {
            let message = "no sandbox is bound, and none was named";
            return Err(ToolError::new(ErrorCode::Invalid, message)
                .remedy("make one with `sandbox_create` and give its id as `sandbox_id`"));
        };
        let engine = self.local_engine().await?;
        ToolPlace::build(&engine, options.spec(), None, self.spools_dir(), true, None).await
    }

    async fn build_place(
        &self,
        spec: SandboxSpec,
        share: Option<SandboxShare>,
        source: Option<&SandboxWorkspaces>,
    ) -> Result<ToolPlace, ToolError> {
        let spec = match &self.renewal {
            Some(renewal) => renewal.renew(spec).await?,
            None => spec,
        };
        let workspaces = source.or(self.workspaces.as_ref());
        ToolPlace::build(&self.engine, spec, workspaces, self.spools_dir(), false, share).await
    }

    /// An engine with nothing but local execution, on the same journal.
    async fn local_engine(&self) -> Result<Arc<Engine>, ToolError> {
        let config = EngineConfig::at(&self.state_dir);
        Ok(Arc::new(Engine::open(config, vec![Arc::new(Local::default())]).await?))
    }

    /// Builds one more sandbox, over this directory if it has one of its own, or with a workspace from this source.
    pub(crate) async fn create(
        &self,
        spec: SandboxSpec,
        directory: Option<UsedDirectory>,
        source: Option<SandboxWorkspaces>,
    ) -> Result<Arc<ToolPlace>, ToolError> {
        refuse_if(self.usual.lock().await.closed)?;
        let share = SandboxShare { _permit: self.take_permit().await?, _directory: directory };
        let place = Arc::new(self.build_place(spec, Some(share), source.as_ref()).await?);
        place.watch();
        let usual = self.usual.lock().await;
        if let Err(over) = refuse_if(usual.closed) {
            // The session was closed meanwhile, without this place: it is ended here.
            place.end().await?;
            return Err(over);
        }
        self.lock_made().insert(place.id.clone(), Arc::clone(&place));
        Ok(place)
    }

    /// A share of the quota. Those that were lost make room first.
    async fn take_permit(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        if let Ok(permit) = self.quota.take() {
            return Ok(permit);
        }
        let dead: Vec<_> =
            self.lock_made().values().filter(|place| !place.lives()).cloned().collect();
        for place in dead {
            self.end_dead(&place).await;
        }
        self.quota.take()
    }

    /// The place of calls that name none, if it was built.
    pub(crate) async fn bound(&self) -> Option<Arc<ToolPlace>> {
        self.usual.lock().await.place.clone()
    }

    /// Every place there is now.
    pub(crate) async fn all(&self) -> Vec<Arc<ToolPlace>> {
        let usual = self.bound().await;
        usual.into_iter().chain(self.lock_made().values().cloned()).collect()
    }

    /// Ends one.
    pub(crate) async fn destroy(&self, id: &SandboxId) -> Result<(), ToolError> {
        let place = self.find_named(id).await?;
        if place.adopted {
            let message =
                format!("sandbox `{id}` is the user's, and was there before this session");
            return Err(ToolError::new(ErrorCode::Denied, message)
                .remedy("leave it to the user (`stockade kill`)"));
        }
        match place.end().await {
            // What is lost cannot always be ended; it keeps its lease and is reaped by a later engine.
            Err(error) if place.lives() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.drop_dead(&place).await;
        Ok(())
    }

    /// Forgets one that was lost. Its engine gives back what it held, unless the task that watches it was
    /// faster.
    async fn end_dead(&self, place: &Arc<ToolPlace>) {
        if place.adopted {
            return;
        }
        // What cannot be ended keeps its lease and is reaped by a later engine.
        let _ = place.engine.destroy(&place.id).await;
        self.drop_dead(place).await;
    }

    async fn drop_dead(&self, place: &Arc<ToolPlace>) {
        self.lock_made().remove(&place.id);
        if self.chosen().as_ref() == Some(&place.id) {
            *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let mut usual = self.usual.lock().await;
        if usual.place.as_ref().is_some_and(|known| known.id == place.id) {
            usual.place = None;
        }
        place.forget();
    }

    /// Ends all of them; nothing is built afterwards.
    pub(crate) async fn close(&self) {
        let usual = {
            let mut usual = self.usual.lock().await;
            usual.closed = true;
            usual.place.take()
        };
        let made = std::mem::take(&mut *self.lock_made());
        for place in usual.into_iter().chain(made.into_values()) {
            // What could not be ended keeps its lease and is reaped by the next engine.
            let _ = place.end().await;
        }
    }

    /// Removes the output of sandboxes whose engines are gone.
    async fn sweep_spools(&self) {
        let (Ok(leases), Ok(kept)) =
            (self.engine.list().await, std::fs::read_dir(self.spools_dir()))
        else {
            return;
        };
        for entry in kept.flatten() {
            let name = entry.file_name();
            let held = leases.leases.iter().any(|lease| name == lease.body.id.as_str());
            if !held {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Nothing is started in a sandbox that is paused: it would only wait, and run out of time.
fn goes_on(place: Arc<ToolPlace>) -> Result<Arc<ToolPlace>, ToolError> {
    if place.paused.load(Ordering::Acquire) {
        let message = format!("sandbox `{}` is paused while a person decides about it", place.id);
        return Err(ToolError::new(ErrorCode::Denied, message)
            .remedy("call again when `workspace_apply` has answered"));
    }
    Ok(place)
}

/// That a sandbox was lost or ended on purpose, why, and what went with it.
async fn describe_loss(place: &ToolPlace) -> String {
    let how = match place.why_down().await {
        WallsDown::Killed => KILLED_MESSAGE.to_owned(),
        WallsDown::Lost(why) => format!("was lost ({why})"),
    };
    format!("sandbox `{}` {how}: {}", place.id, place.what_is_lost())
}

fn refuse_if(closed: bool) -> Result<(), ToolError> {
    if closed {
        return Err(ToolError::new(ErrorCode::Gone, "this session is over"));
    }
    Ok(())
}
