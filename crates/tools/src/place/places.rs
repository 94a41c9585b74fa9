//! The places of one session: the bound one, those an agent made, and local execution.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use stockade_backends::local::{self, Local};
use stockade_core::{ErrorCode, SandboxId, SandboxSpec};
use stockade_engine::{Engine, EngineConfig};
use tokio::sync::Mutex;

use super::Place;
use crate::{LocalOptions, ToolError, ToolboxOptions, Views};

/// The places of one session.
pub(crate) struct Places {
    engine: Arc<Engine>,
    bound: Option<SandboxSpec>,
    local: Option<LocalOptions>,
    views: Option<Views>,
    state_dir: PathBuf,
    /// The place of calls that name none, and whether this session is over.
    usual: Mutex<Usual>,
    made: std::sync::Mutex<BTreeMap<SandboxId, Arc<Place>>>,
}

#[derive(Default)]
struct Usual {
    place: Option<Arc<Place>>,
    closed: bool,
}

impl Places {
    pub(crate) fn new(engine: Arc<Engine>, options: &ToolboxOptions) -> Self {
        Self {
            engine,
            bound: options.bound.clone(),
            local: options.local.clone(),
            views: options.views.clone(),
            state_dir: options.state_dir.clone(),
            usual: Mutex::default(),
            made: std::sync::Mutex::default(),
        }
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<Place>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spools(&self) -> PathBuf {
        self.state_dir.join("spools")
    }

    /// The place a call names, or the usual one, built now if need be.
    pub(crate) async fn find(&self, id: Option<&SandboxId>) -> Result<Arc<Place>, ToolError> {
        let place = match id {
            Some(id) => self.named(id).await?,
            None => self.usual().await?,
        };
        if place.lives() {
            return Ok(place);
        }
        self.drop_dead(&place).await;
        let message = format!("sandbox `{}` has ended, and what ran in it with it", place.id);
        let remedy = if id.is_none() {
            "call again: a new one is built"
        } else {
            "make another with `sandbox_create`"
        };
        Err(ToolError::new(ErrorCode::Gone, message).remedy(remedy))
    }

    async fn named(&self, id: &SandboxId) -> Result<Arc<Place>, ToolError> {
        let usual = self.usual.lock().await.place.clone();
        let mut known = usual.into_iter().chain(self.made().get(id).cloned());
        known.find(|place| place.id == *id).ok_or_else(|| {
            let message = format!("there is no sandbox `{id}` in this session");
            ToolError::new(ErrorCode::NotFound, message).remedy(
                "`sandbox_list` names the ones there are; those made by other programs cannot be \
                 used from here",
            )
        })
    }

    async fn usual(&self) -> Result<Arc<Place>, ToolError> {
        // Held while it is built, so that concurrent first calls share one.
        let mut usual = self.usual.lock().await;
        if let Some(place) = &usual.place {
            return Ok(Arc::clone(place));
        }
        refuse_if(usual.closed)?;
        let place = Arc::new(self.build_usual().await?);
        usual.place = Some(Arc::clone(&place));
        Ok(place)
    }

    async fn build_usual(&self) -> Result<Place, ToolError> {
        self.sweep().await;
        if let Some(spec) = &self.bound {
            return self.build(spec.clone()).await;
        }
        let Some(options) = &self.local else {
            let message = "no sandbox is bound, and none was named";
            return Err(ToolError::new(ErrorCode::Invalid, message)
                .remedy("make one with `sandbox_create` and give its id as `sandbox_id`"));
        };
        let engine = self.local_engine().await?;
        let mut spec = local::spec(options.workspace.clone());
        spec.env = options.env.clone();
        Place::build(&engine, spec, None, self.spools(), true).await
    }

    async fn build(&self, spec: SandboxSpec) -> Result<Place, ToolError> {
        Place::build(&self.engine, spec, self.views.as_ref(), self.spools(), false).await
    }

    /// An engine with nothing but local execution, on the same journal.
    async fn local_engine(&self) -> Result<Arc<Engine>, ToolError> {
        let config = EngineConfig::at(&self.state_dir);
        Ok(Arc::new(Engine::open(config, vec![Arc::new(Local::default())]).await?))
    }

    /// Builds one more sandbox.
    pub(crate) async fn create(&self, spec: SandboxSpec) -> Result<Arc<Place>, ToolError> {
        refuse_if(self.usual.lock().await.closed)?;
        let place = Arc::new(self.build(spec).await?);
        let usual = self.usual.lock().await;
        if let Err(over) = refuse_if(usual.closed) {
            // Whoever closed the session did not see it.
            place.end().await?;
            return Err(over);
        }
        self.made().insert(place.id.clone(), Arc::clone(&place));
        Ok(place)
    }

    /// The place of calls that name none, if it was built.
    pub(crate) async fn bound(&self) -> Option<Arc<Place>> {
        self.usual.lock().await.place.clone()
    }

    /// Every place there is now.
    pub(crate) async fn all(&self) -> Vec<Arc<Place>> {
        let usual = self.bound().await;
        usual.into_iter().chain(self.made().values().cloned()).collect()
    }

    /// Ends one.
    pub(crate) async fn destroy(&self, id: &SandboxId) -> Result<(), ToolError> {
        let place = self.named(id).await?;
        place.end().await?;
        self.drop_dead(&place).await;
        Ok(())
    }

    async fn drop_dead(&self, place: &Arc<Place>) {
        self.made().remove(&place.id);
        let mut usual = self.usual.lock().await;
        if usual.place.as_ref().is_some_and(|known| known.id == place.id) {
            usual.place = None;
        }
        place.forget().await;
    }

    /// Ends all of them; nothing is built afterwards.
    pub(crate) async fn close(&self) {
        let usual = {
            let mut usual = self.usual.lock().await;
            usual.closed = true;
            usual.place.take()
        };
        let made = std::mem::take(&mut *self.made());
        for place in usual.into_iter().chain(made.into_values()) {
            // What could not be ended keeps its lease and is reaped by the next engine.
            let _ = place.end().await;
        }
    }

    /// Removes the output of sandboxes whose engines are gone.
    async fn sweep(&self) {
        let (Ok(leases), Ok(kept)) = (self.engine.list().await, std::fs::read_dir(self.spools()))
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

fn refuse_if(closed: bool) -> Result<(), ToolError> {
    if closed {
        return Err(ToolError::new(ErrorCode::Gone, "this session is over"));
    }
    Ok(())
}
