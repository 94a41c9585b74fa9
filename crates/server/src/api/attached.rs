//! Attached sandboxes: each has a name of its client's choice, and ends with the connection that made it. By
//! these, another engine uses the daemon as a backend: whatever becomes of that engine, nothing of it stays, and
//! by the name it learns that nothing is left (C-30, C-31).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stockade_core::{ErrorCode, SandboxId, TenantName};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer::{ApiAnswer, answer_done, answer_ok};
use super::body::read_json;
use super::caller::ApiCaller;
use super::failure::ApiFailure;
use super::lifetime::EndReason;
use super::query::ApiQuery;
use super::sandboxes::make_sandbox;
use super::state::Api;
use crate::life::LifeBounds;

/// How often a comment is sent while nothing happens, so that a connection that is gone is noticed.
pub(super) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How often it is looked whether a sandbox has ended by itself.
const ENDED_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to destroy a sandbox.
const DESTROY_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for a request that waits until nothing is left of a sandbox.
const GONE_TIMEOUT: Duration = Duration::from_secs(50);

/// Whose a name is: a tenant's, or of the socket's own user.
type NameOwner = Option<TenantName>;

/// The names of attached sandboxes, from before one is made until nothing is left of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttachedNames(Arc<Mutex<BTreeMap<(NameOwner, SandboxId), AttachedLife>>>);

/// The life of one attached sandbox.
#[derive(Debug, Clone, Default)]
struct AttachedLife {
    /// It has to end.
    ending: CancellationToken,
    /// Nothing is left of it.
    gone: CancellationToken,
}

/// A name that is in use. Dropped, it is free again, and who waits for that is told.
#[derive(Debug)]
struct AttachedName {
    names: AttachedNames,
    key: (NameOwner, SandboxId),
    life: AttachedLife,
}

/// An attached sandbox to make.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewAttached {
    name: SandboxId,
    /// The spec, over what is configured.
    #[serde(default)]
    spec: Map<String, Value>,
}

/// Which attached sandbox.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachedQuery {
    name: SandboxId,
}

impl AttachedNames {
    fn lock_names(&self) -> MutexGuard<'_, BTreeMap<(NameOwner, SandboxId), AttachedLife>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, caller: &ApiCaller, name: SandboxId) -> Result<AttachedName, ApiFailure> {
        let key = (caller.tenant().cloned(), name);
        let life = AttachedLife::default();
        let mut names = self.lock_names();
        if names.contains_key(&key) {
            return Err(ApiFailure::conflict("a sandbox of that name is attached already")
                .remedy("use another name, or delete that one first"));
        }
        names.insert(key.clone(), life.clone());
        Ok(AttachedName { names: self.clone(), key, life })
    }

    fn find(&self, caller: &ApiCaller, name: SandboxId) -> Option<AttachedLife> {
        self.lock_names().get(&(caller.tenant().cloned(), name)).cloned()
    }

    fn list(&self, caller: &ApiCaller) -> Vec<SandboxId> {
        let owner = caller.tenant().cloned();
        let names = self.lock_names();
        names.keys().filter(|(of, _)| *of == owner).map(|(_, name)| name.clone()).collect()
    }
}

impl Drop for AttachedName {
    fn drop(&mut self) {
        self.names.lock_names().remove(&self.key);
        self.life.gone.cancel();
    }
}

/// `POST /v1/attached`
pub(crate) async fn create_attached(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    body: Body,
) -> ApiAnswer {
    let NewAttached { name, spec } = read_json(body).await?;
    let name = api.attached.claim(&caller, name)?;
    let life = name.life.clone();
    // Dropped with this request or with its answer, whichever comes first.
    let connected = life.ending.clone().drop_guard();
    let (reply, made) = oneshot::channel();
    // In a task: what has begun is made to its end and destroyed then, whether or not the client waits.
    tokio::spawn(keep_attached(api.clone(), caller.clone(), spec, name, reply));
    let not_made = |_| ApiFailure::new(ErrorCode::System, "the sandbox was not made");
    let id = made.await.map_err(not_made)??;
    let view = json!(api.sandbox(&caller, &id)?.view(&api.engine)).to_string();
    Ok(stream_life(view, life, connected))
}

/// What the client of an attached sandbox reads: the sandbox, and once it has ended that.
fn stream_life(view: String, life: AttachedLife, connected: DropGuard) -> axum::response::Response {
    let first = Event::default().event("sandbox").data(view);
    let last = async move {
        life.gone.cancelled().await;
        drop(connected);
        Event::default().event("ended").data("{}")
    };
    let events = stream::iter([first]).chain(stream::once(last)).map(Ok::<_, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response()
}

/// Makes a sandbox, waits until it has to end or has ended, and destroys it.
async fn keep_attached(
    api: Api,
    caller: ApiCaller,
    spec: Map<String, Value>,
    name: AttachedName,
    reply: oneshot::Sender<Result<SandboxId, ApiFailure>>,
) {
    // Its connection says how long it lives.
    let making = make_sandbox(&api, &caller, spec, None, LifeBounds::default());
    match api.make(making).await {
        Ok(id) => {
            // A client that is gone has set the end already.
            let _ = reply.send(Ok(id.clone()));
            tokio::select! {
                () = name.life.ending.cancelled() => {}
                () = wait_until_ended(&api, &id) => {}
            }
            if let Ok(held) = api.sandbox(&ApiCaller::OwnUser, &id) {
                // Where it has ended by itself, that is known by now.
                held.end(&api.engine);
                held.note_end(EndReason::Deleted);
            }
            destroy_to_its_end(&api, &id).await;
        }
        Err(failure) => drop(reply.send(Err(failure))),
    }
}

async fn wait_until_ended(api: &Api, id: &SandboxId) {
    while api.engine.sandbox(id).is_ok_and(|sandbox| sandbox.alive()) {
        tokio::time::sleep(ENDED_POLL_INTERVAL).await;
    }
}

/// Destroys a sandbox, again and again if need be: its name stays in use until nothing is left.
async fn destroy_to_its_end(api: &Api, id: &SandboxId) {
    while api.engine.destroy(id).await.is_err_and(|error| error.code() != ErrorCode::NotFound) {
        tokio::time::sleep(DESTROY_RETRY_INTERVAL).await;
    }
    api.forget_sandbox(id);
}

/// `GET /v1/attached`
pub(crate) async fn list_attached(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
) -> ApiAnswer {
    answer_ok(&json!({ "names": api.attached.list(&caller) }))
}

/// `DELETE /v1/attached`
pub(crate) async fn delete_attached(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    ApiQuery(AttachedQuery { name }): ApiQuery<AttachedQuery>,
) -> ApiAnswer {
    if let Some(life) = api.attached.find(&caller, name) {
        life.ending.cancel();
        let late = |_| ApiFailure::new(ErrorCode::TooSlow, "the sandbox is still being destroyed");
        tokio::time::timeout(GONE_TIMEOUT, life.gone.cancelled()).await.map_err(late)?;
    }
    answer_done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_once_until_nothing_is_left() {
        let names = AttachedNames::default();
        let (caller, id): (_, SandboxId) = (ApiCaller::OwnUser, "a1".parse().unwrap());
        let claimed = names.claim(&caller, id.clone()).unwrap();
        assert!(names.claim(&caller, id.clone()).is_err());
        assert_eq!(names.list(&caller), std::slice::from_ref(&id));
        let life = names.find(&caller, id.clone()).unwrap();
        drop(claimed);
        assert!(life.gone.is_cancelled());
        assert!(names.list(&caller).is_empty());
        assert!(names.claim(&caller, id).is_ok());
    }
}
