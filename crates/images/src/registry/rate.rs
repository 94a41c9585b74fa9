//! Registries that limit how often they are asked: waited for a few times, and for no longer than for one that stalls.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

use crate::ImageError;

/// How often a request is sent again.
const MAX_RETRIES: u32 = 5;
/// The first wait where the registry names none; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Waits of one request.
pub(super) struct RateLimit {
    retries: u32,
    longest: Duration,
}

impl RateLimit {
    /// No wait takes longer than this.
    pub fn new(longest: Duration) -> Self {
        Self { retries: 0, longest }
    }

    /// How long to wait before the request is sent again. Nothing where the answer is another one.
    pub fn wait_after(
        &mut self,
        host: &str,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<Option<Duration>, ImageError> {
        let asked = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let asked = asked.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let is_limited = status == StatusCode::TOO_MANY_REQUESTS
            || (status == StatusCode::SERVICE_UNAVAILABLE && asked.is_some());
        if !is_limited {
            return Ok(None);
        }
        let usual = FIRST_WAIT.saturating_mul(1 << self.retries).min(self.longest);
        let wait = asked.unwrap_or(usual);
        if self.retries >= MAX_RETRIES || wait > self.longest {
            return Err(ImageError::RateLimited { host: host.to_owned(), after: asked });
        }
        self.retries += 1;
        Ok(Some(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_as_long_as_asked_for_but_neither_long_nor_repeated_for_ever() {
        let longest = Duration::from_secs(30);
        let wait = |limit: &mut RateLimit, status: u16, asked: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(asked) = asked {
                headers.insert(RETRY_AFTER, asked.parse().unwrap());
            }
            let status = StatusCode::from_u16(status).unwrap();
            limit.wait_after("r.example", status, &headers).map(|wait| wait.map(|w| w.as_secs()))
        };
        let mut limit = RateLimit::new(longest);
        assert_eq!(wait(&mut limit, 200, Some("1")).unwrap(), None);
        assert_eq!(wait(&mut limit, 503, None).unwrap(), None, "it is down");
        assert_eq!(wait(&mut limit, 503, Some("7")).unwrap(), Some(7));
        assert_eq!(wait(&mut limit, 429, Some("30")).unwrap(), Some(30));
        assert_eq!(wait(&mut limit, 429, None).unwrap(), Some(4));
        assert_eq!(wait(&mut limit, 429, Some("soon")).unwrap(), Some(8));
        assert_eq!(wait(&mut limit, 429, Some("0")).unwrap(), Some(0));
        assert!(wait(&mut limit, 429, Some("0")).is_err(), "once too often");
        let error = wait(&mut RateLimit::new(longest), 429, Some("31")).unwrap_err();
        assert!(error.to_string().contains("31 s"), "{error}");
        let huge = wait(&mut RateLimit::new(longest), 429, Some("18446744073709551615"));
        assert!(matches!(huge, Err(ImageError::RateLimited { .. })));
    }
}
