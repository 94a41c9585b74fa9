//! Files that were removed on purpose, and those that were not.

use std::fs;

use stockade_core::Bytes;
use stockade_engine::{Damage, Filter, Journal, Prune, PrunedSegments};

use super::{
    broken, clean_count, files, journal_at, place, refused, started, stopped, write_files,
};

const SEGMENT_BYTES: u64 = 2000;

/// A journal of several files.
fn several(place: &tempfile::TempDir) -> Journal {
    let journal = journal_at(place.path(), SEGMENT_BYTES);
    for number in 0..40 {
        journal.append(refused(&format!("{number}"))).unwrap();
    }
    journal
}

fn all_but(bytes: u64) -> Prune {
    Prune { larger_than: Some(Bytes(bytes)), ..Prune::default() }
}

#[test]
fn what_is_left_is_clean_and_can_be_read_and_written() {
    let place = place();
    let journal = several(&place);
    let before = files(&place.path().join("journal")).len();
    let planned = journal.prunable(all_but(0)).unwrap();
    assert!(planned.files > 2 && planned.bytes > 2 * 1000, "{planned:?}");
    assert_eq!(files(&place.path().join("journal")).len(), before, "nothing was meant yet");
    assert_eq!(journal.prune(all_but(0)).unwrap(), planned);
    assert_eq!(journal.prune(all_but(u64::MAX)).unwrap(), PrunedSegments::default());
    let records = clean_count(&journal);
    journal.append(started("later")).unwrap();
    journal.append(stopped("later")).unwrap();
    assert!(clean_count(&journal) >= records + 2);
    let jobs = journal.newest_jobs(Filter::default()).unwrap();
    assert_eq!(jobs.collect::<Result<Vec<_>, _>>().unwrap().len(), 1);
    assert!(journal.records(Filter::default()).unwrap().all(|record| record.is_ok()));
    // And once more.
    for number in 0..40 {
        journal.append(refused(&format!("{number}"))).unwrap();
    }
    assert!(journal.prune(all_but(3 * SEGMENT_BYTES)).unwrap().files > 0);
    clean_count(&journal);
}

#[test]
fn a_removal_that_was_interrupted_anywhere_is_clean() {
    let place = place();
    let journal = several(&place);
    let dir = place.path().join("journal");
    let before = files(&dir);
    journal.prune(all_but(0)).unwrap();
    let after = files(&dir);
    let gone: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
    assert!(gone.len() > 2);
    for kept in 0..=gone.len() {
        let back =
            gone[gone.len() - kept..].iter().map(|name| ((*name).clone(), before[*name].clone()));
        let all = after.clone().into_iter().chain(back).collect();
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        write_files(&dir, &all);
        assert!(Journal::verify_dir(&dir).unwrap().is_clean(), "{kept} of {}", gone.len());
    }
}

#[test]
fn a_file_that_nobody_recorded_as_removed_is_missed() {
    let place = place();
    let journal = several(&place);
    let dir = place.path().join("journal");
    let oldest = |dir: &std::path::Path| {
        files(dir).into_keys().find(|name| name.starts_with("journal-")).unwrap()
    };
    let (whole, first) = (files(&dir), oldest(&dir));
    fs::remove_file(dir.join(&first)).unwrap();
    assert_eq!((broken(&dir).segment, broken(&dir).what), (first, Damage::Removed));
    write_files(&dir, &whole);
    // After a removal that was recorded too.
    journal.prune(all_but(3 * SEGMENT_BYTES)).unwrap();
    clean_count(&journal);
    fs::remove_file(dir.join(oldest(&dir))).unwrap();
    assert_eq!(broken(&dir).what, Damage::Removed);
}
