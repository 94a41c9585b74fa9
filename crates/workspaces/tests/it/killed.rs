//! `apply` killed at random instants: after the next start the tree is exactly what it was before or
//! exactly what it should become, and nothing of the staging is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Place, memory, mode, opaque, open, ordinary, picture, whiteout, write};
use stockade_core::WorkspaceId;
use stockade_workspaces::{Application, ApplyOptions};

type Picture = BTreeMap<PathBuf, String>;

const STATE_DIR_VAR: &str = "STOCKADE_TEST_STATE";
const WORKSPACE_ID_VAR: &str = "STOCKADE_TEST_WORKSPACE";
/// How often `apply` is killed where nothing waits for a disk.
const KILLS_IN_MEMORY: u32 = 200;
/// How often where files are flushed to one.
const KILLS_ON_DISK: u32 = 20;

fn furnish(source: &Path) {
    for number in 0..12 {
        write(source.join(format!("changed{number}")), format!("old {number}\n").repeat(200));
        write(source.join(format!("removed{number}")), format!("old {number}\n"));
        write(source.join(format!("removed-dir{number}/a/b")), "old\n");
    }
    write(source.join("file-to-dir"), "old\n");
    write(source.join("dir-to-file/inner"), "old\n");
    write(source.join("again/x"), "old\n");
    write(source.join("mode/x"), "old\n");
    symlink("changed0", source.join("link")).unwrap();
}

fn change(upper: &Path) {
    for number in 0..12 {
        write(upper.join(format!("changed{number}")), format!("new {number}\n").repeat(300));
        whiteout(upper.join(format!("removed{number}")));
        whiteout(upper.join(format!("removed-dir{number}")));
        write(upper.join(format!("added{number}/deep/er")), "new\n");
    }
    write(upper.join("file-to-dir/in/side"), "new\n");
    write(upper.join("dir-to-file"), "new\n");
    opaque(upper.join("again"));
    write(upper.join("again/y"), "new\n");
    fs::create_dir(upper.join("mode")).unwrap();
    mode(upper.join("mode"), 0o700);
    symlink("added0/deep/er", upper.join("link")).unwrap();
}

/// A place with a workspace that is ready to be applied.
fn ready(base: &Path) -> (Place, WorkspaceId) {
    let place = Place::on(base);
    furnish(&place.source());
    let id = place.overlay().id;
    change(&place.upper(&id));
    (place, id)
}

/// What the tree should become.
fn after(base: &Path) -> Picture {
    let (place, id) = ready(base);
    place.applied(&id);
    picture(&place.source())
}

/// Not a test of its own: what the others start and kill.
#[test]
fn victim() {
    let (Ok(state), Ok(id)) = (std::env::var(STATE_DIR_VAR), std::env::var(WORKSPACE_ID_VAR))
    else {
        return;
    };
    println!("opening");
    let workspaces = common::open(Path::new(&state));
    println!("begun");
    let applied = workspaces.apply(&id.parse().unwrap(), &ApplyOptions::default()).unwrap();
    assert!(matches!(applied, Application::Applied(_)));
    println!("ended");
}

/// A process that is about to apply, or to recover first.
fn start(place: &Place, id: &WorkspaceId, until: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::victim", "--nocapture"])
        .env(STATE_DIR_VAR, place.dir.path().join("state"))
        .env(WORKSPACE_ID_VAR, id.as_str())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.contains(until) {
            return child;
        }
    }
    let ended = child.wait();
    panic!("it never began: {ended:?}");
}

/// How long an apply takes when it is left alone.
fn duration(base: &Path) -> Duration {
    let mut times: Vec<_> = (0..5)
        .map(|_| {
            let (place, id) = ready(base);
            let mut child = start(&place, &id, "begun");
            let begun = Instant::now();
            let mut rest = String::new();
            child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
            let took = begun.elapsed();
            assert!(child.wait().unwrap().success());
            took
        })
        .collect();
    times.sort();
    times[2]
}

/// Numbers that are the same in every run.
struct KillNumbers(u64);

impl KillNumbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// How many trees were found in which state.
#[derive(Debug, Default)]
struct KillTally {
    before: u32,
    after: u32,
    midway: u32,
    recoveries_cut_off: u32,
}

/// Kills an apply, and now and then the recovery after it, and looks at what is left.
fn kill(base: &Path, kills: u32) -> KillTally {
    let expected = after(base);
    let span = duration(base).as_micros() as u64 * 5 / 4;
    let mut numbers = KillNumbers(0x5eed);
    let mut tally = KillTally::default();
    for _ in 0..kills {
        let (place, id) = ready(base);
        let before = picture(&place.source());
        let intent = place.home(&id).join("intent.json");
        end(start(&place, &id, "begun"), numbers.below(span));
        if intent.exists() {
            tally.midway += 1;
            end(start(&place, &id, "opening"), numbers.below(span / 4));
            tally.recoveries_cut_off += u32::from(intent.exists());
        }
        open(&place.dir.path().join("state"));
        let now = picture(&place.source());
        assert!(now == before || now == expected, "{:#?}", difference(&before, &expected, &now));
        assert!(!intent.exists());
        tally.after += u32::from(now == expected);
        if now == before {
            tally.before += 1;
            place.applied(&id);
            assert_eq!(picture(&place.source()), expected, "what was undone can be done again");
        }
    }
    println!("{tally:?}");
    tally
}

fn end(mut child: Child, after: u64) {
    std::thread::sleep(Duration::from_micros(after));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_tree_is_before_or_after_whenever_it_is_killed() {
    let tally = kill(&memory(), KILLS_IN_MEMORY);
    assert!(tally.before > 0 && tally.after > 0 && tally.midway > 0, "{tally:?}");
}

#[test]
fn the_tree_on_a_disk_is_before_or_after_too() {
    kill(&std::env::temp_dir(), KILLS_ON_DISK);
}

#[test]
fn an_ordinary_users_tree_is_before_or_after_too() {
    ordinary::repeat(module_path!(), "the_tree_is_before_or_after_whenever_it_is_killed");
}

/// The paths that are not as before.
fn difference(before: &Picture, after: &Picture, now: &Picture) -> Vec<String> {
    let all: BTreeSet<_> = before.keys().chain(after.keys()).chain(now.keys()).collect();
    let changed = all.into_iter().filter(|path| before.get(*path) != now.get(*path));
    let told = changed.map(|path| {
        let like_after = after.get(path) == now.get(path);
        format!("{} (as after: {like_after})", path.display())
    });
    told.collect()
}
