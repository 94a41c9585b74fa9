//! What a writer's death leaves, and what no writer's death explains.

use std::collections::BTreeMap;
use std::fs;

use stockade_core::ErrorCode;
use stockade_engine::{Damage, Filter, Journal, StateDir};
use tempfile::TempDir;

use super::{
    append_to, broken, clean_count, files, journal_at, options, place, refused, write_files,
};

/// A journal in which a writer died between the record and the head: the head is put back.
fn with_stale_head(place: &TempDir, segment_bytes: u64) -> Journal {
    let journal = journal_at(place.path(), segment_bytes);
    journal.append(refused("first")).unwrap();
    let head = fs::read(place.path().join("journal/head")).unwrap();
    journal.append(refused("second")).unwrap();
    fs::write(place.path().join("journal/head"), head).unwrap();
    journal
}

#[test]
fn one_whole_record_beyond_the_head_is_taken_over() {
    let place = place();
    let journal = with_stale_head(&place, 1 << 20);
    assert_eq!(clean_count(&journal), 2);
    assert_eq!(journal.records(Filter::default()).unwrap().count(), 2);
    assert_eq!(journal.append(refused("third")).unwrap().seq, 3);
    assert_eq!(clean_count(&journal), 3);
}

#[test]
fn a_torn_line_beyond_the_head_is_no_tampering_and_is_cut_off() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(refused("first")).unwrap();
    let current = place.path().join("journal/journal.jsonl");
    let whole = fs::read(&current).unwrap();
    for length in 1..whole.len() {
        append_to(&current, &whole[..length]);
        assert_eq!(clean_count(&journal), 1, "{length}");
        fs::write(&current, &whole).unwrap();
    }
    append_to(&current, &whole[..whole.len() - 1]);
    assert_eq!(journal.append(refused("second")).unwrap().seq, 2);
    assert_eq!(clean_count(&journal), 2);
}

#[test]
fn foreign_lines_beyond_the_head_stop_writers_and_are_reported() {
    let place = place();
    let journal = with_stale_head(&place, 1 << 20);
    let current = place.path().join("journal/journal.jsonl");
    append_to(&current, b"more\n");
    let error = journal.append(refused("third")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::JournalUnavailable);
    assert!(error.hint().unwrap().contains("audit verify"), "{error}");
    let found = broken(&place.path().join("journal"));
    assert_eq!((found.line, found.seq), (2, 2), "{found}");
}

#[test]
fn a_journal_that_was_cut_stops_writers() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(refused("x")).unwrap();
    fs::write(place.path().join("journal/journal.jsonl"), b"").unwrap();
    let error = journal.append(refused("y")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::JournalUnavailable);
    assert!(error.message().contains("truncated"), "{error}");
    fs::remove_file(place.path().join("journal/journal.jsonl")).unwrap();
    assert!(journal.append(refused("y")).unwrap_err().message().contains("removed"));
}

#[test]
fn a_journal_whose_head_was_removed_is_broken_for_readers_and_writers() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(refused("x")).unwrap();
    fs::remove_file(place.path().join("journal/head")).unwrap();
    assert!(journal.append(refused("y")).is_err());
    let error = Journal::open(&StateDir::open(place.path()).unwrap(), options(1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::JournalUnavailable);
    let found = broken(&place.path().join("journal"));
    assert_eq!((found.segment.as_str(), found.what), ("head", Damage::Removed));
}

/// The states on disk that a rotation goes through, each as a writer's death would leave it.
fn rotation_states() -> Vec<BTreeMap<String, Vec<u8>>> {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    journal.append(refused("first")).unwrap();
    let dir = place.path().join("journal");
    let before = files(&dir);
    journal_at(place.path(), 1).append(refused("second")).unwrap();
    let after = files(&dir);
    let old_head = String::from_utf8(before["head"].clone()).unwrap();
    let offset = old_head.find(" offset ").unwrap() + 8;
    let mut head = old_head.replace("segment 0000000001", "segment 0000000002");
    head.replace_range(offset..offset + 20, &"0".repeat(20));
    let state = |names: &[(&str, &[u8])]| -> BTreeMap<String, Vec<u8>> {
        let head = ("head".to_owned(), head.clone().into_bytes());
        let named = names.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec()));
        named.chain([head]).collect()
    };
    let (old, new) = (&before["journal.jsonl"], &after["journal.jsonl"]);
    let rotated = new.split_inclusive(|byte| *byte == b'\n').next().unwrap();
    let (archive, current) = ("journal-000001.jsonl", "journal.jsonl");
    vec![
        state(&[(current, old)]),
        state(&[(archive, old)]),
        state(&[(archive, old), (current, b"")]),
        state(&[(archive, old), (current, &rotated[..rotated.len() / 2])]),
        state(&[(archive, old), (current, rotated)]),
    ]
}

#[test]
fn a_rotation_that_was_interrupted_anywhere_is_clean_and_goes_on() {
    for (number, state) in rotation_states().iter().enumerate() {
        let place = place();
        let journal = journal_at(place.path(), 1 << 20);
        write_files(&place.path().join("journal"), state);
        let expected = if number == 4 { 2 } else { 1 };
        assert_eq!(clean_count(&journal), expected, "state {number}");
        assert_eq!(journal.append(refused("third")).unwrap().seq, 3, "state {number}");
        assert_eq!(clean_count(&journal), 3, "state {number}");
        assert!(place.path().join("journal/journal-000001.jsonl").exists());
    }
}
