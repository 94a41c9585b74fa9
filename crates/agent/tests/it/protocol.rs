//! The encoding: what is put in comes out, and nothing else does.
use proptest::prelude::*;
use stockade_agent::protocol::{
    End, FileEntry, FileErrorKind, FileKind, FileRequest, FromAgent, HEADER_BYTES, Hello, Limit,
    MAX_FRAME, Size, Spawn, StartKind, Stream, ToAgent, WatchEvent, WatchKind, put_output,
    split_frame,
};

fn body(frame: &[u8]) -> &[u8] {
    let (body, rest) = split_frame(frame).unwrap().unwrap();
    assert!(rest.is_empty());
    body
}

fn to_agent_survives(message: &ToAgent<'_>) {
    let mut frame = Vec::new();
    message.encode(&mut frame).unwrap();
    assert_eq!(&ToAgent::decode(body(&frame)).unwrap(), message);
}

fn from_agent_survives(message: &FromAgent<'_>) {
    let mut frame = Vec::new();
    message.encode(&mut frame).unwrap();
    assert_eq!(&FromAgent::decode(body(&frame)).unwrap(), message);
}

fn requests() -> Vec<FileRequest<'static>> {
    vec![
        FileRequest::Stat("a"),
        FileRequest::Read("a", u64::MAX, 7),
        FileRequest::Write("a", true, b"\0\xff"),
        FileRequest::MakeDir("a"),
        FileRequest::SetMode("a", 0o755),
        FileRequest::Rename("a", "b"),
        FileRequest::List("a"),
        FileRequest::Remove("a"),
        FileRequest::Replace("a", "b"),
        FileRequest::TarOut("a"),
        FileRequest::TarIn("a"),
        FileRequest::Watch("a"),
    ]
}

#[test]
fn every_message_to_the_agent_survives() {
    let spawn = Spawn {
        argv: vec!["sh", "-c", "ä"],
        env: vec![("A", "1"), ("B", "")],
        dir: "/x",
        user: Some((1, 2)),
        stdin: true,
        terminal: Some(Size { rows: 1, cols: 2 }),
        limits: Limit::ALL.iter().map(|limit| (*limit, u64::MAX)).collect(),
    };
    to_agent_survives(&ToAgent::Hello(Hello { version: 1, max_frame: 9 }));
    to_agent_survives(&ToAgent::Spawn(1, spawn));
    to_agent_survives(&ToAgent::Stdin(1, b"\0\xff"));
    to_agent_survives(&ToAgent::StdinEnd(u32::MAX));
    for stream in Stream::ALL {
        to_agent_survives(&ToAgent::Credit(1, *stream, 5));
    }
    to_agent_survives(&ToAgent::Signal(1, 9));
    to_agent_survives(&ToAgent::Kill(1));
    to_agent_survives(&ToAgent::DiscardOutput(1));
    to_agent_survives(&ToAgent::Keep(7, vec![1, 3]));
    to_agent_survives(&ToAgent::Resize(1, Size { rows: 1, cols: u16::MAX }));
    for request in requests() {
        to_agent_survives(&ToAgent::File(3, request));
    }
}

#[test]
fn every_message_from_the_agent_survives() {
    from_agent_survives(&FromAgent::Hello(Hello { version: 1, max_frame: 9 }));
    from_agent_survives(&FromAgent::Started(1, 2));
    for kind in StartKind::ALL {
        from_agent_survives(&FromAgent::StartFailed(1, *kind, -2, "why"));
    }
    from_agent_survives(&FromAgent::Output(1, Stream::Stderr, b"\0\xff"));
    for end in [End::Code(-1), End::Signal(9), End::Lost] {
        from_agent_survives(&FromAgent::Exited {
            channel: 1,
            end,
            cpu_us: 2,
            peak_kib: 3,
            unsent: [4, 5],
        });
    }
    from_agent_survives(&FromAgent::Ended(1));
    from_agent_survives(&FromAgent::KeeperLost(1));
    from_agent_survives(&FromAgent::StdinCredit(1, 2));
    from_agent_survives(&FromAgent::FileDone(1));
    for kind in FileKind::ALL {
        let entry = FileEntry { kind: *kind, mode: 0o644, size: 1, name: "n" };
        from_agent_survives(&FromAgent::FileEntry(1, entry));
    }
    from_agent_survives(&FromAgent::FileData(1, b"data"));
    for kind in FileErrorKind::ALL {
        from_agent_survives(&FromAgent::FileError(1, *kind, 2, "path", "why"));
    }
}

#[test]
fn records_survive() {
    for kind in WatchKind::ALL {
        let mut record = Vec::new();
        let event = WatchEvent { kind: *kind, name: "name" };
        event.record(&mut record).unwrap();
        assert_eq!(WatchEvent::from_record(body(&record)).unwrap(), event);
    }
}

#[test]
fn output_written_in_place_is_the_same_frame() {
    let (mut whole, mut in_place) = (vec![9], vec![9]);
    FromAgent::Output(7, Stream::Stderr, b"data").encode(&mut whole).unwrap();
    let put = |out: &mut Vec<u8>| {
        out.extend_from_slice(b"data");
        Ok::<_, ()>(4)
    };
    assert_eq!(put_output(&mut in_place, 7, Stream::Stderr, put), Ok(4));
    assert_eq!(whole, in_place);
    assert_eq!(put_output(&mut in_place, 7, Stream::Stderr, |_| Err(3)), Err(3));
    assert_eq!(put_output(&mut in_place, 7, Stream::Stderr, |_| Ok::<_, ()>(0)), Ok(0));
    assert_eq!(whole, in_place);
}

#[test]
fn a_message_that_does_not_fit_leaves_nothing_behind() {
    let mut out = vec![1, 2, 3];
    assert!(ToAgent::Stdin(1, &vec![0; MAX_FRAME]).encode(&mut out).is_err());
    assert_eq!(out, [1, 2, 3]);
    assert!(split_frame(&(MAX_FRAME as u32 + 1).to_le_bytes()).is_err());
    assert_eq!(split_frame(&[1, 0, 0]), Ok(None));
    assert_eq!(split_frame(&[1, 0, 0, 0]), Ok(None));
}

#[test]
fn text_with_a_zero_byte_or_bad_utf8_is_refused() {
    for bad in [&b"a\0b"[..], b"\xff"] {
        let mut bytes = vec![9, 1, 0, 0, 0, 1];
        bytes.extend_from_slice(&(bad.len() as u32).to_le_bytes());
        bytes.extend_from_slice(bad);
        assert!(ToAgent::decode(&bytes).is_err());
    }
}

/// Bodies that begin like messages, so that decoding gets past the first byte.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    // Mostly small numbers: those make lengths and tags that fit.
    let small = |byte: u8| if byte < 200 { byte % 4 } else { byte };
    (0u8..16, prop::collection::vec(any::<u8>(), 0..120)).prop_map(move |(tag, rest)| {
        std::iter::once(tag).chain(rest.into_iter().map(small)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn what_decodes_encodes_back_to_the_same_bytes(bytes in bodies()) {
        let mut frame = Vec::new();
        if let Ok(message) = ToAgent::decode(&bytes) {
            message.encode(&mut frame).unwrap();
            prop_assert_eq!(&frame[HEADER_BYTES..], &bytes[..]);
        }
        frame.clear();
        if let Ok(message) = FromAgent::decode(&bytes) {
            message.encode(&mut frame).unwrap();
            prop_assert_eq!(&frame[HEADER_BYTES..], &bytes[..]);
        }
        let _ = FileEntry::from_record(&bytes);
        let _ = WatchEvent::from_record(&bytes);
    }

    #[test]
    fn a_message_cut_short_or_with_something_added_is_refused(at in 0usize..60) {
        for request in requests() {
            let mut frame = Vec::new();
            ToAgent::File(3, request).encode(&mut frame).unwrap();
            let body = &frame[HEADER_BYTES..];
            if at < body.len() {
                prop_assert!(ToAgent::decode(&body[..at]).is_err());
            }
            prop_assert!(ToAgent::decode(&[body, &[0]].concat()).is_err());
        }
    }
}
