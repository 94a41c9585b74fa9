//! `apply` killed at random instants: after the next start the tree is exactly what it was before or
//! exactly what it should become, and nothing of the staging is left.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, mode, opaque, open, ordinary, picture, whiteout, write};
use stockade_core::WorkspaceId;
use stockade_workspaces::{Application, ApplyOptions};

const STATE: &str = "STOCKADE_TEST_STATE";
const ID: &str = "STOCKADE_TEST_WORKSPACE";
const KILLS: u32 = 200;

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
fn ready() -> (Place, WorkspaceId) {
    let place = Place::new();
    furnish(&place.source());
    let id = place.overlay().id;
    change(&place.upper(&id));
    (place, id)
}

/// What the tree should become.
fn after() -> std::collections::BTreeMap<std::path::PathBuf, String> {
    let (place, id) = ready();
    place.applied(&id);
    picture(&place.source())
}

/// Not a test of its own: what the others start and kill.
#[test]
fn victim() {
    let (Ok(state), Ok(id)) = (std::env::var(STATE), std::env::var(ID)) else { return };
    let workspaces = common::open(Path::new(&state));
    println!("begun");
    let applied = workspaces.apply(&id.parse().unwrap(), &ApplyOptions::default()).unwrap();
    assert!(matches!(applied, Application::Applied(_)));
    println!("ended");
}

/// A process that is about to apply.
fn start(place: &Place, id: &WorkspaceId) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(STATE, place.dir.path().join("state"))
        .env(ID, id.as_str())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.contains("begun") {
            return child;
        }
    }
    panic!("it never began");
}

/// How long an apply takes when it is left alone.
fn duration() -> Duration {
    let mut times: Vec<_> = (0..5)
        .map(|_| {
            let (place, id) = ready();
            let mut child = start(&place, &id);
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
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[test]
fn the_tree_is_before_or_after_whenever_it_is_killed() {
    let expected = after();
    let span = duration().as_micros() as u64 * 5 / 4;
    let mut numbers = Numbers(0x5eed);
    let (mut befores, mut afters, mut midway) = (0, 0, 0);
    for _ in 0..KILLS {
        let (place, id) = ready();
        let before = picture(&place.source());
        let mut child = start(&place, &id);
        std::thread::sleep(Duration::from_micros(numbers.below(span)));
        child.kill().unwrap();
        child.wait().unwrap();
        midway += u32::from(place.home(&id).join("intent.json").exists());
        open(&place.dir.path().join("state"));
        let now = picture(&place.source());
        assert!(now == before || now == expected, "{:#?}", difference(&before, &expected, &now));
        befores += u32::from(now == before);
        afters += u32::from(now == expected);
        assert!(!place.home(&id).join("intent.json").exists());
        if now == before {
            place.applied(&id);
            assert_eq!(picture(&place.source()), expected, "what was undone can be done again");
        }
    }
    println!("{befores} before, {afters} after, {midway} of them cut off half-way");
    assert!(befores > 0 && afters > 0 && midway > KILLS / 10, "{befores} {afters} {midway}");
}

#[test]
fn an_ordinary_users_tree_is_before_or_after_too() {
    ordinary::repeat("the_tree_is_before_or_after_whenever_it_is_killed");
}

/// The paths that are neither as before nor as after.
fn difference(
    before: &std::collections::BTreeMap<std::path::PathBuf, String>,
    after: &std::collections::BTreeMap<std::path::PathBuf, String>,
    now: &std::collections::BTreeMap<std::path::PathBuf, String>,
) -> Vec<String> {
    let all: std::collections::BTreeSet<_> =
        before.keys().chain(after.keys()).chain(now.keys()).collect();
    all.into_iter()
        .filter(|path| before.get(*path) != now.get(*path))
        .map(|path| {
            let like_after = after.get(path) == now.get(path);
            format!("{} (as after: {like_after})", path.display())
        })
        .collect()
}
