//! Name queries, as far as a stub resolver's are concerned: one question, answered by one invented IPv4
//! address, by nothing, or by "no such name". Written by hand because it is all that the agent needs, and the
//! agent is a small static program.

use std::net::Ipv4Addr;

/// The longest query or reply over UDP that is handled.
pub const MAX_MESSAGE_BYTES: usize = 512;

const HEADER_LENGTH: usize = 12;
const TYPE_A: u16 = 1;
const CLASS_IN: u16 = 1;
/// Seconds that a program may keep an answer. An address stays with its name as long as the helper lives.
const ANSWER_TTL: u32 = 60;
/// The name of the answer: that of the question, which starts right behind the header.
const POINTER_TO_QUESTION: u16 = 0xC000 | HEADER_LENGTH as u16;

/// A question that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsQuestion {
    /// The name, in lower case, without a dot at its end.
    pub name: String,
    /// Whether an IPv4 address is asked for.
    pub wants_address: bool,
    /// The query's header and question as they came: a reply repeats them.
    echoed: Vec<u8>,
}

/// How a question is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// By this address.
    Address(Ipv4Addr),
    /// The name is there, and has nothing of the kind that was asked for.
    Empty,
    /// There is no such name.
    NoSuchName,
    /// It cannot be answered now.
    Failed,
}

impl Reply {
    fn response_code(self) -> u8 {
        match self {
            Self::Address(_) | Self::Empty => 0,
            Self::Failed => 2,
            Self::NoSuchName => 3,
        }
    }
}

/// Reads a query. Nothing, where it is not a plain query with one question for a name of a host.
pub fn parse_query(message: &[u8]) -> Option<DnsQuestion> {
    let header = message.get(..HEADER_LENGTH)?;
    let (is_reply, opcode) = (header[2] & 0x80 != 0, header[2] >> 3 & 0x0F);
    let counts = [4, 6, 8].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    if is_reply || opcode != 0 || counts != [1, 0, 0] {
        return None;
    }
    let (name, rest) = parse_name(&message[HEADER_LENGTH..])?;
    let (kind, class) = (read_u16(rest, 0)?, read_u16(rest, 2)?);
    let question_end = message.len() - rest.len() + 4;
    (class == CLASS_IN).then(|| DnsQuestion {
        name,
        wants_address: kind == TYPE_A,
        echoed: message[..question_end].to_vec(),
    })
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// A name in labels, without compression: a question has none.
fn parse_name(mut bytes: &[u8]) -> Option<(String, &[u8])> {
    let mut name = String::new();
    loop {
        let (&length, rest) = bytes.split_first()?;
        if length == 0 {
            let fits = !name.is_empty() && name.len() <= crate::protocol::network::MAX_HOST_BYTES;
            return fits.then_some((name, rest));
        }
        let (label, rest) = rest.split_at_checked(length.into()).filter(|_| length < 64)?;
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !label.iter().all(allowed) {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        bytes = rest;
    }
}

/// "Malformed", as the whole reply to a query that cannot be read. Nothing for what is not even a query.
pub fn refuse_query(message: &[u8]) -> Option<Vec<u8>> {
    let header = message.get(..HEADER_LENGTH).filter(|header| header[2] & 0x80 == 0)?;
    Some(vec![header[0], header[1], 0x80 | header[2] & 0x79, 0x81, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// The reply to a question.
pub fn build_reply(question: &DnsQuestion, reply: Reply) -> Vec<u8> {
    let mut message = question.echoed.clone();
    let recursion_desired = message[2] & 0x01;
    // A reply; recursion is available.
    message[2] = 0x80 | recursion_desired;
    message[3] = 0x80 | reply.response_code();
    message[4..HEADER_LENGTH].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    if let Reply::Address(address) = reply {
        message[7] = 1;
        message.extend(POINTER_TO_QUESTION.to_be_bytes());
        message.extend(TYPE_A.to_be_bytes());
        message.extend(CLASS_IN.to_be_bytes());
        message.extend(ANSWER_TTL.to_be_bytes());
        message.extend(4u16.to_be_bytes());
        message.extend(address.octets());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_query(name: &[&[u8]], kind: u16) -> Vec<u8> {
        let mut query = vec![0xAB, 0xCD, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name {
            query.push(label.len() as u8);
            query.extend_from_slice(label);
        }
        query.push(0);
        query.extend(kind.to_be_bytes());
        query.extend(CLASS_IN.to_be_bytes());
        query
    }

    #[test]
    fn a_question_is_answered_by_one_address_under_its_own_number() {
        let query = build_query(&[b"Pypi", b"org"], TYPE_A);
        let question = parse_query(&query).unwrap();
        assert_eq!((question.name.as_str(), question.wants_address), ("pypi.org", true));
        let reply = build_reply(&question, Reply::Address(Ipv4Addr::new(127, 64, 0, 2)));
        assert_eq!(reply[..8], [0xAB, 0xCD, 0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(reply[HEADER_LENGTH..query.len()], query[HEADER_LENGTH..]);
        assert_eq!(reply[reply.len() - 4..], [127, 64, 0, 2]);
    }

    #[test]
    fn what_follows_the_question_is_not_repeated() {
        let mut query = build_query(&[b"a", b"org"], TYPE_A);
        let question_end = query.len();
        query[11] = 1;
        query.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let reply = build_reply(&parse_query(&query).unwrap(), Reply::NoSuchName);
        assert_eq!((reply.len(), reply[3] & 0x0F, &reply[10..12]), (question_end, 3, &[0, 0][..]));
    }

    #[test]
    fn a_query_that_cannot_be_read_is_answered_as_malformed() {
        let query = build_query(&[b"a b"], TYPE_A);
        let reply = refuse_query(&query).unwrap();
        assert_eq!(reply, [0xAB, 0xCD, 0x81, 0x81, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(refuse_query(&reply), None);
        assert_eq!(refuse_query(&query[..11]), None);
    }

    #[test]
    fn names_that_are_not_of_hosts_and_other_kinds_of_messages_are_not_answered() {
        let long = [b'a'; 63];
        for name in
            [&[b"a\0b".as_slice(), b"org"][..], &[b"a b"], &[b"a.b", b"org"], &[long.as_slice(); 5]]
        {
            assert_eq!(parse_query(&build_query(name, TYPE_A)), None, "{name:?}");
        }
        let good = build_query(&[b"a", b"org"], TYPE_A);
        for (at, value) in [(2, 0x80), (2, 0x28), (5, 2), (5, 0), (7, 1)] {
            let mut other = good.clone();
            other[at] = value;
            assert_eq!(parse_query(&other), None, "byte {at}");
        }
        for length in 0..good.len() {
            assert_eq!(parse_query(&good[..length]), None, "{length} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_refused_or_answered(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600)) {
            if let Some(question) = parse_query(&bytes) {
                let reply = build_reply(&question, Reply::Address(Ipv4Addr::LOCALHOST));
                proptest::prop_assert!(reply.len() <= bytes.len() + 16);
            }
        }
    }
}
