//! Instants as records and leases write them: RFC 3339, UTC, milliseconds.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Last instant with a four-digit year, in milliseconds: the last one that RFC 3339 can write.
const MAX_TIMESTAMP_MILLIS: u64 = 253_402_300_799_999;

/// An instant in whole milliseconds, written as RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(u64);

impl Timestamp {
    /// This instant, by the host's clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Timestamp {
    /// Instants that RFC 3339 cannot write become the nearest that it can.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(
            u64::try_from(since.as_millis())
                .unwrap_or(MAX_TIMESTAMP_MILLIS)
                .min(MAX_TIMESTAMP_MILLIS),
        )
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(time.0)
    }
}

impl TryFrom<String> for Timestamp {
    type Error = humantime::TimestampError;

    fn try_from(given: String) -> Result<Self, Self::Error> {
        humantime::parse_rfc3339(&given).map(Self::from)
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> String {
        time.to_string()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis((*self).into()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_print_in_utc_with_milliseconds_and_parse_back() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (MAX_TIMESTAMP_MILLIS, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp(millis).to_string(), text);
            assert_eq!(Timestamp::try_from(text.to_owned()).unwrap(), Timestamp(millis));
        }
    }

    #[test]
    fn a_clock_beyond_all_years_still_prints() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        let late = UNIX_EPOCH + Duration::from_secs(MAX_TIMESTAMP_MILLIS);
        assert_eq!(Timestamp::from(early).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from(late).to_string(), "9999-12-31T23:59:59.999Z");
    }
}
