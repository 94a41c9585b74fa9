//! How long sandboxes live: what a caller asks for, within what it may have, and the events about a sandbox's life.
//! A sandbox ends by itself when it was idle for too long or when its lifetime is over; what counts as use is a
//! program that runs and a request that reaches into it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stockade_core::{ErrorCode, Span};
use stockade_engine::Timestamp;
use tokio::time::Instant;

use super::answer::{ApiAnswer, answer_ok};
use super::body::read_json;
use super::caller::ApiCaller;
use super::events::KEEP_ALIVE_INTERVAL;
use super::failure::ApiFailure;
use super::held::HeldSandbox;
use super::named::NamedSandbox;
use super::state::Api;
use crate::life::{LifeBounds, LifeDue, LifeEnd};

/// How long before the end of a sandbox its readers are told.
const END_NOTICE: Duration = Duration::from_secs(60);
/// The longest lifetime and idle timeout that are taken.
const MAX_SPAN: Duration = Duration::from_secs(366 * 86_400);
/// Interval between attempts to destroy a sandbox whose life is over.
const DESTROY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long a sandbox is to live.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AskedLife {
    /// It ends this long from now.
    pub lifetime: Option<Span>,
    /// It ends when it was not used for this long.
    pub idle: Option<Span>,
}

/// Why a sandbox has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndReason {
    /// It was not used for its idle timeout.
    Idle,
    /// Its lifetime was over.
    Lifetime,
    /// A request destroyed it, or the connection ended that it was attached to.
    Deleted,
    /// Another process ended it, as `stockade kill` does.
    Killed,
    /// The daemon ends.
    Stopped,
    /// Its walls went away by themselves.
    Lost,
}

/// That a sandbox has ended.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SandboxEnd {
    pub reason: EndReason,
    pub at: Timestamp,
}

impl From<LifeEnd> for EndReason {
    fn from(end: LifeEnd) -> Self {
        match end {
            LifeEnd::Idle => Self::Idle,
            LifeEnd::Lifetime => Self::Lifetime,
        }
    }
}

impl EndReason {
    /// As the end of a sentence.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Idle => "it was not used for its idle timeout",
            Self::Lifetime => "its lifetime was over",
            Self::Deleted => "it was destroyed",
            Self::Killed => "another process ended it",
            Self::Stopped => "the daemon is being ended",
            Self::Lost => "its walls went away",
        }
    }
}

impl AskedLife {
    /// Fails where one of them is nothing, too long, or more than the caller may have.
    fn check(self, caller: &ApiCaller, max_lifetime: Duration) -> Result<(), ApiFailure> {
        for (name, span) in [("lifetime", self.lifetime), ("idle", self.idle)] {
            let Some(span) = span.map(Duration::from) else { continue };
            if span.is_zero() || span > MAX_SPAN {
                let most = Span::from(MAX_SPAN);
                let message = format!("`{name}` is longer than nothing and at most {most}");
                return Err(ApiFailure::new(ErrorCode::Invalid, message));
            }
        }
        let longer = self.lifetime.is_some_and(|lifetime| Duration::from(lifetime) > max_lifetime);
        if caller.tenant().is_some() && longer {
            let most = Span::from(max_lifetime);
            let message = format!("`lifetime` asks for more than the {most} that a token may have");
            return Err(ApiFailure::new(ErrorCode::Denied, message)
                .remedy("ask for less, and extend it before it ends"));
        }
        Ok(())
    }

    /// The bounds of a sandbox that begins now. One of a token never lives for ever.
    pub(crate) fn bound_new(
        self,
        caller: &ApiCaller,
        max_lifetime: Duration,
    ) -> Result<LifeBounds, ApiFailure> {
        self.check(caller, max_lifetime)?;
        let highest = caller.tenant().map(|_| Span::from(max_lifetime));
        let all = Self { lifetime: self.lifetime.or(highest), ..self };
        Ok(all.apply_to(LifeBounds::default()))
    }

    /// The same bounds, apart from what is asked for.
    pub(crate) fn apply_to(self, bounds: LifeBounds) -> LifeBounds {
        let end = self.lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime.into()));
        LifeBounds { idle: self.idle.map(Duration::from).or(bounds.idle), end: end.or(bounds.end) }
    }
}

/// `POST /v1/sandboxes/{id}/extend`
pub(crate) async fn extend_sandbox(
    State(api): State<Api>,
    Extension(caller): Extension<ApiCaller>,
    NamedSandbox(held): NamedSandbox,
    body: Body,
) -> ApiAnswer {
    let asked: AskedLife = read_json(body).await?;
    asked.check(&caller, api.max_lifetime)?;
    held.extend(&api.engine, asked)?;
    answer_ok(&held.view(&api.engine))
}

/// Ends a sandbox when its life is over, unless it has ended before.
pub(crate) async fn end_when_due(api: Api, held: Arc<HeldSandbox>) {
    let gone = held.gone.clone();
    if gone.run_until_cancelled(held.wait_for_end_of_life()).await.is_none() {
        return;
    }
    // Its walls may stand until this succeeds: what is left of it is looked for until then.
    while api.engine.destroy(&held.id).await.is_err_and(|error| error.code() != ErrorCode::NotFound)
    {
        tokio::time::sleep(DESTROY_RETRY_INTERVAL).await;
    }
    gone.cancel();
}

/// Reader of the life of a sandbox.
struct LifeReader {
    api: Api,
    held: Arc<HeldSandbox>,
    told: ToldLife,
}

/// What a reader knows.
enum ToldLife {
    Nothing,
    Alive(Option<LifeDue>),
    Ended,
}

/// `GET /v1/sandboxes/{id}/events`
pub(crate) async fn stream_sandbox_events(
    State(api): State<Api>,
    NamedSandbox(held): NamedSandbox,
) -> ApiAnswer {
    let reader = LifeReader { api, held, told: ToldLife::Nothing };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)).into_response())
}

impl LifeReader {
    /// The next event, waiting for it; nothing after the end.
    async fn next(&mut self) -> Option<Event> {
        let (kind, data) = match self.told {
            ToldLife::Nothing => {
                self.told = ToldLife::Alive(None);
                ("sandbox", json!(self.held.view(&self.api.engine)))
            }
            ToldLife::Alive(told) => {
                let due = self.held.life.due(END_NOTICE, told);
                match self.held.gone.run_until_cancelled(due).await {
                    Some(due) => {
                        self.told = ToldLife::Alive(Some(due));
                        let reason = EndReason::from(due.reason);
                        ("ending", json!({ "reason": reason, "at": self.held.timestamp(due.at) }))
                    }
                    None => {
                        self.told = ToldLife::Ended;
                        ("ended", json!(self.held.end(&self.api.engine)))
                    }
                }
            }
            ToldLife::Ended => return None,
        };
        Some(Event::default().event(kind).data(data.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn asked(lifetime: Option<u64>, idle: Option<u64>) -> AskedLife {
        AskedLife { lifetime: lifetime.map(Span::secs), idle: idle.map(Span::secs) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_socket_s_own_user_has_what_is_asked_for_within_a_year() {
        let own = ApiCaller::OwnUser;
        let endless = asked(None, None).bound_new(&own, HOUR).unwrap();
        assert_eq!(endless, LifeBounds::default());
        let long = asked(Some(7200), Some(60)).bound_new(&own, HOUR).unwrap();
        let end = Some(Instant::now() + 2 * HOUR);
        assert_eq!(long, LifeBounds { idle: Some(Duration::from_secs(60)), end });
        let shorter = asked(None, Some(5)).apply_to(long);
        assert_eq!(shorter, LifeBounds { idle: Some(Duration::from_secs(5)), end });
        for wrong in [asked(Some(0), None), asked(None, Some(0)), asked(Some(1 << 40), None)] {
            assert!(wrong.bound_new(&own, HOUR).is_err(), "{wrong:?}");
        }
    }
}
