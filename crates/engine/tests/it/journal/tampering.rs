//! Every kind of tampering is found, and found where it is.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use stockade_engine::{Break, Damage};

use super::{broken, files, journal_at, place, started, stopped, write_files};

/// A journal of five segments, as files.
fn sample() -> &'static BTreeMap<String, Vec<u8>> {
    static SAMPLE_FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    SAMPLE_FILES.get_or_init(|| {
        let place = place();
        let journal = journal_at(place.path(), 1700);
        for job in ["a", "b", "c", "d", "e"] {
            journal.append(started(job)).unwrap();
            journal.append(stopped(job)).unwrap();
        }
        assert!(journal.verify().unwrap().is_clean());
        let files = files(&place.path().join("journal"));
        assert_eq!(files.len(), 6, "four finished segments, the current one and the head");
        files
    })
}

fn lines(name: &str) -> Vec<Vec<u8>> {
    sample()[name].split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Every line of the sample, in order.
fn all_lines() -> Vec<(String, usize)> {
    let segments = segments();
    segments.iter().flat_map(|name| (0..lines(name).len()).map(|at| (name.clone(), at))).collect()
}

fn segments() -> Vec<String> {
    // `journal-00000n.jsonl` sorts before `journal.jsonl`.
    sample().keys().filter(|name| name.as_str() != "head").cloned().collect()
}

fn with_lines(files: &mut BTreeMap<String, Vec<u8>>, name: &str, lines: &[Vec<u8>]) {
    files.insert(name.to_owned(), lines.concat());
}

fn found_in(files: &BTreeMap<String, Vec<u8>>) -> Break {
    let place = place();
    write_files(place.path(), files);
    broken(place.path())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_changed_byte_is_found_where_it_is(
        file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut files = sample().clone();
        let name = file.get(&segments()).clone();
        let content = files.get_mut(&name).unwrap();
        let at = at.index(content.len());
        let line = 1 + content[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        content[at] ^= flip;
        let found = found_in(&files);
        prop_assert_eq!((found.segment, found.line), (name, line));
    }

    #[test]
    fn any_changed_byte_of_the_head_is_found(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut files = sample().clone();
        let content = files.get_mut("head").unwrap();
        let at = at.index(content.len());
        content[at] ^= flip;
        found_in(&files);
    }

    #[test]
    fn any_removed_line_is_found(line in any::<prop::sample::Index>()) {
        let all = all_lines();
        let at = line.index(all.len());
        let (name, within) = &all[at];
        let mut kept = lines(name);
        let is_last_of_file = *within + 1 == kept.len();
        kept.remove(*within);
        let mut files = sample().clone();
        with_lines(&mut files, name, &kept);
        let found = found_in(&files);
        let what = if is_last_of_file { Damage::Truncated } else { Damage::Removed };
        let first_of_later = *within == 0 && name != "journal-000001.jsonl";
        // Without its first record a segment looks as if the one before ended too early.
        let what = if first_of_later { Damage::Truncated } else { what };
        prop_assert_eq!((found.seq, found.what), (at as u64 + 1, what));
    }

    #[test]
    fn any_two_swapped_lines_are_found(
        one in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(),
    ) {
        let all = all_lines();
        let (one, other) = (one.index(all.len()), other.index(all.len()));
        prop_assume!(one != other);
        let mut by_file: BTreeMap<String, Vec<Vec<u8>>> =
            segments().into_iter().map(|name| (name.clone(), lines(&name))).collect();
        let line = |at: usize| lines(&all[at].0)[all[at].1].clone();
        for (to, from) in [(one, other), (other, one)] {
            by_file.get_mut(&all[to].0).unwrap()[all[to].1] = line(from);
        }
        let mut files = sample().clone();
        for (name, lines) in &by_file {
            with_lines(&mut files, name, lines);
        }
        let first = one.min(other);
        let found = found_in(&files);
        prop_assert_eq!((found.seq, found.what), (first as u64 + 1, Damage::Reordered));
        prop_assert_eq!((&found.segment, found.line), (&all[first].0, all[first].1 as u64 + 1));
    }

    #[test]
    fn any_cut_of_one_file_is_found_at_its_end(
        file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
    ) {
        let mut files = sample().clone();
        let name = file.get(&segments()).clone();
        let content = files.get_mut(&name).unwrap();
        content.truncate(at.index(content.len()));
        let line = 1 + content.iter().filter(|byte| **byte == b'\n').count() as u64;
        let found = found_in(&files);
        prop_assert_eq!((found.segment, found.line, found.what), (name, line, Damage::Truncated));
    }

    #[test]
    fn any_cut_of_the_whole_journal_is_found(
        file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
    ) {
        let mut files = sample().clone();
        let names = segments();
        let last = file.index(names.len());
        for name in &names[last + 1..] {
            files.remove(name);
        }
        let content = files.get_mut(&names[last]).unwrap();
        content.truncate(at.index(content.len()));
        let found = found_in(&files);
        let what = [Damage::Truncated, Damage::Removed];
        prop_assert!(what.contains(&found.what), "{found}");
    }
}

#[test]
fn a_removed_segment_is_found() {
    for name in segments() {
        let mut files = sample().clone();
        files.remove(&name);
        let found = found_in(&files);
        assert_eq!((found.segment, found.line, found.what), (name, 1, Damage::Removed));
    }
}

#[test]
fn a_moved_boundary_between_segments_is_found() {
    let (first, second) = ("journal-000001.jsonl", "journal-000002.jsonl");
    let (mut one, mut two) = (lines(first), lines(second));
    one.push(two.remove(0));
    let mut files = sample().clone();
    with_lines(&mut files, first, &one);
    with_lines(&mut files, second, &two);
    let found = found_in(&files);
    assert_eq!((found.segment.as_str(), found.line, found.what), (second, 1, Damage::Reordered));
}

#[test]
fn a_line_without_end_is_malformed_and_costs_bounded_memory() {
    let mut files = sample().clone();
    files.insert("journal-000002.jsonl".into(), vec![b'x'; 3 << 20]);
    let found = found_in(&files);
    assert_eq!((found.line, found.what), (1, Damage::Malformed));
}
