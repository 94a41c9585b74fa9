//! Connections that have not shown the token yet, or on a socket have not sent a request. There is room for a number of
//! them from each peer and in all; where it is full, the oldest of the peer that has the most makes room. So a peer that
//! only connects keeps no client out: one that shows the token, or sends its request, does so at once and is gone from
//! here.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Connections without the token, of all peers. Each has at most half of them.
pub(crate) const MAX_UNPROVEN: usize = 256;

/// Connections that have not shown the token yet.
#[derive(Debug)]
pub(crate) struct Lobby {
    max: usize,
    state: Mutex<LobbyState>,
}

#[derive(Debug, Default)]
struct LobbyState {
    next: u64,
    /// Oldest first.
    waiting: Vec<WaitingConnection>,
}

#[derive(Debug)]
struct WaitingConnection {
    number: u64,
    peer: IpAddr,
    turned_out: CancellationToken,
}

/// One connection's time in the lobby; over when it is dropped.
pub(crate) struct Visit {
    lobby: Arc<Lobby>,
    number: u64,
    turned_out: CancellationToken,
}

impl Default for Lobby {
    fn default() -> Self {
        Self::new(MAX_UNPROVEN)
    }
}

impl Lobby {
    /// Room for this many connections, and for one at least.
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(1), state: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, LobbyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in, and turns another out where there is no room.
    pub(crate) fn enter(self: Arc<Self>, peer: IpAddr) -> Visit {
        let (peer, turned_out) = (find_network(peer), CancellationToken::new());
        let mut state = self.lock_state();
        state.make_room(peer, self.max);
        let number = state.next;
        state.next += 1;
        state.waiting.push(WaitingConnection { number, peer, turned_out: turned_out.clone() });
        drop(state);
        Visit { lobby: self, number, turned_out }
    }
}

/// The network that a peer is counted as: an IPv6 host has as many addresses as it likes in its own (/64).
fn find_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl LobbyState {
    fn make_room(&mut self, peer: IpAddr, max: usize) {
        let max_per_peer = max.div_ceil(2);
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.waiting.iter().for_each(|one| *counts.entry(one.peer).or_default() += 1);
        let own = counts.get(&peer).is_some_and(|count| *count >= max_per_peer);
        let full = self.waiting.len() >= max;
        let greediest = counts.iter().max_by_key(|(_, count)| **count).map(|(peer, _)| *peer);
        let from = if own { Some(peer) } else { greediest.filter(|_| full) };
        let oldest = from.and_then(|from| self.waiting.iter().position(|one| one.peer == from));
        if let Some(at) = oldest {
            self.waiting.remove(at).turned_out.cancel();
        }
    }
}

impl Visit {
    /// Cancelled when the connection has to make room.
    pub(crate) fn turned_out(&self) -> CancellationToken {
        self.turned_out.clone()
    }

    /// The token was shown. Idempotent.
    pub(crate) fn leave(&self) {
        self.lobby.lock_state().waiting.retain(|one| one.number != self.number);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn who_only_connects_makes_room_oldest_first() {
        let lobby = Arc::new(Lobby::default());
        let max_per_peer = MAX_UNPROVEN / 2;
        let mut crowd: Vec<_> =
            (0..max_per_peer).map(|_| Arc::clone(&lobby).enter(peer(1))).collect();
        assert!(crowd.iter().all(|visit| !visit.turned_out.is_cancelled()));
        let one_more = Arc::clone(&lobby).enter(peer(1));
        assert!(crowd[0].turned_out.is_cancelled() && !crowd[1].turned_out.is_cancelled());
        assert!(!one_more.turned_out.is_cancelled());
        crowd.remove(1).leave();
        drop(Arc::clone(&lobby).enter(peer(1)));
        assert_eq!(lobby.lock_state().waiting.len(), max_per_peer - 1);
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let lobby = Arc::new(Lobby::default());
        let quiet = Arc::clone(&lobby).enter("2001:db8:0:2::1".parse().unwrap());
        let crowd: Vec<_> = (0..MAX_UNPROVEN as u16 * 2)
            .map(|at| Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, at, 1))
            .map(|address| Arc::clone(&lobby).enter(address.into()))
            .collect();
        assert!(!quiet.turned_out.is_cancelled());
        let left = crowd.iter().filter(|visit| !visit.turned_out.is_cancelled()).count();
        assert_eq!(left, MAX_UNPROVEN / 2);
        assert_eq!(find_network("::ffff:192.0.2.1".parse().unwrap()), IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn a_crowd_of_one_peer_does_not_turn_out_another() {
        let lobby = Arc::new(Lobby::default());
        let quiet = Arc::clone(&lobby).enter(peer(9));
        let _crowd: Vec<_> = (0..MAX_UNPROVEN as u32 * 3)
            .map(|at| Arc::clone(&lobby).enter(peer((at % 3) as u8)))
            .collect();
        assert!(!quiet.turned_out.is_cancelled());
        assert!(lobby.lock_state().waiting.len() <= MAX_UNPROVEN);
    }

    #[test]
    fn the_smallest_lobby_has_room_for_the_newest() {
        let lobby = Arc::new(Lobby::new(0));
        let [first, second] = [1, 2].map(|last| Arc::clone(&lobby).enter(peer(last)));
        assert!(first.turned_out.is_cancelled() && !second.turned_out.is_cancelled());
    }

    #[test]
    fn who_has_shown_the_token_is_never_turned_out() {
        let lobby = Arc::new(Lobby::default());
        let client = Arc::clone(&lobby).enter(peer(1));
        client.leave();
        let _crowd: Vec<_> = (0..700).map(|_| Arc::clone(&lobby).enter(peer(1))).collect();
        assert!(!client.turned_out.is_cancelled());
    }
}
