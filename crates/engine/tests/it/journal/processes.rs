//! Several processes at once, killed ones, and ones that cannot write. Each is this test program
//! executed again, in a role.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stockade_core::ErrorCode;
use stockade_engine::Filter;

use super::{clean_count, journal_at, place, refused};

const STATE_DIR_VAR: &str = "STOCKADE_TEST_STATE";
const RECORD_COUNT_VAR: &str = "STOCKADE_TEST_COUNT";
const CHILD_TIMEOUT: Duration = Duration::from_secs(60);

/// This test program again, in a role.
fn role(name: &str, state: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(STATE_DIR_VAR, state).stdout(Stdio::piped()).stdin(Stdio::null());
    command
}

/// A child that never outlives its test.
struct KilledRole(Child);

impl Drop for KilledRole {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledRole {
    fn succeed(mut self) {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(start.elapsed() < CHILD_TIMEOUT, "a child does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the child has said that it is at work.
    fn is_at_work(&mut self) {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let said = lines.map_while(Result::ok).any(|line| line.contains("at work"));
        assert!(said, "the child ended early");
    }
}

fn spawn(command: &mut Command) -> KilledRole {
    KilledRole(command.spawn().unwrap())
}

fn state_of_role() -> PathBuf {
    std::env::var_os(STATE_DIR_VAR).expect("a role is given its state directory").into()
}

#[test]
#[ignore = "a role for processes that other tests start"]
fn role_write() {
    let journal = journal_at(&state_of_role(), 20_000);
    let count: u64 = std::env::var(RECORD_COUNT_VAR).unwrap().parse().unwrap();
    println!("\nat work");
    for number in 0..count {
        journal.append(refused(&number.to_string())).unwrap();
    }
}

#[test]
fn eight_processes_at_once_keep_one_chain() {
    let place = place();
    let journal = journal_at(place.path(), 20_000);
    let writers: Vec<KilledRole> = (0..8)
        .map(|_| {
            spawn(
                role("journal::processes::role_write", place.path())
                    .env(RECORD_COUNT_VAR, "200")
                    .stdout(Stdio::null()),
            )
        })
        .collect();
    writers.into_iter().for_each(KilledRole::succeed);
    let mine = Filter { tenant: Some("team-b".parse().unwrap()), ..Filter::default() };
    assert_eq!(journal.records(mine).unwrap().count(), 1600);
    assert!(clean_count(&journal) > 1600);
}

#[test]
fn eight_threads_at_once_keep_one_chain() {
    let place = place();
    let journal = journal_at(place.path(), 20_000);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..100).for_each(|_| assert!(journal.append(refused("x")).is_ok())));
        }
    });
    let mine = Filter { tenant: Some("team-b".parse().unwrap()), ..Filter::default() };
    assert_eq!(journal.records(mine).unwrap().count(), 800);
    assert!(clean_count(&journal) > 800);
}

#[test]
fn writers_killed_at_any_instant_leave_a_clean_journal() {
    let place = place();
    let journal = journal_at(place.path(), 20_000);
    let mut before = 0;
    for round in 0..60u64 {
        let mut writers: Vec<KilledRole> = (0..2)
            .map(|_| {
                spawn(
                    role("journal::processes::role_write", place.path())
                        .env(RECORD_COUNT_VAR, "1000000"),
                )
            })
            .collect();
        writers.iter_mut().for_each(KilledRole::is_at_work);
        // Any instant will do: each round picks another.
        std::thread::sleep(Duration::from_micros(round * 7919 % 3000));
        drop(writers);
        let count = clean_count(&journal);
        assert!(count >= before, "{count} records where there were {before}");
        let receipt = journal.append(refused("after the kill")).unwrap();
        assert!(receipt.seq > count, "{} after {count}", receipt.seq);
        before = clean_count(&journal);
    }
}

#[test]
fn verification_while_others_write_is_clean() {
    let place = place();
    let journal = journal_at(place.path(), 20_000);
    let mut writer =
        spawn(role("journal::processes::role_write", place.path()).env(RECORD_COUNT_VAR, "2000"));
    writer.is_at_work();
    let counts: Vec<u64> = (0..5).map(|_| clean_count(&journal)).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    writer.succeed();
    assert!(clean_count(&journal) > 2000);
}

#[test]
fn a_held_lock_is_not_waited_for_by_those_who_must_not_wait() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    let head = fs::File::open(place.path().join("journal/head")).unwrap();
    head.lock().unwrap();
    assert!(journal.try_append(&refused("x")).unwrap().is_none());
    head.unlock().unwrap();
    assert_eq!(journal.try_append(&refused("x")).unwrap().unwrap().seq, 1);
}

#[test]
fn a_lock_that_is_never_freed_ends_the_wait_and_is_named() {
    let place = place();
    let journal = journal_at(place.path(), 1 << 20);
    let path = place.path().join("journal/head");
    let head = fs::File::open(&path).unwrap();
    head.lock().unwrap();
    let start = Instant::now();
    let error = journal.append(refused("x")).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooSlow);
    assert!(error.message().contains(path.to_str().unwrap()), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Files of this process cannot grow beyond this many bytes.
fn limit_files(most: Option<u64>) {
    let current = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum: current.maximum }).unwrap();
}

#[test]
#[ignore = "a role for processes that other tests start"]
fn role_meet_a_full_disk() {
    let journal = journal_at(&state_of_role(), 1 << 20);
    let first = journal.append(refused("first")).unwrap();
    let current = state_of_role().join("journal/journal.jsonl");
    let size = fs::metadata(&current).unwrap().len();
    // From no room at all to one byte too few: what fits is written, then the write fails.
    for room in [0, 1, 100, size - 1] {
        limit_files(Some(size + room));
        let error = journal.append(refused("again")).unwrap_err();
        assert_eq!(error.code(), ErrorCode::JournalUnavailable);
        assert!(error.hint().is_some() && error.message().contains("journal.jsonl"), "{error}");
        assert_eq!(fs::metadata(&current).unwrap().len(), size, "a torn tail is left");
    }
    assert_eq!(clean_count(&journal), 1);
    limit_files(None);
    assert_eq!(journal.append(refused("second")).unwrap().seq, first.seq + 1);
    assert_eq!(clean_count(&journal), 2);
}

#[test]
fn a_write_that_does_not_fit_is_an_error_and_the_journal_heals() {
    let place = place();
    let role = role("journal::processes::role_meet_a_full_disk", place.path());
    // The limit's signal must be ignored for the write to fail instead; only a shell can say so
    // without unsafe code.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(role.get_program());
    shell.args(role.get_args()).env(STATE_DIR_VAR, place.path()).stdout(Stdio::null());
    spawn(&mut shell).succeed();
    assert_eq!(clean_count(&journal_at(place.path(), 1 << 20)), 2, "the role did not run");
}
