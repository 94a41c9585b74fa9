//! The path of a request in the one form that rules are compared with.
//!
//! A path that two servers could read in two ways has no such form: it is refused, never guessed.

use std::fmt;
use std::fmt::Write as _;

use crate::lookalike::is_lookalike;

/// The longest path that is judged.
const MAX_PATH_BYTES: usize = 8 * 1024;

/// The path of a request, without its query, in the form that rules are compared with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestPath {
    /// Unreserved characters as they are, all others as they came, escapes in capitals.
    pub(crate) canonical: String,
    /// Decoded, without regard to case, and without the spaces and dots that a lenient server drops at the ends of
    /// segments. Rules that deny are compared with this.
    pub(crate) folded: String,
}

/// Why a path has no form that all servers agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestPathError {
    /// It is `*`, or nothing.
    #[error("it does not begin with `/`")]
    NotAbsolute,
    /// It is longer than what is judged.
    #[error("it is longer than 8192 bytes")]
    TooLong,
    /// `.` or `..` is a segment, also where it is encoded, or is one for servers that drop spaces.
    #[error("a part of it is `.` or `..`, or nothing but dots and spaces")]
    DotSegment,
    /// Some servers read `//` as `/`, and a segment of spaces as none.
    #[error("a part of it is empty, as in `//`")]
    EmptySegment,
    /// A backslash, `;`, a control character or another one that is not a path's.
    #[error("a character in it is not read alike by all servers")]
    Character,
    /// An encoded slash, backslash, `;`, `?`, `#`, `%` or control character.
    #[error("a character is encoded in it that is not read alike by all servers")]
    Encoded,
    /// A fullwidth dot, an invisible character or the like.
    #[error("a character in it is taken for another one, or left out, by some servers")]
    Lookalike,
    /// `%` without two digits, or bytes that are no text.
    #[error("its encoding is wrong")]
    Malformed,
}

impl RequestPath {
    /// Reads the path of a request.
    pub fn parse(path: &str) -> Result<Self, RequestPathError> {
        if path.len() > MAX_PATH_BYTES {
            return Err(RequestPathError::TooLong);
        }
        if !path.starts_with('/') {
            return Err(RequestPathError::NotAbsolute);
        }
        let (canonical, decoded) = decode_path(path)?;
        if decoded.chars().any(is_lookalike) {
            return Err(RequestPathError::Lookalike);
        }
        check_segments(&decoded)?;
        Ok(Self { canonical, folded: fold_path(&decoded) })
    }

    /// The path in its canonical form.
    pub fn as_str(&self) -> &str {
        &self.canonical
    }
}

impl fmt::Display for RequestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical)
    }
}

/// The canonical form, and the text with every escape decoded.
fn decode_path(path: &str) -> Result<(String, String), RequestPathError> {
    let mut canonical = String::with_capacity(path.len());
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let byte;
        (byte, rest) = match first {
            b'%' => read_escape(after, &mut canonical)?,
            plain if is_plain(*plain) => {
                canonical.push(char::from(*plain));
                (*plain, after)
            }
            _ => return Err(RequestPathError::Character),
        };
        decoded.push(byte);
    }
    let decoded = String::from_utf8(decoded).map_err(|_| RequestPathError::Malformed)?;
    Ok((canonical, decoded))
}

/// Reads what follows a `%`: the byte, and what comes after it.
fn read_escape<'a>(
    after: &'a [u8],
    canonical: &mut String,
) -> Result<(u8, &'a [u8]), RequestPathError> {
    let Some(([high, low], rest)) = after.split_first_chunk() else {
        return Err(RequestPathError::Malformed);
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
        return Err(RequestPathError::Malformed);
    };
    let byte = high << 4 | low;
    if byte.is_ascii_control() || b"/\\;%?#".contains(&byte) {
        return Err(RequestPathError::Encoded);
    }
    if is_unreserved(byte) {
        canonical.push(char::from(byte));
    } else {
        // Writing to a string does not fail.
        let _ = write!(canonical, "%{byte:02X}");
    }
    Ok((byte, rest))
}

/// Characters that mean the same encoded and as they are.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Characters that stand in a path as they are. `;` would too, but servers cut a path at it, or do not.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,=:@/".contains(&byte)
}

/// Some servers drop spaces at the ends of a segment, so that `.. ` is `..`, and some read `+` as a space.
fn check_segments(decoded: &str) -> Result<(), RequestPathError> {
    let is_dotted = |segment: &str| {
        segment.contains('.') && segment.chars().all(|sign| matches!(sign, '.' | ' ' | '+'))
    };
    let is_blank = |segment: &str| !segment.is_empty() && segment.trim_matches(' ').is_empty();
    if decoded.split('/').any(is_dotted) {
        return Err(RequestPathError::DotSegment);
    }
    if decoded.contains("//") || decoded.split('/').any(is_blank) {
        return Err(RequestPathError::EmptySegment);
    }
    Ok(())
}

/// The path as the most lenient server takes it. By way of capitals, so that `ß` is `ss` and a dotless `ı` is `i`.
fn fold_path(decoded: &str) -> String {
    let fold = |segment: &str| {
        segment.trim_start_matches(' ').trim_end_matches([' ', '.']).to_uppercase().to_lowercase()
    };
    decoded.split('/').map(fold).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form() {
        for (given, canonical) in [
            ("/", "/"),
            ("/v1/users", "/v1/users"),
            ("/v1/", "/v1/"),
            ("/%7euser/%41%2d", "/~user/A-"),
            ("/a%20b/%c3%a9%2B", "/a%20b/%C3%A9%2B"),
            ("/@scope/a+b,c=d:e!$&'()*", "/@scope/a+b,c=d:e!$&'()*"),
            ("/.hidden/a..b", "/.hidden/a..b"),
            ("/a./b..", "/a./b.."),
            ("/+/a%20", "/+/a%20"),
        ] {
            assert_eq!(RequestPath::parse(given).unwrap().as_str(), canonical, "{given}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        use RequestPathError::*;
        for (given, error) in [
            ("", NotAbsolute),
            ("*", NotAbsolute),
            ("v1", NotAbsolute),
            ("/v1/../admin", DotSegment),
            ("/v1/..", DotSegment),
            ("/./v1", DotSegment),
            ("/v1/%2e%2E/admin", DotSegment),
            ("/v1/.%2e/admin", DotSegment),
            ("/v1/..%20/admin", DotSegment),
            ("/v1/%20../admin", DotSegment),
            ("/v1/.%20./admin", DotSegment),
            ("/v1/..+/admin", DotSegment),
            ("/v1/.../admin", DotSegment),
            ("/v1/%20/admin", EmptySegment),
            ("/v1/%ef%bc%8e%ef%bc%8e/admin", Lookalike),
            ("/v1/%e2%80%a5/admin", Lookalike),
            ("/v1/..%ef%bc%8fadmin", Lookalike),
            ("/v1/..%e2%88%95admin", Lookalike),
            ("/v1/..%cd%be/admin", Lookalike),
            ("/v1/.%e2%80%8b./admin", Lookalike),
            ("/v1/..%c2%a0/admin", Lookalike),
            ("/%ef%bd%81dmin", Lookalike),
            ("/ad%c2%admin", Lookalike),
            ("/v1/%u002e%u002e/admin", Malformed),
            ("//admin", EmptySegment),
            ("/v1//admin", EmptySegment),
            ("/v1%2fadmin", Encoded),
            ("/v1%2Fadmin", Encoded),
            ("/v1%5cadmin", Encoded),
            ("/v1%00", Encoded),
            ("/v1%0d%0a", Encoded),
            ("/v1%7f", Encoded),
            ("/v1%3badmin", Encoded),
            ("/v1%3f", Encoded),
            ("/v1%23", Encoded),
            ("/v1/%252e%252e", Encoded),
            ("/v1/..;/admin", Character),
            ("/v1;x=1", Character),
            ("/v1\\admin", Character),
            ("/v1?x", Character),
            ("/v1#x", Character),
            ("/v 1", Character),
            ("/v1\0", Character),
            ("/é", Character),
            ("/%c0%ae%c0%ae", Malformed),
            ("/%ff", Malformed),
            ("/%", Malformed),
            ("/%4", Malformed),
            ("/%zz", Malformed),
            ("/%+1", Malformed),
        ] {
            assert_eq!(RequestPath::parse(given), Err(error), "{given:?}");
        }
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        assert_eq!(RequestPath::parse(&long), Err(TooLong));
    }
}
