//! The life cycle of sandboxes, once for every backend: a lock for each id, builds that leave nothing when they
//! fail or are given up, the sweep of what dead engines left, list and destroy.
//!
//! A backend supplies a [`WallBuilder`]; [`Managed`] makes a [`Backend`] of it. Nothing here knows what walls
//! are made of. Two backends stay outside: `wasm`, which refuses a second sandbox of an id without touching the
//! first one, and `mock`, which is scripted to break exactly what is promised here.

mod id_locks;
#[cfg(test)]
mod tests;
mod untaken;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Error, ErrorCode, Feature, ImageName,
    ResolvedImage, Result, Sandbox, SandboxId, SnapshotFiles, SnapshotKind, create_and_restore,
};
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinError;

use crate::linux::cgroup::throwaway;
use crate::linux::trial_id;
use id_locks::{IdLock, IdLocks};
use untaken::Untaken;

/// What a backend does itself: builds walls, takes them down and finds them again.
#[async_trait]
pub trait WallBuilder: Send + Sync + Sized + 'static {
    /// The backend's name.
    const NAME: BackendName;

    /// As [`Backend::probe`].
    async fn probe(self: Arc<Self>) -> Capabilities;

    /// As [`Backend::fingerprint`].
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// As [`Backend::only_by_name`].
    fn only_by_name(&self) -> Option<String> {
        None
    }

    /// As [`Backend::resolve_image`].
    async fn resolve_image(&self, _name: &ImageName) -> Result<Option<ResolvedImage>> {
        Ok(None)
    }

    /// Builds the walls and hands back what is in them. No other build and no `take_down` of this id runs
    /// meanwhile.
    ///
    /// - Dropped when its caller gives up, unless it has called [`Cancellation::forbid`].
    /// - What it leaves when it fails or is dropped, `clear_unfinished` removes (C-32).
    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>>;

    /// The same around a state that was captured with its memory. Binds as `build` does.
    async fn build_from(
        self: Arc<Self>,
        _id: &SandboxId,
        _admitted: &Admitted,
        _from: &SnapshotFiles,
        _cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("restore", Feature::FullSnapshot))
    }

    /// Removes every trace of a sandbox, also of one that another process made, and returns only after it has
    /// checked that (C-30). Succeeds when nothing is there.
    async fn take_down(&self, id: &SandboxId) -> Result<()>;

    /// Removes what is left of a build that failed for this reason, or whose caller has given up. A `destroy`
    /// may follow.
    async fn clear_unfinished(&self, id: &SandboxId, _why: &Error) -> Result<()> {
        self.take_down(id).await
    }

    /// The sandboxes of this user that exist, in any order.
    async fn list(&self) -> Result<Vec<SandboxId>>;

    /// The sandboxes that are looked through, once, for those that were built only to be looked at, by engines
    /// that are gone: no lease names those.
    fn leftovers(&self) -> Vec<SandboxId> {
        Vec::new()
    }
}

/// Whether a build may still be dropped half-way.
#[derive(Debug, Default, Clone)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// The build runs to its end from now on, even if its caller gives up: what it has asked somebody else for
    /// will be made, and can only be taken down afterwards.
    pub fn forbid(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_forbidden(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A backend with the common life cycle. What it has under way is completed, or cleared, after this value is gone.
pub struct Managed<W: WallBuilder> {
    builder: Arc<W>,
    locks: IdLocks,
    untaken: Untaken,
    swept: OnceCell<()>,
}

impl<W: WallBuilder> Managed<W> {
    /// The backend of this builder. Nothing has been touched yet.
    pub fn of(builder: W) -> Self {
        let (locks, untaken) = (IdLocks::default(), Untaken::default());
        Self { builder: Arc::new(builder), locks, untaken, swept: OnceCell::new() }
    }

    /// What builds its walls.
    pub(crate) fn builder(&self) -> &Arc<W> {
        &self.builder
    }

    /// Builds in a task of its own, under the lock of the id: whatever becomes of the caller, what was not handed
    /// over is removed, and no `destroy` comes before it is built or cleared (C-32).
    pub(crate) async fn build_locked<T, F>(
        &self,
        id: &SandboxId,
        build: impl FnOnce(Arc<W>, SandboxId, Cancellation) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let lock = self.locks.lock(id).await;
        let cancellation = Cancellation::default();
        let building = build(Arc::clone(&self.builder), id.clone(), cancellation.clone());
        let (builder, untaken) = (Arc::clone(&self.builder), self.untaken.clone());
        let under_way = UnderWay { builder, untaken, lock };
        let (mut reply, replied) = oneshot::channel();
        let (taken, is_taken) = oneshot::channel();
        let task = tokio::spawn(async move {
            match unless_given_up(W::NAME, building, &mut reply, &cancellation).await {
                Ok(built) => under_way.hand_over(built, reply, is_taken).await,
                Err(why) => {
                    let told = under_way.clear(&why).await.err().unwrap_or(why);
                    let _ = reply.send(Err(told));
                }
            }
        });
        match replied.await {
            Ok(built) => {
                let _ = taken.send(());
                built
            }
            Err(_) => Err(task_failed(W::NAME, task.await.err())),
        }
    }

    /// Removes what trials of engines that are gone have left. Once is enough.
    async fn sweep(&self) {
        let sweep = async {
            let ids = self.builder.leftovers();
            for id in ids.iter().filter(|id| throwaway::is_forsaken(id.as_str())) {
                // An error is ignored: the next engine tries again.
                let _ = self.builder.take_down(id).await;
            }
        };
        self.swept.get_or_init(|| sweep).await;
    }
}

#[async_trait]
impl<W: WallBuilder> Backend for Managed<W> {
    fn name(&self) -> BackendName {
        W::NAME
    }

    async fn probe(&self) -> Capabilities {
        self.sweep().await;
        Arc::clone(&self.builder).probe().await
    }

    fn fingerprint(&self) -> Option<String> {
        self.builder.fingerprint()
    }

    fn only_by_name(&self) -> Option<String> {
        self.builder.only_by_name()
    }

    async fn resolve_image(&self, name: &ImageName) -> Result<Option<ResolvedImage>> {
        self.builder.resolve_image(name).await
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.sweep().await;
        let admitted = admitted.clone();
        self.build_locked(id, |builder, id, cancellation| async move {
            builder.build(&id, &admitted, &cancellation).await
        })
        .await
    }

    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        if from.kind == SnapshotKind::Files {
            return create_and_restore(self, id, admitted, from).await;
        }
        self.sweep().await;
        let (admitted, from) = (admitted.clone(), from.clone());
        self.build_locked(id, |builder, id, cancellation| async move {
            builder.build_from(&id, &admitted, &from, &cancellation).await
        })
        .await
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.sweep().await;
        let ids: BTreeSet<_> = self.builder.list().await?.into_iter().collect();
        Ok(ids.into_iter().collect())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let _lock = self.locks.lock(id).await;
        self.builder.take_down(id).await?;
        self.untaken.forget(id);
        Ok(())
    }
}

/// A build under way, which holds the lock of its id.
struct UnderWay<W> {
    builder: Arc<W>,
    untaken: Untaken,
    lock: IdLock,
}

impl<W: WallBuilder> UnderWay<W> {
    /// Clears what was built, and frees the id.
    async fn clear(self, why: &Error) -> Result<()> {
        self.builder.clear_unfinished(self.lock.id(), why).await
    }

    /// Hands over what was built. A caller may be dropped before it looks at a reply that has arrived: then it is
    /// cleared, unless a `destroy` came first.
    async fn hand_over<T>(
        self,
        built: T,
        reply: oneshot::Sender<Result<T>>,
        is_taken: oneshot::Receiver<()>,
    ) {
        let Self { builder, untaken, mut lock } = self;
        let mark = untaken.note(lock.id());
        // Not kept from ending by this task: everything that it has built ends with it.
        let builder = {
            let weak = Arc::downgrade(&builder);
            drop(builder);
            weak
        };
        if reply.send(Ok(built)).is_ok() {
            // Not held meanwhile: the caller may poll it at any time, or never.
            lock.release();
            if is_taken.await.is_ok() {
                untaken.take(lock.id(), &mark);
                return;
            }
            lock.lock_again().await;
        }
        if let (true, Some(builder)) = (untaken.take(lock.id(), &mark), builder.upgrade()) {
            // An error is ignored: no caller is left to be told, and what is left can be destroyed again.
            let _ = builder.clear_unfinished(lock.id(), &given_up(W::NAME)).await;
        }
    }
}

/// What a build comes to. One whose caller has gone away is dropped where it is, unless it has forbidden that.
async fn unless_given_up<T>(
    backend: BackendName,
    building: impl Future<Output = Result<T>>,
    reply: &mut oneshot::Sender<Result<T>>,
    cancellation: &Cancellation,
) -> Result<T> {
    let caller_is_gone = async {
        reply.closed().await;
        if cancellation.is_forbidden() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // A build that has just forbidden it is asked first.
        biased;
        built = building => built,
        () = caller_is_gone => Err(given_up(backend)),
    }
}

/// Builds a sandbox only to look at it, and takes it down: also if that fails, and even if the caller gives up.
pub(crate) async fn try_out<W, T, F>(
    builder: &Arc<W>,
    look: impl FnOnce(Arc<W>, SandboxId) -> F,
) -> Result<T>
where
    W: WallBuilder,
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let (builder, id) = (Arc::clone(builder), trial_id());
    let looking = look(Arc::clone(&builder), id.clone());
    to_its_end(W::NAME, async move {
        let seen = looking.await;
        let ended = builder.take_down(&id).await;
        seen.and_then(|seen| ended.map(|()| seen))
    })
    .await
}

/// Runs something in a task of its own: it completes even if its caller has given up.
pub(crate) async fn to_its_end<T: Send + 'static>(
    backend: BackendName,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(task_failed(backend, Some(error))))
}

fn task_failed(backend: BackendName, error: Option<JoinError>) -> Error {
    let told = Error::new(ErrorCode::System, "create", "building the sandbox went wrong");
    let told = told.backend(backend);
    match error {
        Some(error) => told.source(error),
        None => told,
    }
}

fn given_up(backend: BackendName) -> Error {
    Error::new(ErrorCode::Gone, "create", "its caller has given up").backend(backend)
}
