//! The primitives of the encoding. Nothing here allocates by a length the peer claims.

use super::{HEADER_BYTES, MAX_FRAME};

/// Bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body ends before its fields do.
    #[error("the message is cut short")]
    Short,
    /// The body goes on after its last field.
    #[error("the message has bytes left over")]
    Trailing,
    /// A tag that names nothing.
    #[error("{tag} is no {what}")]
    Tag {
        /// What was expected.
        what: &'static str,
        /// What was there.
        tag: u8,
    },
    /// Text that is not UTF-8 or holds a zero byte.
    #[error("a text is not valid")]
    Text,
    /// A frame longer than any may be.
    #[error("a frame of {0} bytes is longer than any may be")]
    TooLong(usize),
}

/// A message that does not fit a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message does not fit a frame")]
pub struct TooLong;

/// Appends one frame, or leaves `out` as it was.
pub(super) fn put_frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), TooLong> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    body(out);
    let length = out.len() - start - HEADER_BYTES;
    if length > MAX_FRAME {
        out.truncate(start);
        return Err(TooLong);
    }
    // Checked just above: the length fits.
    out[start..start + HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// The length of the body that follows, once the whole header is there.
pub fn frame_length(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME { Err(DecodeError::TooLong(length)) } else { Ok(Some(length)) }
}

/// A frame's body, and what follows it.
type Split<'a> = (&'a [u8], &'a [u8]);

/// The first whole frame of what arrived, and what follows it.
pub fn split_frame(bytes: &[u8]) -> Result<Option<Split<'_>>, DecodeError> {
    let Some(length) = frame_length(bytes)? else {
        return Ok(None);
    };
    Ok(bytes[HEADER_BYTES..].split_at_checked(length))
}

/// Appends fields.
pub(super) trait Put {
    fn u8(&mut self, value: u8);
    fn bytes(&mut self, value: &[u8]);

    fn u16(&mut self, value: u16) {
        value.to_le_bytes().into_iter().for_each(|byte| self.u8(byte));
    }

    fn u32(&mut self, value: u32) {
        value.to_le_bytes().into_iter().for_each(|byte| self.u8(byte));
    }

    fn u64(&mut self, value: u64) {
        value.to_le_bytes().into_iter().for_each(|byte| self.u8(byte));
    }

    fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    /// The tag of a message, and the number of the channel or stream that it is about.
    fn head(&mut self, tag: u8, number: u32) {
        self.u8(tag);
        self.u32(number);
    }

    /// A count or length. One beyond `u32` cannot fit a frame anyway, so the frame is refused.
    fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    fn data(&mut self, value: &[u8]) {
        self.count(value.len());
        self.bytes(value);
    }

    fn text(&mut self, value: &str) {
        self.data(value.as_bytes());
    }
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.extend_from_slice(value);
    }
}

/// Reads a whole body: nothing may be left over.
pub(super) fn take_whole<'a, T>(
    body: &'a [u8],
    take: impl FnOnce(&mut Take<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut from = Take(body);
    let taken = take(&mut from)?;
    from.end().map(|()| taken)
}

/// Takes fields off the front of a body.
pub(super) struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::Tag { what: "flag", tag }),
        }
    }

    pub fn data(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(head)
    }

    /// Text without zero bytes: all of it ends up as C strings, paths or lines.
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        let text = std::str::from_utf8(self.data()?).map_err(|_| DecodeError::Text)?;
        if text.contains('\0') { Err(DecodeError::Text) } else { Ok(text) }
    }

    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(item(self)?);
        }
        Ok(list)
    }

    pub fn option<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag()? { item(self).map(Some) } else { Ok(None) }
    }

    pub fn end(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}
