//! The near end against a peer that floods, drips, does not read or does not answer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_core::ProcessControl;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio::time::Instant;

use super::*;
use crate::peer::frame::Frame;
use crate::peer::protocol::PeerEvent;

/// What carries the connection, which says when it is gone.
struct TestCarrier(Arc<AtomicBool>);

impl Drop for TestCarrier {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct TestWire {
    link: Arc<PeerLink>,
    pipe: AgentPipe,
    peer: DuplexStream,
    torn_down: Arc<AtomicBool>,
}

fn test_wire() -> TestWire {
    let (ours, peer) = duplex(4096);
    let (output, input) = tokio::io::split(ours);
    let torn_down = Arc::<AtomicBool>::default();
    let connection = PeerConnection {
        input: Box::new(input),
        output: Box::new(BufReader::new(output)),
        carrier: Box::new(TestCarrier(Arc::clone(&torn_down))),
    };
    let backend = BackendName::literal("far");
    let called = Peer { backend, called: "the peer".into(), capacity: None };
    let (link, pipe) = PeerLink::new(called, connection);
    TestWire { link, pipe, peer, torn_down }
}

fn encode_tell(tell: &PeerEvent) -> Bytes {
    Frame::Word(serde_json::to_vec(tell).unwrap().into()).encode().unwrap()
}

/// A program that takes for ever to end.
#[derive(Default)]
struct Slow(AtomicUsize);

#[async_trait]
impl ProcessControl for Slow {
    async fn kill(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_flood_of_kills_starts_one_task() {
    let TestWire { link, pipe: _pipe, mut peer, .. } = test_wire();
    let slow = Arc::new(Slow::default());
    let control: Arc<dyn ProcessControl> = slow.clone();
    link.expect_execution(7);
    link.attach_control(7, &control);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let kill = encode_tell(&PeerEvent::Kill { execution: 7 });
    for _ in 0..10_000 {
        peer.write_all(&kill).await.unwrap();
    }
    // Heard after all that was said before it.
    peer.write_all(&encode_tell(&PeerEvent::Done { conflicts: Vec::new() })).await.unwrap();
    link.take_turn().await.ask("pull", &RemoteRequest::Pull, None).await.map(drop).unwrap();
    assert!(tasks() <= before + 1, "{} tasks", tasks());
    assert!(slow.0.load(Ordering::Relaxed) <= 1);
    // The same where it is not known yet whom to tell.
    link.expect_execution(8);
    for _ in 0..1000 {
        peer.write_all(&encode_tell(&PeerEvent::Kill { execution: 8 })).await.unwrap();
    }
    peer.write_all(&encode_tell(&PeerEvent::Done { conflicts: Vec::new() })).await.unwrap();
    link.take_turn().await.ask("pull", &RemoteRequest::Pull, None).await.map(drop).unwrap();
    link.attach_control(8, &control);
    assert!(tasks() <= before + 2, "{} tasks", tasks());
}

/// What it took to give up, which takes everything with it.
async fn given_up(wire: TestWire, speak: impl AsyncFnOnce(DuplexStream)) -> Duration {
    let TestWire { link, mut pipe, peer, torn_down } = wire;
    let begun = Instant::now();
    let asking = async {
        let turn = link.take_turn().await;
        turn.ask("pull", &RemoteRequest::Pull, None).await.map(drop)
    };
    let error = tokio::select! {
        asked = asking => asked.unwrap_err(),
        () = speak(peer) => panic!("the peer ended first"),
    };
    assert_eq!(error.code(), ErrorCode::TooSlow, "{error}");
    let took = begun.elapsed();
    assert!(torn_down.load(Ordering::Relaxed));
    assert_eq!(pipe.read(&mut [0; 16]).await.unwrap(), 0, "the agent's pipe has ended");
    let again = link.take_turn().await.ask("pull", &RemoteRequest::Pull, None).await.unwrap_err();
    assert_eq!((again.code(), begun.elapsed()), (ErrorCode::Unavailable, took));
    took
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_is_given_up() {
    let deaf = async |_held: DuplexStream| std::future::pending().await;
    assert_eq!(given_up(test_wire(), deaf).await, Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_only_says_that_it_is_there_is_given_up() {
    let beats = async |mut peer: DuplexStream| {
        let beat = Frame::Beat.encode().unwrap();
        loop {
            peer.write_all(&beat).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    assert_eq!(given_up(test_wire(), beats).await, Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn changes_that_drip_have_one_deadline() {
    let place = tempfile::tempdir().unwrap();
    let tree = Tree::open(place.path(), Side::Near, 1 << 20).unwrap();
    let tree: WorkspaceTree = Arc::new(Mutex::new(tree));
    let TestWire { link, pipe: _pipe, mut peer, .. } = test_wire();
    let drip = async {
        for _ in 0..20 {
            // A piece well before any piece is late, and never the last one.
            let piece = Frame::Tree(Bytes::from_static(b"x")).encode().unwrap();
            peer.write_all(&piece).await.unwrap();
            tokio::time::advance(Duration::from_secs(20)).await;
        }
        std::future::pending().await
    };
    let asked = tokio::select! {
        asked = async { link.take_turn().await.ask("pull", &RemoteRequest::Pull, Some(&tree)).await } => asked,
        never = drip => never,
    };
    assert_eq!(asked.map(drop).unwrap_err().code(), ErrorCode::TooSlow);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_hung_up_on() {
    let TestWire { link, mut pipe, peer: _held, torn_down } = test_wire();
    let begun = Instant::now();
    while link.send_request(&RemoteRequest::Push).await.is_ok() {}
    assert!(begun.elapsed() <= Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(pipe.read(&mut [0; 16]).await.unwrap(), 0, "the agent's pipe has ended");
    assert!(torn_down.load(Ordering::Relaxed));
}

#[tokio::test]
async fn what_a_peer_says_went_wrong_is_clean_and_short() {
    let TestWire { link, pipe: _pipe, mut peer, .. } = test_wire();
    let evil = format!("a\x1b]0;owned\x07{}", "x".repeat(50_000));
    let failure =
        RemoteFailure { code: "denied".into(), message: evil.clone(), remedy: Some(evil.clone()) };
    peer.write_all(&encode_tell(&PeerEvent::Failed(failure))).await.unwrap();
    let asked = link.take_turn().await.ask("pull", &RemoteRequest::Pull, None).await;
    let error = asked.map(drop).unwrap_err();
    for text in [error.message(), error.hint().unwrap()] {
        assert!(!text.chars().any(stockade_core::is_unsafe_to_show), "{text:?}");
        assert!(text.chars().count() < 1100, "{}", text.len());
    }
}
