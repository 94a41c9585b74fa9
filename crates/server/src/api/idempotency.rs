//! Requests that a client may send again: the same `Idempotency-Key` with the same body does its work once, and
//! gets the same thing again. A key is forgotten when its work failed, and when its owner has used many others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use stockade_core::{ErrorCode, TenantName};
use tokio::sync::OnceCell;

use super::caller::ApiCaller;
use super::failure::ApiFailure;
use crate::secret::hash_hex;

const IDEMPOTENCY_HEADER: &str = "idempotency-key";
const MAX_KEY_CHARS: usize = 255;
/// Keys that are remembered for each tenant, and for the socket's own user.
const MAX_KEYS_PER_OWNER: usize = 256;

/// Keys that were used, and what each made.
#[derive(Debug)]
pub(crate) struct IdempotencyKeys<T>(Mutex<VecDeque<KeyEntry<T>>>);

#[derive(Debug)]
struct KeyEntry<T> {
    key: Arc<UsedKey<T>>,
    /// Requests that do its work or wait for it.
    requests: usize,
}

#[derive(Debug)]
struct UsedKey<T> {
    owner: Option<TenantName>,
    key: String,
    /// What it was used for.
    request: String,
    made: OnceCell<T>,
}

/// A key of a request, with what the request asks for.
#[derive(Debug)]
pub(crate) struct RequestKey {
    owner: Option<TenantName>,
    key: String,
    request: String,
}

impl RequestKey {
    /// The key of a request, if it has one.
    pub(crate) fn of(
        headers: &HeaderMap,
        caller: &ApiCaller,
        path: &str,
        body: &[u8],
    ) -> Result<Option<Self>, ApiFailure> {
        let Some(given) = headers.get(IDEMPOTENCY_HEADER) else { return Ok(None) };
        let key = given.to_str().unwrap_or_default();
        if !(1..=MAX_KEY_CHARS).contains(&key.len()) {
            let message = format!("`Idempotency-Key` has 1 to {MAX_KEY_CHARS} visible characters");
            return Err(ApiFailure::new(ErrorCode::Invalid, message));
        }
        let request = format!("{path} {}", hash_hex(body));
        Ok(Some(Self { owner: caller.tenant().cloned(), key: key.to_owned(), request }))
    }
}

/// One request that uses a key, until this is dropped.
struct KeyUse<'keys, T> {
    keys: &'keys IdempotencyKeys<T>,
    key: Arc<UsedKey<T>>,
}

impl<T> Drop for KeyUse<'_, T> {
    fn drop(&mut self) {
        self.keys.end_use(&self.key);
    }
}

impl<T> IdempotencyKeys<T> {
    fn lock_keys(&self) -> MutexGuard<'_, VecDeque<KeyEntry<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a key whose work was not done when its last request ends: one that waited may do it still.
    fn end_use(&self, key: &Arc<UsedKey<T>>) {
        let mut keys = self.lock_keys();
        // One of too many is not there any more.
        let Some(at) = keys.iter().position(|known| Arc::ptr_eq(&known.key, key)) else { return };
        keys[at].requests -= 1;
        if keys[at].requests == 0 && key.made.get().is_none() {
            keys.remove(at);
        }
    }
}

impl<T> Default for IdempotencyKeys<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> IdempotencyKeys<T> {
    /// Does the work of a request, unless it was done under the same key before.
    pub(crate) async fn run_once(
        &self,
        key: Option<RequestKey>,
        work: impl Future<Output = Result<T, ApiFailure>>,
    ) -> Result<T, ApiFailure> {
        let Some(key) = key else { return work.await };
        let used = self.find_or_insert(key)?;
        // A second request waits for the first; if the client of the first goes away, the second does the work.
        used.key.made.get_or_try_init(|| work).await.cloned()
    }

    fn find_or_insert(&self, key: RequestKey) -> Result<KeyUse<'_, T>, ApiFailure> {
        let mut keys = self.lock_keys();
        let same =
            |known: &&mut KeyEntry<T>| known.key.owner == key.owner && known.key.key == key.key;
        if let Some(known) = keys.iter_mut().find(same) {
            return match known.key.request == key.request {
                true => {
                    known.requests += 1;
                    Ok(KeyUse { keys: self, key: Arc::clone(&known.key) })
                }
                false => Err(ApiFailure::conflict("the key was used for another request")
                    .remedy("use a new `Idempotency-Key` for each thing to make")),
            };
        }
        let theirs = keys.iter().filter(|known| known.key.owner == key.owner).count();
        let oldest = keys.iter().position(|known| known.key.owner == key.owner);
        if let Some(oldest) = oldest.filter(|_| theirs >= MAX_KEYS_PER_OWNER) {
            keys.remove(oldest);
        }
        let RequestKey { owner, key, request } = key;
        let key = Arc::new(UsedKey { owner, key, request, made: OnceCell::new() });
        keys.push_back(KeyEntry { key: Arc::clone(&key), requests: 1 });
        Ok(KeyUse { keys: self, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str, body: &str) -> Option<RequestKey> {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static(IDEMPOTENCY_HEADER),
            key.parse().unwrap(),
        )]);
        RequestKey::of(&headers, &ApiCaller::OwnUser, "/v1/x", body.as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn work_is_done_once_for_each_key() {
        let keys = IdempotencyKeys::default();
        assert_eq!(keys.run_once(key("a", "{}"), async { Ok(1) }).await.unwrap(), 1);
        assert_eq!(keys.run_once(key("a", "{}"), async { Ok(2) }).await.unwrap(), 1);
        assert_eq!(keys.run_once(key("b", "{}"), async { Ok(3) }).await.unwrap(), 3);
        assert!(keys.run_once(key("a", "{ }"), async { Ok(4) }).await.is_err());
        assert_eq!(keys.run_once(None, async { Ok(5) }).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn a_key_whose_work_failed_may_be_used_again() {
        let keys = IdempotencyKeys::default();
        let failing = async { Err(ApiFailure::conflict("no")) };
        assert!(keys.run_once(key("a", "1"), failing).await.is_err());
        assert_eq!(keys.run_once(key("a", "2"), async { Ok(2) }).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_failure_does_not_forget_what_a_waiting_request_makes() {
        let keys = IdempotencyKeys::default();
        let (fail, failing) = tokio::sync::oneshot::channel::<()>();
        let (finish, finishing) = tokio::sync::oneshot::channel::<()>();
        let first = keys.run_once(key("a", "{}"), async {
            failing.await.unwrap();
            Err(ApiFailure::conflict("no"))
        });
        let second = keys.run_once(key("a", "{}"), async {
            finishing.await.unwrap();
            Ok(1)
        });
        let (first, second, third) = tokio::join!(first, second, async {
            fail.send(()).unwrap();
            tokio::task::yield_now().await;
            finish.send(()).unwrap();
            keys.run_once(key("a", "{}"), async { Ok(3) }).await
        },);
        assert!(first.is_err());
        assert_eq!((second.unwrap(), third.unwrap()), (1, 1));
        assert_eq!(keys.run_once(key("a", "{}"), async { Ok(4) }).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn the_memory_for_keys_is_bounded() {
        let keys = IdempotencyKeys::default();
        for at in 0..MAX_KEYS_PER_OWNER + 10 {
            keys.run_once(key(&at.to_string(), ""), async { Ok(at) }).await.unwrap();
        }
        assert_eq!(keys.lock_keys().len(), MAX_KEYS_PER_OWNER);
        assert_eq!(keys.run_once(key("0", ""), async { Ok(7) }).await.unwrap(), 7);
    }
}
