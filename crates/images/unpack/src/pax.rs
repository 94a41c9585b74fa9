//! Extended headers of POSIX: `LENGTH KEY=VALUE` records before an entry. Values may hold any bytes.

use crate::UnpackError;

/// What an extended header says of its entry. All other keys are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PaxRecords {
    pub path: Option<Vec<u8>>,
    pub link_path: Option<Vec<u8>>,
    pub size: Option<u64>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i64, u32)>,
    /// Extended attributes for users, by name.
    pub user_xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The prefix of extended attributes that are kept.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

impl PaxRecords {
    /// Reads all records. What could be read in two ways is refused.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, UnpackError> {
        let mut records = Self::default();
        while !bytes.is_empty() {
            let (key, value, rest) = next_record(bytes)
                .ok_or_else(|| UnpackError::refused("an extended header is malformed"))?;
            records.set(key, value)?;
            bytes = rest;
        }
        Ok(records)
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), UnpackError> {
        let once = |taken: bool, key: &str| match taken {
            true => Err(UnpackError::refused(format!("an extended header has `{key}` twice"))),
            false => Ok(()),
        };
        let wrong =
            |key: &str| UnpackError::refused(format!("an extended header has a wrong `{key}`"));
        match key {
            b"path" => {
                once(self.path.is_some(), "path")?;
                self.path = Some(value.to_owned());
            }
            b"linkpath" => {
                once(self.link_path.is_some(), "linkpath")?;
                self.link_path = Some(value.to_owned());
            }
            b"size" => {
                once(self.size.is_some(), "size")?;
                self.size = Some(parse_digits(value).ok_or_else(|| wrong("size"))?);
            }
            b"mtime" => {
                once(self.mtime.is_some(), "mtime")?;
                self.mtime = Some(parse_time(value).ok_or_else(|| wrong("mtime"))?);
            }
            key if key.starts_with(b"GNU.sparse.") => {
                return Err(UnpackError::refused("it has sparse files, which are not taken"));
            }
            key => match key.strip_prefix(XATTR_PREFIX) {
                Some(name) if name.starts_with(b"user.") => {
                    self.user_xattrs.push((name.to_owned(), value.to_owned()));
                }
                Some(_) | None => {}
            },
        }
        Ok(())
    }

    /// Whether it says anything that decides what an entry is.
    pub fn changes_entries(&self) -> bool {
        self.path.is_some() || self.link_path.is_some() || self.size.is_some()
    }
}

/// The key and value of the first record, and what is behind it.
fn next_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(parse_digits(&bytes[..space])?).ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let key = &record[..equals];
    (!key.is_empty()).then(|| (key, &record[equals + 1..], &bytes[length..]))
}

fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with an optional fraction, of which nine digits count.
fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match dot {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(parse_digits(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut nanos = 0;
    for at in 0..9 {
        nanos = nanos * 10 + u32::from(fraction.get(at).map_or(0, |digit| digit - b'0'));
    }
    Some(match (negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let bare = key.len() + value.len() + 3;
        let mut length = bare + bare.to_string().len();
        if bare + length.to_string().len() != length {
            length = bare + length.to_string().len();
        }
        let mut all = format!("{length} {key}=").into_bytes();
        all.extend(value);
        all.push(b'\n');
        all
    }

    #[test]
    fn values_hold_any_bytes() {
        let mut bytes = record("path", b"a=b\nc");
        bytes.extend(record("SCHILY.xattr.user.x", b"\0\n\xff"));
        bytes.extend(record("SCHILY.xattr.security.capability", b"\x01\n"));
        bytes.extend(record("mtime", b"12.5"));
        bytes.extend(record("size", b"77"));
        let read = PaxRecords::parse(&bytes).unwrap();
        assert_eq!(read.path.as_deref(), Some(&b"a=b\nc"[..]));
        assert_eq!(read.user_xattrs, [(b"user.x".to_vec(), b"\0\n\xff".to_vec())]);
        assert_eq!((read.mtime, read.size), (Some((12, 500_000_000)), Some(77)));
    }

    #[test]
    fn times_before_the_epoch_have_positive_nanoseconds() {
        assert_eq!(parse_time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time(b"-3"), Some((-3, 0)));
        assert_eq!(parse_time(b"1.0000000019"), Some((1, 1)));
        assert_eq!(parse_time(b"x"), None);
    }

    #[test]
    fn records_that_do_not_fit_are_refused() {
        for bad in [
            &b"x"[..],
            b"5 a=b",
            b"9 a=b\n",
            b"4 a=b\n",
            b"6 =ab\n",
            b"7 path\n",
            b"+6 a=b\n",
            b"0 a=b\n",
            b"99999999999999999999999 a=b\n",
        ] {
            assert!(PaxRecords::parse(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
        let twice = [record("size", b"1"), record("size", b"2")].concat();
        assert!(PaxRecords::parse(&twice).is_err());
        assert!(PaxRecords::parse(&record("size", b"+1")).is_err());
        assert!(PaxRecords::parse(&record("GNU.sparse.major", b"1")).is_err());
    }
}
