//! One record as one line, and its place in the chain.
//!
//! A line is `{"hash":"…",` and then the body: `"prev":"…","seq":…,"time":"…","event":{…}}`. The hash
//! is SHA-256 over the body's exact bytes, so a line is judged without interpreting it: another byte,
//! another spelling or another blank is another hash.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stockade_fs::Timestamp;

use super::event::Event;
use super::verify::Damage;

/// The longest line, its newline included.
pub(super) const MAX_LINE: usize = 1 << 20;
/// Upper bound of the part of a line that is not the event.
const MAX_ENVELOPE_BYTES: usize = 512;

const BEFORE_HASH: &[u8] = b"{\"hash\":\"";
const AFTER_HASH: &[u8] = b"\",";
const BEFORE_PREV: &[u8] = b"\"prev\":\"";
const BEFORE_SEQ: &[u8] = b"\",\"seq\":";

/// A hash of 32 bytes (SHA-256 of records and manifests, BLAKE3 of a snapshot's files), written as 64 lower-case
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash([u8; 32]);

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// The hash over everything below.
    pub hash: ContentHash,
    /// The hash of the record before, zeroes for the first.
    pub prev: ContentHash,
    /// Its number, from 1, without gaps.
    pub seq: u64,
    /// When it was written.
    pub time: Timestamp,
    /// What happened.
    pub event: Event,
}

/// What the chain needs of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainLink {
    pub(super) hash: ContentHash,
    pub(super) prev: ContentHash,
    pub(super) seq: u64,
}

/// The event as JSON, or nothing if its line would be too long.
pub(super) fn encode_event(event: &Event) -> serde_json::Result<Option<Vec<u8>>> {
    let json = serde_json::to_vec(event)?;
    Ok((json.len() <= MAX_LINE - MAX_ENVELOPE_BYTES).then_some(json))
}

/// The whole line of a record, newline included, and its hash.
pub(super) fn build_line(
    prev: ContentHash,
    seq: u64,
    time: Timestamp,
    event: &[u8],
) -> (Vec<u8>, ContentHash) {
    let mut body = Vec::with_capacity(event.len() + MAX_ENVELOPE_BYTES);
    let fields = format!("\"prev\":\"{prev}\",\"seq\":{seq},\"time\":\"{time}\",\"event\":");
    body.extend_from_slice(fields.as_bytes());
    body.extend_from_slice(event);
    body.push(b'}');
    let hash = ContentHash::of(&body);
    let mut line = Vec::with_capacity(body.len() + 128);
    line.extend_from_slice(BEFORE_HASH);
    line.extend_from_slice(hash.to_string().as_bytes());
    line.extend_from_slice(AFTER_HASH);
    line.extend_from_slice(&body);
    line.push(b'\n');
    (line, hash)
}

/// Whether the line's event is the rotation away from this segment.
pub(super) fn is_rotation(line: &[u8], segment: u32) -> bool {
    let event = format!(",\"event\":{{\"kind\":\"rotated\",\"segment\":{segment}}}}}");
    line.ends_with(event.as_bytes())
}

/// What a record of removed segments says: the last one, its last record and that one's hash.
pub(super) fn parse_pruned(line: &[u8]) -> Option<(u32, u64, ContentHash)> {
    let mark = b"\"event\":{\"kind\":\"pruned\"";
    line.windows(mark.len()).any(|part| part == mark).then_some(())?;
    let event = serde_json::from_slice::<Record>(line).ok()?.event;
    let Event::Pruned { segment, last, hash } = event else { return None };
    Some((segment, last, hash))
}

impl ChainLink {
    /// Reads a line without its newline. What it says is what its hash covers, or it is damaged.
    pub(super) fn read(line: &[u8]) -> Result<Self, Damage> {
        let rest = line.strip_prefix(BEFORE_HASH).ok_or(Damage::Malformed)?;
        let (hash, rest) = parse_hash(rest)?;
        let body = rest.strip_prefix(AFTER_HASH).ok_or(Damage::Malformed)?;
        if ContentHash::of(body) != hash {
            return Err(Damage::Changed);
        }
        let rest = body.strip_prefix(BEFORE_PREV).ok_or(Damage::Malformed)?;
        let (prev, rest) = parse_hash(rest)?;
        let rest = rest.strip_prefix(BEFORE_SEQ).ok_or(Damage::Malformed)?;
        Ok(Self { hash, prev, seq: parse_number(rest)? })
    }
}

fn parse_hash(given: &[u8]) -> Result<(ContentHash, &[u8]), Damage> {
    let (digits, rest) = given.split_at_checked(64).ok_or(Damage::Malformed)?;
    Ok((ContentHash::from_hex(digits).ok_or(Damage::Malformed)?, rest))
}

fn parse_number(given: &[u8]) -> Result<u64, Damage> {
    let digits = given.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&given[..digits]).map_err(|_| Damage::Malformed)?;
    text.parse().map_err(|_| Damage::Malformed)
}

impl ContentHash {
    /// Previous hash of the first record.
    pub(super) const GENESIS_HASH: Self = Self([0; 32]);

    fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    pub(super) fn from_hex(digits: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        let (pairs, odd) = digits.as_chunks::<2>();
        if pairs.len() != bytes.len() || !odd.is_empty() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = parse_nibble(*high)? << 4 | parse_nibble(*low)?;
        }
        Some(Self(bytes))
    }
}

/// Lower case only: a second spelling of the same hash would be a change that verification does not see.
fn parse_nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl From<[u8; 32]> for ContentHash {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            text.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(HEX_DIGITS[usize::from(byte & 15)]));
        }
        f.pad(&text)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for ContentHash {
    type Error = &'static str;

    fn try_from(given: String) -> Result<Self, Self::Error> {
        Self::from_hex(given.as_bytes()).ok_or("a hash is 64 lower-case hexadecimal digits")
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> String {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_the_link_and_the_record_it_was_made_from() {
        let event = Event::Rotated { segment: 7 };
        let json = encode_event(&event).unwrap().unwrap();
        let (line, hash) = build_line(ContentHash::GENESIS_HASH, 3, Timestamp::now(), &json);
        let line = line.strip_suffix(b"\n").unwrap();
        assert_eq!(
            ChainLink::read(line),
            Ok(ChainLink { hash, prev: ContentHash::GENESIS_HASH, seq: 3 })
        );
        let record: Record = serde_json::from_slice(line).unwrap();
        assert_eq!((record.hash, record.seq, record.event), (hash, 3, event));
        assert!(is_rotation(line, 7) && !is_rotation(line, 8));
    }

    #[test]
    fn another_spelling_of_the_hash_is_not_accepted() {
        assert!(ContentHash::from_hex("A".repeat(64).as_bytes()).is_none());
        assert!(ContentHash::from_hex("a".repeat(64).as_bytes()).is_some());
        assert!(ContentHash::from_hex("a".repeat(63).as_bytes()).is_none());
    }
}
