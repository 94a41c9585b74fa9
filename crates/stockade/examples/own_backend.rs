//! A backend of one's own: native's walls, with a bound on how many sandboxes there are at once. It is given to an engine
//! like any other, and judged by the conformance kit like any other.
//!
//! `cargo run --example own_backend`

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use stockade::contract::{Admitted, Sandbox, SnapshotFiles};
use stockade::registry::build_backend;
use stockade::{Backend, BackendName, Capabilities, Error, ErrorCode, Result, SandboxId, Stockade};
use stockade_tck::{KitOptions, OnHost};

const NAME: BackendName = BackendName::literal("few");

/// The walls of another backend, for at most so many sandboxes at once.
struct Few {
    inner: Arc<dyn Backend>,
    most: usize,
    live: Mutex<BTreeSet<SandboxId>>,
}

impl Few {
    fn new(inner: Arc<dyn Backend>, most: usize) -> Self {
        Self { inner, most, live: Mutex::default() }
    }

    fn live(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve_slot(&self, id: &SandboxId) -> Result<SlotReservation<'_>> {
        let mut live = self.live();
        if live.len() >= self.most {
            let message = format!("no slot is left of {}", self.most);
            return Err(Error::new(ErrorCode::QuotaExceeded, "create", message)
                .backend(NAME)
                .remedy("end a sandbox"));
        }
        live.insert(id.clone());
        Ok(SlotReservation { of: self, id: Some(id.clone()) })
    }
}

/// A slot that is freed unless it is kept: a `create` that fails, or whose future is dropped, leaves nothing (C-32).
struct SlotReservation<'a> {
    of: &'a Few,
    id: Option<SandboxId>,
}

impl SlotReservation<'_> {
    fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for SlotReservation<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.of.live().remove(id);
        }
    }
}

#[async_trait]
impl Backend for Few {
    fn name(&self) -> BackendName {
        NAME
    }

    /// What the other one measures, under this name.
    async fn probe(&self) -> Capabilities {
        let mut measured = self.inner.probe().await;
        measured.backend = NAME;
        measured
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        let slot = self.reserve_slot(id)?;
        let sandbox = self.inner.create(id, admitted).await?;
        slot.keep();
        Ok(sandbox)
    }

    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        let slot = self.reserve_slot(id)?;
        let sandbox = self.inner.create_from(id, admitted, from).await?;
        slot.keep();
        Ok(sandbox)
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.inner.list().await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.inner.destroy(id).await?;
        self.live().remove(id);
        Ok(())
    }
}

fn few(most: usize) -> Result<Arc<dyn Backend>> {
    let native = BackendName::literal("native");
    let native = build_backend(&native, Default::default(), &Default::default())?;
    Ok(Arc::new(Few::new(native, most)))
}

#[tokio::main]
async fn main() -> Result<()> {
    let stockade = Stockade::builder().only_added_backends().backend(few(1)?).open().await?;
    let first = stockade.sandbox().backend(NAME.as_str()).create().await?;
    let (backend, boundary) = first.walls()?;
    println!("{backend}: {boundary}");
    print!("{}", first.exec(["echo", "one is there"]).output().await?.stdout_utf8());
    if let Err(error) = stockade.sandbox().backend(NAME.as_str()).create().await {
        println!("{}: {}", error.code(), error.message());
    }
    first.destroy().await?;

    // The kit's cases about how a program ends; without `only` it is all of them.
    let options = KitOptions { only: vec!["C-10".to_owned()], jobs: 2 };
    let report = stockade_tck::run(Arc::new(OnHost::new(few(usize::MAX)?)), &options).await;
    println!("the kit: {}", if report.success() { "passed" } else { "failed" });
    if !report.success() {
        eprintln!("{}", report.table());
    }
    stockade.close().await
}
