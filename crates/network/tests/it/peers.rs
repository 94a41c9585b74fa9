//! Peers on either side that are dead, never read or flood: each takes a bounded amount of memory, and other streams go
//! on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use stockade_agent::protocol::network::{FromHelper, STREAM_WINDOW_BYTES};
use stockade_network::ConnectionVerdict;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::helper::{Said, TestHelper, rule_for};
use crate::http::{hear_text, read_head};

/// More than the buffers of the kernel and of a stream together; what is beyond is held by nobody.
const BUFFERED_BYTES: usize = 32 * 1024 * 1024;
/// How often another stream is used while nothing moves on this one, before it is taken for full.
const QUIET_ROUNDS: usize = 50;
/// A stream beside the one that a test is about.
const QUIET: u32 = 3;
const CHUNK: [u8; 16 * 1024] = [b'x'; 16 * 1024];

/// A helper with two open streams, and the server's ends of both.
struct TwoStreams {
    helper: TestHelper,
    upstream: Option<TcpStream>,
    quiet: TcpStream,
    host: String,
    /// Credit of the first stream, and bytes that came on it.
    credit: usize,
    came: usize,
}

impl TwoStreams {
    async fn open() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let mut helper = TestHelper::start(&[rule_for(address)]).await;
        let mut ends = Vec::new();
        for stream in [1, QUIET] {
            helper.open(stream, "127.0.0.1", address.port());
            ends.push(server.accept().await.unwrap().0);
            helper.hear_until(&Said::Opened(stream)).await;
        }
        let (quiet, upstream) = (ends.pop().unwrap(), ends.pop());
        let (host, credit) = (address.to_string(), STREAM_WINDOW_BYTES as usize);
        Self { helper, upstream, quiet, host, credit, came: 0 }
    }

    /// Sends a request on the first stream; answers the server's end, which has read its head.
    async fn request(&mut self) -> TcpStream {
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.helper.say(&FromHelper::Data(1, request.as_bytes()));
        let mut upstream = self.upstream.take().unwrap();
        read_head(&mut upstream).await;
        upstream
    }

    /// Sends a byte each way on the other stream, and counts what is said of the first one meanwhile.
    async fn use_quiet(&mut self) {
        self.helper.say(&FromHelper::Data(QUIET, b"\x00"));
        assert_eq!(self.quiet.read_u8().await.unwrap(), 0);
        self.quiet.write_u8(1).await.unwrap();
        loop {
            let said = self.helper.hear().await.unwrap();
            if let Said::Credit(1, more) = said {
                self.credit += more as usize;
            } else if let Said::Data(1, data) = said {
                self.came += data.len();
            } else if let Said::Data(QUIET, data) = said {
                assert_eq!(data, [1]);
                return;
            }
        }
    }

    /// Sends as much as there is credit for, until there is none any more; answers how much that was.
    async fn fill(&mut self) -> usize {
        let (mut sent, mut quiet_rounds) = (0, 0);
        while quiet_rounds < QUIET_ROUNDS {
            quiet_rounds += 1;
            while self.credit >= CHUNK.len() {
                self.helper.say(&FromHelper::Data(1, &CHUNK));
                self.credit -= CHUNK.len();
                sent += CHUNK.len();
                quiet_rounds = 0;
            }
            assert!(
                sent < BUFFERED_BYTES,
                "{sent} bytes were taken from a program, and read by nobody"
            );
            self.use_quiet().await;
        }
        sent
    }
}

/// Writes without end; counts what was taken.
fn flood(mut upstream: TcpStream) -> (Arc<AtomicUsize>, JoinHandle<()>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let flood = tokio::spawn(async move {
        while let Ok(count) = upstream.write(&CHUNK).await {
            counted.fetch_add(count, Ordering::SeqCst);
        }
    });
    (taken, flood)
}

/// Waits until no more is taken; the other stream is used all the while.
async fn wait_until_full(streams: &mut TwoStreams, taken: &AtomicUsize) {
    let (mut before, mut quiet_rounds) = (0, 0);
    while quiet_rounds < QUIET_ROUNDS {
        quiet_rounds += 1;
        streams.use_quiet().await;
        let now = taken.load(Ordering::SeqCst);
        assert!(now < BUFFERED_BYTES, "{now} bytes were taken from a server, and read by nobody");
        if now != std::mem::replace(&mut before, now) {
            quiet_rounds = 0;
        }
    }
}

#[tokio::test]
async fn a_server_that_never_reads_takes_what_is_buffered_and_stalls_no_other_stream() {
    for begin in ["\0", "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999999999\r\n\r\n"] {
        let mut streams = TwoStreams::open().await;
        let begin = begin.replace("HOST", &streams.host);
        streams.helper.say(&FromHelper::Data(1, begin.as_bytes()));
        streams.credit -= begin.len();
        let sent = streams.fill().await;
        assert!(sent >= STREAM_WINDOW_BYTES as usize - begin.len() - CHUNK.len(), "{sent}");
        // Once it reads, all of it is there.
        let (TwoStreams { upstream, helper, .. }, mut read) = (streams, 0);
        let mut upstream = upstream.unwrap();
        if begin.len() > 1 {
            read_head(&mut upstream).await;
        } else {
            upstream.read_u8().await.unwrap();
        }
        let mut buffer = vec![0; 64 * 1024];
        while read < sent {
            let count = upstream.read(&mut buffer).await.unwrap();
            assert!(
                count > 0 && buffer[..count].iter().all(|byte| *byte == b'x'),
                "{read} of {sent}"
            );
            read += count;
        }
        // A program that dies meanwhile is told to the server.
        helper.say(&FromHelper::Reset(1));
        let ended = upstream.read(&mut buffer).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        helper.wait_for_records(1).await;
    }
}

#[tokio::test]
async fn a_program_that_never_reads_an_answer_is_sent_no_more_than_its_window() {
    let mut streams = TwoStreams::open().await;
    let mut upstream = streams.request().await;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    upstream.write_all(answer).await.unwrap();
    let (taken, flooding) = flood(upstream);
    wait_until_full(&mut streams, &taken).await;
    assert_eq!(streams.came, STREAM_WINDOW_BYTES as usize);
    // One that dies is told to the server, which stops.
    streams.helper.say(&FromHelper::Reset(1));
    flooding.await.unwrap();
    let record = streams.helper.wait_for_records(1).await.remove(0);
    assert_eq!(record.received, u64::from(STREAM_WINDOW_BYTES));
}

#[tokio::test]
async fn heads_and_chunks_without_end_are_bounded_on_both_sides() {
    // Of a request: refused long before the window is used twice.
    let mut streams = TwoStreams::open().await;
    let begin = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: ", streams.host);
    streams.helper.say(&FromHelper::Data(1, begin.as_bytes()));
    for _ in 0..STREAM_WINDOW_BYTES as usize / 2 / CHUNK.len() {
        streams.helper.say(&FromHelper::Data(1, &[b'x'; CHUNK.len()]));
    }
    let heard = hear_text(&mut streams.helper, "\r\n\r\n").await;
    assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
    streams.helper.wait_for_records(1).await;
    let mut rest = Vec::new();
    streams.upstream.unwrap().read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty(), "{} bytes", rest.len());
    // Of an answer.
    let mut streams = TwoStreams::open().await;
    let mut upstream = streams.request().await;
    upstream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await.unwrap();
    // No line ends in it.
    let (taken, flooding) = flood(upstream);
    flooding.await.unwrap();
    assert!(taken.load(Ordering::SeqCst) < BUFFERED_BYTES);
    let heard = hear_text(&mut streams.helper, "\n").await;
    assert!(heard.starts_with("HTTP/1.1 502 "), "{heard}");
}

#[tokio::test]
async fn a_server_that_dies_ends_its_own_stream_alone() {
    for (begin, part) in [
        ("\0", "half"),
        (
            "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        ),
    ] {
        let streams = TwoStreams::open().await;
        let begin = begin.replace("HOST", &streams.host);
        streams.helper.say(&FromHelper::Data(1, begin.as_bytes()));
        let TwoStreams { upstream, mut helper, mut quiet, .. } = streams;
        let mut upstream = upstream.unwrap();
        upstream.read_u8().await.unwrap();
        upstream.write_all(part.as_bytes()).await.unwrap();
        hear_text(&mut helper, "half").await;
        // Reset, not closed.
        set_socket_linger(&upstream, Some(Duration::ZERO)).unwrap();
        drop(upstream);
        while !matches!(helper.hear().await.unwrap(), Said::Reset(1) | Said::End(1)) {}
        let record = helper.wait_for_records(1).await.remove(0);
        assert!(matches!(record.verdict, ConnectionVerdict::Failed { .. }), "{record:?}");
        helper.say(&FromHelper::Data(QUIET, b"\x00"));
        assert_eq!(quiet.read_u8().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_program_that_dies_before_its_answer_is_told_to_the_server() {
    let mut streams = TwoStreams::open().await;
    let mut upstream = streams.request().await;
    streams.helper.say(&FromHelper::Reset(1));
    let mut rest = Vec::new();
    // It may be told by a reset.
    let _ = upstream.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");
    streams.helper.wait_for_records(1).await;
    streams.use_quiet().await;
}

/// Lets everything else run until nothing changes any more.
async fn wait_until_still(count: impl Fn() -> usize) {
    let (mut before, mut still) = (count(), 0);
    while still < 100 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let now = count();
        still = if now == std::mem::replace(&mut before, now) { still + 1 } else { 0 };
    }
}

#[tokio::test]
async fn for_a_helper_that_never_reads_a_bounded_amount_is_kept() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let mut helper = TestHelper::start(&[rule_for(address), "a.test".into()]).await;
    let mut floods = Vec::new();
    for stream in (1..).step_by(2).take(16) {
        helper.open(stream, "127.0.0.1", address.port());
        floods.push(flood(server.accept().await.unwrap().0));
        helper.hear_until(&Said::Opened(stream)).await;
    }
    let pipe = Arc::clone(&helper.pipe);
    let stopped = pipe.gate.write().await;
    // Sixteen windows are more than may wait, and so are the answers to as many questions.
    wait_until_still(|| floods.iter().map(|(taken, _)| taken.load(Ordering::SeqCst)).sum()).await;
    let asked = 50_000;
    for query in 0..asked {
        helper.say(&FromHelper::Lookup(query, "a.test"));
    }
    wait_until_still(|| pipe.read_count.load(Ordering::SeqCst)).await;
    assert!(pipe.read_count.load(Ordering::SeqCst) < asked as usize, "every question was read");
    drop(stopped);
    // It reads on: every question is answered.
    loop {
        if let Some(Said::Found(query, ports)) = helper.hear().await {
            assert_eq!(ports.len(), 2, "{ports:?}");
            if query == asked - 1 {
                break;
            }
        }
    }
    let longest = pipe.longest_write.load(Ordering::SeqCst);
    assert!(longest < 1024 * 1024, "{longest} bytes waited");
    floods.iter().for_each(|(_, flooding)| flooding.abort());
}
