//! Name queries over TCP: each message has its length before it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::dns::MAX_MESSAGE_BYTES;

/// The most connections for queries at once. The oldest gives way to a new one.
const MAX_CONNECTIONS: usize = 32;
const LENGTH_BYTES: usize = 2;

/// The connections.
#[derive(Default)]
pub struct TcpQueries {
    connections: BTreeMap<u32, (TcpStream, Vec<u8>)>,
    next: u32,
}

impl TcpQueries {
    /// What to wait for.
    pub fn fds(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.connections.iter().map(|(number, (socket, _))| (*number, socket.as_fd()))
    }

    /// Takes a new connection.
    pub fn accept(&mut self, listener: &TcpListener) {
        let Ok((socket, _)) = listener.accept() else { return };
        if socket.set_nonblocking(true).is_ok() {
            if self.connections.len() >= MAX_CONNECTIONS {
                self.connections.pop_first();
            }
            self.connections.insert(self.next, (socket, Vec::new()));
            self.next = self.next.wrapping_add(1);
        }
    }

    /// The whole messages of a connection that have come. One that ended, or whose message is too long, is
    /// closed.
    pub fn read(&mut self, number: u32) -> Vec<Vec<u8>> {
        let Some((socket, said)) = self.connections.get_mut(&number) else { return Vec::new() };
        let mut buffer = [0; LENGTH_BYTES + MAX_MESSAGE_BYTES];
        match socket.read(&mut buffer) {
            Ok(count @ 1..) => said.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Ok(_) | Err(_) => {
                self.connections.remove(&number);
                return Vec::new();
            }
        }
        let mut messages = Vec::new();
        while let Some(prefix) = said.first_chunk() {
            let length = usize::from(u16::from_be_bytes(*prefix));
            if length > MAX_MESSAGE_BYTES {
                self.connections.remove(&number);
                break;
            }
            let Some(message) = said.get(LENGTH_BYTES..LENGTH_BYTES + length) else { break };
            messages.push(message.to_vec());
            said.drain(..LENGTH_BYTES + length);
        }
        messages
    }

    /// Answers. A connection that does not take an answer at once is closed.
    pub fn answer(&mut self, number: u32, message: &[u8]) {
        let Some((socket, _)) = self.connections.get_mut(&number) else { return };
        let framed = [&(message.len() as u16).to_be_bytes()[..], message].concat();
        if !matches!(socket.write(&framed), Ok(count) if count == framed.len()) {
            self.connections.remove(&number);
        }
    }
}
