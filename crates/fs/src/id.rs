//! Fresh ids: random enough that none comes twice and none can be guessed.

use stockade_core::{Error, ErrorCode, NameError, Result};

const ID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// 100 random bits as 20 lower-case letters and digits.
pub fn fresh_id<T>() -> Result<T>
where
    T: std::str::FromStr<Err = NameError>,
{
    let mut random = [0u8; 20];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let text: String =
        random.iter().map(|byte| char::from(ID_ALPHABET[usize::from(byte % 32)])).collect();
    match (filled, text.parse()) {
        (Ok(20), Ok(id)) => Ok(id),
        _ => Err(Error::new(ErrorCode::System, "make an id", "the kernel gave no random bytes")),
    }
}
