//! A name server played by the test: it answers as the test says, and keeps what it was asked.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

/// Length of the header before the question.
const HEADER_BYTES: usize = 12;
/// Types of records.
const TYPE_A: u8 = 1;
const TYPE_CNAME: u8 = 5;

/// One record of an answer, with the name that it is about.
#[derive(Debug, Clone, Copy)]
pub enum TestRecord {
    Address(&'static str, Ipv4Addr),
    Alias(&'static str, &'static str),
}

/// The server. It lives as long as the test's process.
pub struct TestNameServer {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TestNameServer {
    /// Answers each query for IPv4 addresses, given by its name and its number, with these records; a query that is sent
    /// again has the same number. Names without a record do not exist, and none has another kind of address.
    pub fn start(answer: impl FnMut(&str, u16) -> Vec<TestRecord> + Send + 'static) -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        std::thread::spawn(move || serve(&socket, &kept, answer));
        Self { address, asked }
    }

    /// The names that it was asked for, each once, sorted.
    pub fn asked(&self) -> Vec<String> {
        let mut names = self.asked.lock().unwrap().clone();
        names.sort();
        names.dedup();
        names
    }
}

fn serve(
    socket: &UdpSocket,
    asked: &Mutex<Vec<String>>,
    mut answer: impl FnMut(&str, u16) -> Vec<TestRecord>,
) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let query = &query[..length];
        let (name, end) = read_name(query);
        asked.lock().unwrap().push(name.clone());
        let number = u16::from_be_bytes([query[0], query[1]]);
        let is_for_v4 = query[end..end + 2] == [0, TYPE_A];
        let records = if is_for_v4 { answer(&name, number) } else { Vec::new() };
        let is_unknown = is_for_v4 && records.is_empty();
        let _ = socket.send_to(&write_reply(&query[..end + 4], is_unknown, &records), from);
    }
}

/// The name that is asked for, in small letters, and where it ends.
fn read_name(query: &[u8]) -> (String, usize) {
    let (mut labels, mut at) = (Vec::new(), HEADER_BYTES);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

/// A reply to the question of a query, of which nothing else is given.
fn write_reply(question: &[u8], is_unknown: bool, records: &[TestRecord]) -> Vec<u8> {
    let mut reply = question.to_vec();
    reply[2] = 0x81;
    reply[3] = if is_unknown { 0x83 } else { 0x80 };
    reply[6..HEADER_BYTES].fill(0);
    reply[7] = records.len() as u8;
    for record in records {
        let (owner, kind, data) = match record {
            TestRecord::Address(owner, address) => (owner, TYPE_A, address.octets().to_vec()),
            TestRecord::Alias(owner, other) => (owner, TYPE_CNAME, encode_name(other)),
        };
        reply.extend(encode_name(owner));
        // Its class, and no time for which it may be kept.
        reply.extend([0, kind, 0, 1, 0, 0, 0, 0, 0, data.len() as u8]);
        reply.extend(data);
    }
    reply
}

fn encode_name(name: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    for label in name.split('.') {
        encoded.push(label.len() as u8);
        encoded.extend_from_slice(label.as_bytes());
    }
    encoded.push(0);
    encoded
}
