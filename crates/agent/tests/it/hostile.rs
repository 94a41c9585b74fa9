//! Both halves against a peer that does not keep to the protocol.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as HostStream;
use std::time::Duration;

use crate::common::{Agent, TEST_TIMEOUT, path, read_to_end, test};
use bytes::Bytes;
use stockade_agent::client::AgentClient;
use stockade_agent::protocol::{
    End, FileEntry, FileKind, FileRequest, FromAgent, Hello, Limit, MAX_FRAME, PROTOCOL_VERSION,
    Size, Spawn, Stream, ToAgent, WINDOW_BYTES,
};
use stockade_core::{Command, ErrorCode, ExitStatus, Process, Stdin};
use tokio::io::AsyncWriteExt;

const VALID_HELLO: Hello = Hello { version: PROTOCOL_VERSION, max_frame: MAX_FRAME as u32 };

/// Always the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most)).map(|_| self.next() as u8).collect()
    }
}

fn frame(message: &ToAgent<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    bytes
}

fn answer(message: &FromAgent<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    bytes
}

/// A message that is valid by itself. Paths are such that no change of one byte makes them name
/// anything of the host's, and none of the requests changes files.
fn some_message(numbers: &mut Numbers, channel: u32) -> Vec<u8> {
    let spawn = Spawn {
        argv: vec!["cat", "qqqq"],
        env: vec![],
        dir: "",
        user: None,
        stdin: numbers.below(2) == 0,
        terminal: (numbers.below(2) == 0).then_some(Size { rows: 1, cols: 1 }),
        limits: vec![(Limit::CoreSize, 0)],
    };
    frame(&match numbers.below(11) {
        0 => ToAgent::Spawn(channel, spawn),
        1 => ToAgent::Stdin(channel, &[7; 100]),
        2 => ToAgent::StdinEnd(channel),
        3 => ToAgent::Credit(channel, Stream::Stdout, numbers.below(600) as u32),
        4 => ToAgent::Signal(channel, numbers.below(66) as u8),
        5 => ToAgent::Kill(channel),
        6 => ToAgent::Resize(channel, Size { rows: 1, cols: 1 }),
        7 => ToAgent::File(channel, FileRequest::List("qqqq")),
        8 => ToAgent::DiscardOutput(channel),
        9 => ToAgent::File(channel, FileRequest::Watch("qqqq")),
        _ => ToAgent::File(channel, FileRequest::Read("qqqq", 0, 100)),
    })
}

/// Feeds bytes to a real agent and waits for its end, which must be an exit of its own.
fn exit_code_after(bytes: &[u8]) -> i32 {
    let (mut agent, mut pipe) = Agent::start();
    pipe.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    pipe.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut answers = pipe.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut std::io::sink());
    });
    // It may end before it has read everything.
    let _ = pipe.write_all(bytes);
    let _ = pipe.shutdown(std::net::Shutdown::Write);
    let code = agent.wait().code().expect("a signal ended the agent");
    reader.join().unwrap();
    code
}

#[test]
fn the_agent_ends_by_itself_whatever_it_is_told() {
    for seed in 1..=60 {
        let mut numbers = Numbers::new(seed);
        let mut bytes = frame(&ToAgent::Hello(VALID_HELLO));
        for channel in 1..=numbers.below(30) as u32 {
            let mut message = some_message(&mut numbers, channel);
            if numbers.below(8) == 0 {
                let at = numbers.below(message.len());
                message[at] = numbers.next() as u8;
            }
            bytes.extend(message);
        }
        bytes.extend(numbers.bytes(50));
        let code = exit_code_after(&bytes);
        assert!(code == 0 || code == 70, "seed {seed}: {code}");
    }
}

#[test]
fn the_agent_refuses_what_breaks_the_protocol() {
    let hello = frame(&ToAgent::Hello(VALID_HELLO));
    let spawn = Spawn {
        argv: vec!["sleep", "1000"],
        env: vec![],
        dir: "",
        user: None,
        stdin: true,
        terminal: None,
        limits: vec![],
    };
    let spawned = frame(&ToAgent::Spawn(5, spawn));
    let after = |more: &[u8]| [hello.as_slice(), &spawned, more].concat();
    let other_version = ToAgent::Hello(Hello { version: PROTOCOL_VERSION + 1, ..VALID_HELLO });
    let much = frame(&ToAgent::Stdin(5, &[0; 200_000]));
    let cases = [
        ("no hello", spawned.clone()),
        ("another version", frame(&other_version)),
        ("hello twice", [hello.as_slice(), &hello].concat()),
        ("a channel twice", after(&spawned)),
        ("a channel backwards", after(&frame(&ToAgent::File(4, FileRequest::Stat("qqqq"))))),
        ("a channel nobody opened", after(&frame(&ToAgent::Kill(6)))),
        ("more input than there is credit for", after(&[much.as_slice(), &much].concat())),
        ("more credit than there is", after(&frame(&ToAgent::Credit(5, Stream::Stdout, 1)))),
        ("no such signal", after(&frame(&ToAgent::Signal(5, 65)))),
        ("input after its end", {
            let end = frame(&ToAgent::StdinEnd(5));
            after(&[end.as_slice(), &frame(&ToAgent::Stdin(5, b"x"))].concat())
        }),
        ("an oversize frame", after(&[0xff; 4])),
        ("an unknown tag", after(&[1, 0, 0, 0, 99])),
    ];
    for (what, bytes) in cases {
        assert_eq!(exit_code_after(&bytes), 70, "{what}");
    }
    assert_eq!(exit_code_after(&after(&[])), 0);
}

#[test]
fn the_agent_answers_before_it_ends() {
    let (mut agent, mut pipe) = Agent::start();
    pipe.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    pipe.write_all(&frame(&ToAgent::Hello(VALID_HELLO))).unwrap();
    pipe.write_all(&frame(&ToAgent::File(1, FileRequest::Stat("qqqq")))).unwrap();
    let mut length = [0; 4];
    for _ in 0..2 {
        pipe.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        pipe.read_exact(&mut body).unwrap();
        FromAgent::decode(&body).unwrap();
    }
    drop(pipe);
    assert_eq!(agent.wait().code(), Some(0));
}

/// A client whose agent is the test itself. The first channel is a program, the second a `stat`, the
/// third a `read` of 10 bytes.
async fn facing(bytes: Vec<u8>) -> (Process, Vec<ErrorCode>, String) {
    let (ours, theirs) = HostStream::pair().unwrap();
    for end in [&ours, &theirs] {
        end.set_nonblocking(true).unwrap();
    }
    let mut peer = tokio::net::UnixStream::from_std(theirs).unwrap();
    let socket = tokio::net::UnixStream::from_std(ours).unwrap();
    peer.write_all(&answer(&FromAgent::Hello(VALID_HELLO))).await.unwrap();
    let client = AgentClient::connect(socket, Duration::from_secs(10)).await.unwrap();
    let command = Command { stdin: Stdin::Stream, ..Command::program(["x"]) };
    let process = client.spawn(&command, &[]).await.unwrap();
    let (at, files) = (path("x"), client.files());
    let send = async {
        // Both requests are sent by the time this runs: the branches are polled in order.
        tokio::task::yield_now().await;
        let _ = peer.write_all(&bytes).await;
        let _ = peer.shutdown().await;
        client.closed().await
    };
    let (stat, read, why) = tokio::join!(biased; files.stat(&at), files.read(&at, 0, 10), send);
    let codes = [stat.err(), read.err()].into_iter().flatten().map(|error| error.code());
    (process, codes.collect(), why)
}

#[test]
fn the_client_closes_on_the_first_thing_that_does_not_fit() {
    test(async {
        let exited = |code| FromAgent::Exited {
            channel: 1,
            end: End::Code(code),
            cpu_us: 0,
            peak_kib: 0,
            unsent: [0; 2],
        };
        let entry = FileEntry { kind: FileKind::File, mode: 0, size: 0, name: "x" };
        let piece = vec![0; 100_000];
        let flood: Vec<_> =
            (0..3).flat_map(|_| answer(&FromAgent::Output(1, Stream::Stdout, &piece))).collect();
        let crumbs: Vec<_> = (0..=WINDOW_BYTES / 512)
            .flat_map(|_| answer(&FromAgent::Output(1, Stream::Stdout, b"x")))
            .collect();
        let twice = |message: &FromAgent<'_>| [answer(message), answer(message)].concat();
        let cases = [
            ("unknown channel", answer(&FromAgent::Ended(9))),
            ("hello twice", answer(&FromAgent::Hello(VALID_HELLO))),
            ("output beyond credit", flood),
            ("crumbs beyond credit", crumbs),
            ("empty output", answer(&FromAgent::Output(1, Stream::Stdout, b""))),
            ("two exits", twice(&exited(0))),
            ("two ends", twice(&FromAgent::Ended(1))),
            ("output after the exit", {
                [answer(&exited(0)), answer(&FromAgent::Output(1, Stream::Stdout, b"x"))].concat()
            }),
            ("an exit code there is not", answer(&exited(256))),
            ("an exit of a request", {
                answer(&FromAgent::Exited {
                    channel: 2,
                    end: End::Lost,
                    cpu_us: 0,
                    peak_kib: 0,
                    unsent: [0; 2],
                })
            }),
            ("an answer to a program", answer(&FromAgent::FileDone(1))),
            ("output of a request", answer(&FromAgent::Output(2, Stream::Stdout, b"x"))),
            ("an entry for data", answer(&FromAgent::FileEntry(3, entry))),
            ("more data than asked for", answer(&FromAgent::FileData(3, &[0; 11]))),
            ("an answer after the answer", twice(&FromAgent::FileData(3, &[0; 1]))),
            ("credit nobody gave", answer(&FromAgent::StdinCredit(1, 1))),
            ("an oversize frame", vec![0xff; 4]),
            ("an unknown tag", vec![1, 0, 0, 0, 99]),
            ("bytes left over", vec![6, 0, 0, 0, 6, 1, 0, 0, 0, 0]),
        ];
        for (what, bytes) in cases {
            let (mut process, codes, why) = facing(bytes).await;
            assert!(why.contains("broke the protocol"), "{what}: {why}");
            assert!(codes.contains(&ErrorCode::Protocol), "{what}: {codes:?}");
            let status = read_to_end(&mut process).await.exit.status;
            assert!(
                matches!(status, ExitStatus::Lost(_) | ExitStatus::Exited(0)),
                "{what}: {status:?}"
            );
            process.control.kill().await.unwrap();
            process.control.write_stdin(Bytes::from_static(b"x")).await.unwrap();
        }
    });
}

#[test]
fn the_client_survives_any_bytes() {
    test(async {
        for seed in 1..=300 {
            let mut numbers = Numbers::new(seed);
            let mut bytes = Vec::new();
            for _ in 0..numbers.below(6) {
                let channel = numbers.below(4) as u32;
                let mut message = answer(&match numbers.below(6) {
                    0 => FromAgent::Started(channel, 1),
                    1 => FromAgent::Output(channel, Stream::Stderr, b"hello"),
                    2 => FromAgent::FileDone(channel),
                    3 => FromAgent::FileData(channel, b"12345"),
                    4 => FromAgent::Ended(channel),
                    _ => FromAgent::StdinCredit(channel, 0),
                });
                if numbers.below(3) == 0 {
                    let at = numbers.below(message.len());
                    message[at] = numbers.next() as u8;
                }
                bytes.extend(message);
            }
            bytes.extend(numbers.bytes(40));
            let (mut process, _, _) = facing(bytes).await;
            read_to_end(&mut process).await;
        }
    });
}

#[test]
fn an_agent_that_says_nothing_is_too_slow() {
    test(async {
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let error = AgentClient::connect(ours, Duration::from_millis(50)).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::TooSlow);
    });
}

#[test]
fn an_agent_of_another_version_is_refused() {
    test(async {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let hello =
            answer(&FromAgent::Hello(Hello { version: PROTOCOL_VERSION + 1, ..VALID_HELLO }));
        theirs.write_all(&hello).await.unwrap();
        let error = AgentClient::connect(ours, Duration::from_secs(10)).await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::Protocol);
        assert!(
            error.to_string().contains(&format!("version {}", PROTOCOL_VERSION + 1)),
            "{error}"
        );
    });
}

/// An agent that has said hello and then the messages of `said`, and is silent from then on.
async fn deaf(said: &[FromAgent<'_>]) -> (AgentClient, tokio::io::DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(ours);
    theirs.write_all(&answer(&FromAgent::Hello(VALID_HELLO))).await.unwrap();
    let client = AgentClient::connect_halves(reader, writer, TEST_TIMEOUT).await.unwrap();
    for message in said {
        theirs.write_all(&answer(message)).await.unwrap();
    }
    (client, theirs)
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_answer_holds_up_no_request_for_ever() {
    let (client, _held) = deaf(&[]).await;
    let files = client.files();
    let code = |error: stockade_core::Error| error.code();
    assert_eq!(files.stat(&path("x")).await.map_err(code), Err(ErrorCode::TooSlow));
    assert_eq!(files.list(&path("x")).await.map_err(code), Err(ErrorCode::TooSlow));
    assert_eq!(files.read(&path("x"), 0, 10).await.map_err(code), Err(ErrorCode::TooSlow));
    let data = Bytes::from_static(b"x");
    assert_eq!(files.write(&path("x"), data, false).await.map_err(code), Err(ErrorCode::TooSlow));
    let mut archive = client.tar_out(&path("x")).await.unwrap();
    assert_eq!(archive.next().await.map_err(code), Err(ErrorCode::TooSlow));
    let Process { control, .. } = client.spawn(&Command::program(["x"]), &[]).await.unwrap();
    assert_eq!(control.kill().await.map_err(code), Err(ErrorCode::TooSlow));
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_drips_has_one_deadline() {
    let (client, mut theirs) = deaf(&[]).await;
    let (directory, piece) = (path("x"), answer(&FromAgent::Output(1, Stream::Stdout, b"x")));
    let drip = async {
        loop {
            tokio::time::sleep(Duration::from_secs(30)).await;
            theirs.write_all(&piece).await.unwrap();
        }
    };
    let listed = tokio::select! {
        listed = client.files().list(&directory) => listed,
        never = drip => never,
    };
    // A record of so many bytes as the dripped ones say is waited for, or is none: either way it ends.
    assert!(matches!(listed.unwrap_err().code(), ErrorCode::TooSlow | ErrorCode::Protocol));
}
