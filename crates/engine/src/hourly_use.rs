//! What was used within the last hour, minute by minute: a table of bounded size that is kept in a file. A file that
//! holds anything else is refused, and never taken for an empty one.

use std::collections::BTreeMap;
use std::time::Duration;

const MINUTE_SECS: u64 = 60;
/// Minutes after which something is no longer counted, beside the one that has begun.
const WINDOW_MINUTES: u64 = 60;
const MAX_LINES: usize = WINDOW_MINUTES as usize + 1;
/// Digits of a number: as many as the largest has.
pub(crate) const NUMBER_DIGITS: usize = 20;
/// A minute, a blank, an amount, and the end of the line.
const LINE_BYTES: usize = 2 * NUMBER_DIGITS + 2;
/// The size of a file, unless it is new and empty.
pub(crate) const HOURLY_FILE_BYTES: usize = MAX_LINES * LINE_BYTES;

/// Amounts by the minute in which they were used, counted since the epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HourlyUse {
    minutes: BTreeMap<u64, u64>,
}

impl HourlyUse {
    /// Reads the text of a file as of `now`, a time since the epoch. Nothing for one that was not written by
    /// [`HourlyUse::encode`].
    pub(crate) fn parse(text: &[u8], now: Duration) -> Option<Self> {
        let mut parsed = Self::default();
        if text.is_empty() {
            return Some(parsed);
        }
        if text.len() != HOURLY_FILE_BYTES {
            return None;
        }
        for line in text.chunks_exact(LINE_BYTES) {
            let (minute, amount) = parse_line(line)?;
            parsed.insert(minute, amount, minute_of(now));
        }
        Some(parsed)
    }

    /// Counts an amount that is used now.
    pub(crate) fn add(&mut self, amount: u64, now: Duration) {
        self.insert(minute_of(now), amount, minute_of(now));
    }

    /// Gives back an amount that was counted in this minute and not used. What is no longer counted is not given back:
    /// that would be use of other minutes.
    pub(crate) fn give_back(&mut self, amount: u64, minute: u64) {
        if let Some(used) = self.minutes.get_mut(&minute) {
            *used = used.saturating_sub(amount);
        }
        self.minutes.retain(|_, used| *used > 0);
    }

    fn insert(&mut self, minute: u64, amount: u64, now: u64) {
        // A minute to come is of a clock that was set back: it counts for an hour from now at most.
        let minute = minute.min(now);
        if amount > 0 && now - minute <= WINDOW_MINUTES {
            let used = self.minutes.entry(minute).or_default();
            *used = used.saturating_add(amount);
        }
    }

    /// All that is counted.
    pub(crate) fn total(&self) -> u64 {
        u64::try_from(self.sum()).unwrap_or(u64::MAX)
    }

    /// In a type that no table overflows.
    fn sum(&self) -> u128 {
        self.minutes.values().copied().map(u128::from).sum()
    }

    /// How long it takes until less than this is counted, if nothing more is used.
    pub(crate) fn delay_until_below(&self, most: u64, now: Duration) -> Duration {
        let mut left = self.sum();
        for (minute, amount) in &self.minutes {
            left -= u128::from(*amount);
            if left < u128::from(most) {
                let free = minute.saturating_add(WINDOW_MINUTES + 1).saturating_mul(MINUTE_SECS);
                return Duration::from_secs(free).saturating_sub(now);
            }
        }
        Duration::from_secs(WINDOW_MINUTES * MINUTE_SECS)
    }

    /// The text of a file: always of the same size, so that writing it over needs no more space.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let used = self.minutes.iter().map(|(minute, amount)| (*minute, *amount));
        let lines = used.chain(std::iter::repeat((0, 0))).take(MAX_LINES);
        let lines = lines
            .map(|(minute, amount)| format!("{minute:0NUMBER_DIGITS$} {amount:0NUMBER_DIGITS$}\n"));
        lines.collect::<String>().into_bytes()
    }
}

/// The minute of a time since the epoch.
pub(crate) fn minute_of(now: Duration) -> u64 {
    now.as_secs() / MINUTE_SECS
}

fn parse_line(line: &[u8]) -> Option<(u64, u64)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (minute, amount) = line.split_once(' ')?;
    Some((parse_number(minute)?, parse_number(amount)?))
}

/// Digits alone: other spellings of a number were not written here.
pub(crate) fn parse_number(digits: &str) -> Option<u64> {
    let is_plain =
        digits.len() == NUMBER_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Duration {
        Duration::from_secs(minute * MINUTE_SECS + 30)
    }

    #[test]
    fn an_amount_is_counted_for_an_hour() {
        let mut used = HourlyUse::default();
        used.add(5, at(1000));
        used.add(7, at(1000));
        used.add(1, at(1030));
        let later = |minute| HourlyUse::parse(&used.encode(), at(minute)).unwrap().total();
        assert_eq!([1030, 1060, 1061, 1090, 1091].map(later), [13, 13, 1, 1, 0]);
        let delay = used.delay_until_below(2, at(1030));
        assert_eq!(delay, Duration::from_secs(31 * MINUTE_SECS - 30));
        assert_eq!(used.delay_until_below(0, at(1030)), Duration::from_secs(3600));
    }

    #[test]
    fn what_is_given_back_was_counted_in_its_minute_and_still_is() {
        let mut used = HourlyUse::default();
        used.add(5, at(1000));
        used.add(7, at(1030));
        used.give_back(3, 1000);
        assert_eq!(used.minutes, BTreeMap::from([(1000, 2), (1030, 7)]));
        let mut later = HourlyUse::parse(&used.encode(), at(1061)).unwrap();
        later.give_back(2, 1000);
        assert_eq!(later.minutes, BTreeMap::from([(1030, 7)]));
        later.give_back(u64::MAX, 1030);
        assert_eq!(later, HourlyUse::default());
    }

    #[test]
    fn a_file_has_the_same_size_however_much_is_in_it() {
        let mut used = HourlyUse::default();
        assert_eq!(used.encode().len(), HOURLY_FILE_BYTES);
        for minute in 0..500 {
            used = HourlyUse::parse(&used.encode(), at(minute)).unwrap();
            used.add(1, at(minute));
            assert_eq!(used.encode().len(), HOURLY_FILE_BYTES);
        }
        assert_eq!(used.total(), 61);
    }

    #[test]
    fn what_was_not_written_here_is_refused() {
        let mut used = HourlyUse::default();
        used.add(5, at(1000));
        let good = String::from_utf8(used.encode()).unwrap();
        let changed = |from: &str, to: &str| good.replacen(from, to, 1).into_bytes();
        let one = "00000000000000000005";
        for wrong in [
            good.as_bytes()[..good.len() - 1].to_vec(),
            good.as_bytes()[..1].to_vec(),
            format!("{good}0").into_bytes(),
            vec![0; HOURLY_FILE_BYTES],
            changed(one, "99999999999999999999"),
            changed(one, "-0000000000000000005"),
            changed(one, "+0000000000000000005"),
            changed(one, "0x000000000000000005"),
        ] {
            assert_eq!(HourlyUse::parse(&wrong, at(1000)), None);
        }
        assert_eq!(HourlyUse::parse(b"", at(1000)), Some(HourlyUse::default()));
    }

    #[test]
    fn huge_amounts_and_minutes_to_come_overflow_nothing() {
        let mut used = HourlyUse::default();
        for minute in [1000, 1001] {
            used.add(u64::MAX, at(minute));
            used.add(u64::MAX, at(minute));
        }
        assert_eq!(used.total(), u64::MAX);
        assert_eq!(used.delay_until_below(1, at(1001)), Duration::from_secs(61 * MINUTE_SECS - 30));
        // A clock that was set back by a year, or to the epoch.
        let back = HourlyUse::parse(&used.encode(), at(10)).unwrap();
        assert_eq!(back.total(), u64::MAX);
        assert_eq!(HourlyUse::parse(&back.encode(), at(71)).unwrap().total(), 0);
        let to_come = HourlyUse { minutes: BTreeMap::from([(u64::MAX, 1)]) };
        assert_eq!(HourlyUse::parse(&to_come.encode(), at(0)).unwrap().total(), 1);
        assert!(to_come.delay_until_below(1, at(0)) > Duration::ZERO);
    }
}
