//! The first message of a TLS client, as far as it says which host is meant. Nothing is decrypted.
//!
//! Read strictly: what does not parse, has no name, has two, or hides one (encrypted client hello) is refused.

/// The longest message that is looked at, with the records around it.
pub const MAX_HELLO_BYTES: usize = 16 * 1024;

const RECORD_HEADER: usize = 5;
const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const MAX_RECORD: usize = 16 * 1024;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// Drafts of the same, which old servers may still know.
const ENCRYPTED_NAME_DRAFTS: [u16; 3] = [0xfe0a, 0xfe09, 0xffce];
const HOST_NAME: u8 = 0;
/// The inner form of an encrypted hello; the outer one, that travels, is 0.
const OUTER_HELLO: u8 = 0;

/// Why no name can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is not one.
    #[error("it is not a TLS client's first message")]
    Malformed,
    /// It says no name.
    #[error("the TLS client names no host (no SNI)")]
    NoName,
    /// It hides one.
    #[error(
        "the TLS client encrypts the host's name (ECH); browsers do without it by the policy \
         `EncryptedClientHelloEnabled=false`"
    )]
    Encrypted,
}

/// What a client has said so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloState<T> {
    /// All of it.
    Complete(T),
    /// Not all: nothing more can be told before so many bytes have come.
    Needs(usize),
}

/// The name of the host that a client asks for.
pub fn read_server_name(bytes: &[u8]) -> Result<HelloState<String>, HelloError> {
    match join_records(bytes)? {
        HelloState::Complete(message) => parse_hello(&message).map(HelloState::Complete),
        HelloState::Needs(length) => Ok(HelloState::Needs(length)),
    }
}

/// The handshake message, which may be spread over records.
fn join_records(bytes: &[u8]) -> Result<HelloState<Vec<u8>>, HelloError> {
    let (mut message, mut at) = (Vec::new(), 0);
    loop {
        if let Some(header) = message.first_chunk::<4>() {
            let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
            if header[0] != CLIENT_HELLO || length > MAX_HELLO_BYTES {
                return Err(HelloError::Malformed);
            }
            if message.len() >= 4 + length {
                // A client waits for the reply now: further bytes in this record are no part of its hello.
                return if message.len() == 4 + length {
                    Ok(HelloState::Complete(message.split_off(4)))
                } else {
                    Err(HelloError::Malformed)
                };
            }
        }
        let rest = &bytes[at..];
        let Some(header) = rest.first_chunk::<RECORD_HEADER>() else {
            return check_start(rest).map(|()| HelloState::Needs(at + RECORD_HEADER));
        };
        check_start(header)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > MAX_RECORD {
            return Err(HelloError::Malformed);
        }
        let end = at + RECORD_HEADER + length;
        let Some(body) = bytes.get(at + RECORD_HEADER..end) else {
            return Ok(HelloState::Needs(end));
        };
        message.extend_from_slice(body);
        at = end;
    }
}

/// The type and the major version of a record, as far as they have come.
fn check_start(record: &[u8]) -> Result<(), HelloError> {
    let expected = [HANDSHAKE_RECORD, 3];
    let fits = record.iter().zip(expected).all(|(byte, expected)| *byte == expected);
    if fits { Ok(()) } else { Err(HelloError::Malformed) }
}

fn parse_hello(message: &[u8]) -> Result<String, HelloError> {
    let mut rest = Fields(message);
    // Version and random, session, cipher suites, compression methods.
    rest.take(34)?;
    rest.vector::<1>()?;
    rest.vector::<2>()?;
    rest.vector::<1>()?;
    let mut extensions = Fields(rest.vector::<2>()?);
    if !rest.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let body = extensions.vector::<2>()?;
        match kind {
            SERVER_NAME if name.is_some() => return Err(HelloError::Malformed),
            SERVER_NAME => name = Some(parse_server_name(body)?),
            ENCRYPTED_CLIENT_HELLO if body.first() == Some(&OUTER_HELLO) => {
                return Err(HelloError::Encrypted);
            }
            draft if ENCRYPTED_NAME_DRAFTS.contains(&draft) => return Err(HelloError::Encrypted),
            _ => {}
        }
    }
    name.ok_or(HelloError::NoName)
}

fn parse_server_name(body: &[u8]) -> Result<String, HelloError> {
    let mut outer = Fields(body);
    let mut list = Fields(outer.vector::<2>()?);
    let kind = list.take(1)?[0];
    let name = list.vector::<2>()?;
    if kind != HOST_NAME || !list.0.is_empty() || !outer.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    String::from_utf8(name.to_vec()).map_err(|_| HelloError::Malformed)
}

/// Takes fields off the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes with their length before them, in so many bytes.
    fn vector<const N: usize>(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(N)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        self.take(length)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn vector16(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u16).to_be_bytes()[..], body].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector16(body)].concat()
    }

    fn server_name(name: &[u8]) -> Vec<u8> {
        extension(SERVER_NAME, &vector16(&[&[HOST_NAME][..], &vector16(name)].concat()))
    }

    fn hello_with(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(vector16(&extensions.concat()));
        let length = (body.len() as u32).to_be_bytes();
        [&[CLIENT_HELLO][..], &length[1..], &body].concat()
    }

    fn record(body: &[u8]) -> Vec<u8> {
        [&[HANDSHAKE_RECORD, 3, 1][..], &vector16(body)].concat()
    }

    /// A client's first message that asks for this host.
    pub fn client_hello(name: &str) -> Vec<u8> {
        record(&hello_with(&[extension(10, &[0, 2, 0, 29]), server_name(name.as_bytes())]))
    }

    #[test]
    fn the_name_is_read_in_one_record_or_several_and_not_before_it_is_all_there() {
        let whole = client_hello("pypi.org");
        let complete = Ok(HelloState::Complete("pypi.org".to_owned()));
        assert_eq!(read_server_name(&whole), complete);
        for length in 0..whole.len() {
            let needed = if length < RECORD_HEADER { RECORD_HEADER } else { whole.len() };
            let state = read_server_name(&whole[..length]);
            assert_eq!(state, Ok(HelloState::Needs(needed)), "{length} bytes");
        }
        let message = hello_with(&[server_name(b"pypi.org")]);
        let spread: Vec<u8> = message.chunks(7).flat_map(record).collect();
        assert_eq!(read_server_name(&spread), complete);
    }

    #[test]
    fn no_name_two_names_and_a_hidden_name_are_refused() {
        let refused = |extensions: &[Vec<u8>]| read_server_name(&record(&hello_with(extensions)));
        assert_eq!(refused(&[]), Err(HelloError::NoName));
        let name = server_name(b"a.org");
        assert_eq!(refused(&[name.clone(), server_name(b"b.org")]), Err(HelloError::Malformed));
        let hidden = extension(ENCRYPTED_CLIENT_HELLO, &[OUTER_HELLO, 0, 1, 0, 1]);
        assert_eq!(refused(&[name.clone(), hidden]), Err(HelloError::Encrypted));
        let drafted = extension(0xffce, &[1, 2, 3]);
        assert_eq!(refused(&[name.clone(), drafted]), Err(HelloError::Encrypted));
        let two = [&[0][..], &vector16(b"a.org"), &[0], &vector16(b"b.org")].concat();
        assert_eq!(refused(&[extension(SERVER_NAME, &vector16(&two))]), Err(HelloError::Malformed));
        let mut trailing = hello_with(&[name]);
        trailing.push(0);
        assert_eq!(read_server_name(&record(&trailing)), Err(HelloError::Malformed));
    }

    #[test]
    fn other_protocols_are_told_by_their_first_bytes() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0", &[0x16, 2], &[0x15, 3, 1, 0, 2]] {
            assert_eq!(read_server_name(bytes), Err(HelloError::Malformed), "{bytes:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_change_of_a_byte_is_read_without_harm(
            at in 0usize..200,
            byte in proptest::num::u8::ANY,
        ) {
            let mut hello = client_hello("a.example.org");
            let length = hello.len();
            hello[at % length] = byte;
            let _ = read_server_name(&hello);
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            let _ = read_server_name(&bytes);
            let _ = read_server_name(&record(&bytes));
            let _ = read_server_name(&record(&hello_with(std::slice::from_ref(&bytes))));
        }
    }
}
