//! Bodies of requests and answers, filtered while they pass. Short ones whose length may change are read whole,
//! so that their new length can be told; all others go on piece by piece.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::patterns::{PatternSource, StreamFilter};
use crate::policy::Denial;

/// The longest body that is read whole.
const MAX_COLLECTED_BYTES: u64 = 128 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or an answer that is relayed.
pub type RelayBody = Either<FilteredBody, Full<Bytes>>;

/// Called with the reason when something that was relayed has to stop.
pub type RefusalHook = Arc<dyn Fn(&Denial) + Send + Sync>;

/// Why something that was relayed had to stop: a body fails long after its head was sent.
#[derive(Clone)]
pub struct RefusalSlot {
    denial: Arc<Mutex<Option<Denial>>>,
    hook: RefusalHook,
}

impl RefusalSlot {
    /// One without a reason yet, that tells the first.
    pub fn new(hook: RefusalHook) -> Self {
        Self { denial: Arc::default(), hook }
    }

    /// The first reason stays.
    pub fn set(&self, denial: &Denial) {
        let mut slot = self.denial.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(denial.clone());
            (self.hook)(denial);
        }
    }

    /// The reason, if there is one.
    pub fn get(&self) -> Option<Denial> {
        self.denial.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A request or an answer is not relayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// What is in it is not allowed.
    Refused(Denial),
    /// The other side failed.
    Failed(String),
}

impl From<Denial> for RequestError {
    fn from(denial: Denial) -> Self {
        Self::Refused(denial)
    }
}

impl RequestError {
    /// A refusal that no rule would change.
    pub fn refuse(reason: impl Into<Denial>) -> Self {
        Self::Refused(reason.into())
    }
}

/// Something that must not pass was found in a body.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BlockedBody(String);

/// A body that passes a filter, where there is one.
pub struct FilteredBody {
    inner: Incoming,
    filter: Option<(StreamFilter, RefusalSlot)>,
    ended: bool,
}

impl FilteredBody {
    /// As it is.
    pub fn unfiltered(inner: Incoming) -> Self {
        Self { inner, filter: None, ended: false }
    }

    fn new(inner: Incoming, patterns: PatternSource, refusal: &RefusalSlot) -> Self {
        let filter = StreamFilter::new(patterns);
        Self { inner, filter: Some((filter, refusal.clone())), ended: false }
    }
}

impl Body for FilteredBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { inner, filter, ended } = self.get_mut();
        let Some((filter, refusal)) = filter else {
            let polled = Pin::new(inner).poll_frame(context);
            return polled.map(|frame| frame.map(|frame| frame.map_err(BoxError::from)));
        };
        while !*ended {
            let passed = match ready!(Pin::new(&mut *inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => filter.push(&data),
                    // Trailers are left out: no client of HTTP/1 relies on them.
                    Err(_) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    *ended = true;
                    Ok(filter.finish())
                }
            };
            match passed {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data.into())))),
                Err(reason) => {
                    *ended = true;
                    refusal.set(&reason.clone().into());
                    return Poll::Ready(Some(Err(BlockedBody(reason).into())));
                }
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        match &self.filter {
            None => self.inner.is_end_stream(),
            Some((filter, _)) => self.ended || (self.inner.is_end_stream() && filter.is_empty()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.filter {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// What a filter does to the length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthChange {
    /// Nothing: all of it passes, or it stops.
    Keeps,
    /// It may become another.
    Changes,
}

/// Lets a body pass these patterns, and puts its head right.
pub async fn filter_body(
    body: Incoming,
    headers: &mut HeaderMap,
    patterns: impl Into<PatternSource>,
    change: LengthChange,
    refusal: &RefusalSlot,
) -> Result<RelayBody, RequestError> {
    let patterns = patterns.into();
    headers.remove(TRAILER);
    if body.is_end_stream() {
        return Ok(Either::Left(FilteredBody::unfiltered(body)));
    }
    if change == LengthChange::Changes {
        if body.size_hint().exact().is_some_and(|length| length <= MAX_COLLECTED_BYTES) {
            return collect_body(body, headers, &patterns).await.map(Either::Right);
        }
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    Ok(Either::Left(FilteredBody::new(body, patterns, refusal)))
}

async fn collect_body(
    body: Incoming,
    headers: &mut HeaderMap,
    patterns: &PatternSource,
) -> Result<Full<Bytes>, RequestError> {
    let collected = body.collect().await;
    let whole = collected.map_err(|error| RequestError::Failed(error.to_string()))?.to_bytes();
    let rewritten = patterns.current().apply(&whole).map_err(RequestError::refuse)?;
    let whole = rewritten.map_or(whole, Bytes::from);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
    Ok(Full::new(whole))
}
