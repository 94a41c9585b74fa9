//! A wire that can be cut: between a client and a server on loopback, closing both ends, or passing on
//! nothing any more while both ends believe that all is well.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// State of the wire: bytes are passed on, held without an error, or new connections are refused.
const WIRE_FORWARDING: u8 = 0;
const WIRE_STALLED: u8 = 1;
const WIRE_REFUSING: u8 = 2;

/// A wire.
pub struct CuttableWire {
    pub port: u16,
    inner: Arc<WireInner>,
}

#[derive(Default)]
struct WireInner {
    state: AtomicU8,
    /// How many bytes may still go to the server before the wire is cut.
    left: AtomicU64,
    ends: Mutex<Vec<TcpStream>>,
}

impl CuttableWire {
    /// A wire to this port.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let inner = Arc::new(WireInner { left: AtomicU64::new(u64::MAX), ..WireInner::default() });
        let accepting = Arc::clone(&inner);
        spawn(move || accepting.accept_clients(&listener, port));
        Self { port: own, inner }
    }

    /// Cuts what there is; what is connected from now on goes through.
    pub fn cut_connections(&self) {
        self.inner.shut_down_ends();
    }

    /// Cuts all connections, and lets no more through.
    pub fn cut_for_good(&self) {
        self.inner.state.store(WIRE_REFUSING, Ordering::SeqCst);
        self.inner.shut_down_ends();
    }

    /// Passes nothing on any more, and says nothing about it.
    pub fn stall_forwarding(&self) {
        self.inner.state.store(WIRE_STALLED, Ordering::SeqCst);
    }

    /// Cuts after so many more bytes to the server.
    pub fn cut_after(&self, bytes: u64) {
        self.inner.left.store(bytes, Ordering::SeqCst);
    }
}

impl WireInner {
    fn accept_clients(self: Arc<Self>, listener: &TcpListener, port: u16) {
        for client in listener.incoming().map_while(Result::ok) {
            if self.state.load(Ordering::SeqCst) == WIRE_REFUSING {
                continue;
            }
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
            let copies = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let mut ends = self.ends.lock().unwrap();
            ends.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
            drop(ends);
            let (there, back) = (Arc::clone(&self), Arc::clone(&self));
            spawn(move || there.forward_bytes(client, server, true));
            spawn(move || back.forward_bytes(copies.1, copies.0, false));
        }
    }

    fn forward_bytes(&self, mut from: TcpStream, mut to: TcpStream, counted: bool) {
        let mut piece = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut piece) {
            while self.state.load(Ordering::SeqCst) == WIRE_STALLED {
                sleep(Duration::from_millis(50));
            }
            let allowed = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(read as u64));
            let order = Ordering::SeqCst;
            if counted
                && self
                    .left
                    .fetch_update(order, order, allowed)
                    .is_ok_and(|left| left < read as u64)
            {
                self.left.store(u64::MAX, order);
                self.shut_down_ends();
            }
            if to.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn shut_down_ends(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
