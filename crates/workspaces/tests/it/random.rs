//! Any change of a guest to a tree: after `apply` the real tree looks as the guest's did.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Place, inside, memory, ordinary, picture, write};

const ROUND_COUNT: u64 = 40;

/// Numbers that are the same in every run.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// One of few names, so that things meet.
    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        let names: Vec<_> =
            (0..depth).map(|_| ["a", "b", "c", "d"][self.below(4) as usize]).collect();
        names.join("/")
    }
}

fn furnish(source: &Path, numbers: &mut RandomNumbers) {
    for number in 0..20 {
        let path = source.join(numbers.path());
        let parent = path.parent().unwrap();
        if fs::create_dir_all(parent).is_ok() && !path.exists() {
            write(&path, format!("{number}\n"));
        }
    }
}

/// A shell script that does things in the tree it stands in; what cannot be done is left out.
fn script(numbers: &mut RandomNumbers) -> String {
    let mut script = String::new();
    for number in 0..30 {
        let (one, other) = (numbers.path(), numbers.path());
        let line = match numbers.below(9) {
            0 | 1 => {
                format!("mkdir -p $(dirname {one}) && test ! -d {one} && echo {number} > {one}")
            }
            2 => format!("test -f {one} && echo {number} >> {one}"),
            3 => format!("rm -rf {one}"),
            4 => format!("test -e {one} && test ! -e {other} && mv {one} {other}"),
            5 => format!("mkdir -p {one}"),
            6 => format!("test -f {one} && test ! -L {one} && chmod 70{} {one}", numbers.below(8)),
            7 => format!("test -d {one} && chmod 7{}5 {one}", numbers.below(8)),
            _ => format!("test ! -e {one} && test -d $(dirname {one}) && ln -s a {one}"),
        };
        writeln!(script, "{{ {line}; }} 2>/dev/null || true").unwrap();
    }
    script
}

fn done(place: &Place, id: &stockade_core::WorkspaceId, looks: &Path, script: &str) {
    let expected = picture(looks);
    let diff = place.diff(id);
    assert_eq!(diff.held().count(), 0, "{diff}");
    place.applied(id);
    assert_eq!(picture(&place.source()), expected, "{script}\n{diff}");
    assert!(place.diff(id).is_empty());
}

#[test]
fn what_was_done_to_a_copy_is_done_to_the_tree() {
    for round in 1..=ROUND_COUNT {
        let (place, mut numbers) = (Place::on(&memory()), RandomNumbers(round * 7919));
        furnish(&place.source(), &mut numbers);
        let workspace = place.copied();
        for _ in 0..2 {
            let script = script(&mut numbers);
            let run =
                Command::new("sh").args(["-c", &script]).current_dir(&workspace.root).status();
            assert!(run.unwrap().success());
            done(&place, &workspace.id, &workspace.root, &script);
        }
    }
}

#[test]
fn what_was_done_through_the_kernels_overlay_is_done_to_the_tree() {
    for round in 1..=ROUND_COUNT {
        let (place, mut numbers) = (Place::on(&memory()), RandomNumbers(round * 104_729));
        furnish(&place.source(), &mut numbers);
        let workspace = place.overlay();
        for turn in 0..2 {
            let script = script(&mut numbers);
            let looks = place.dir.path().join(format!("looks{turn}"));
            inside(&place, &workspace, &format!("{script} cp -a . {}", looks.display()));
            done(&place, &workspace.id, &looks, &script);
        }
    }
}

#[test]
fn what_an_ordinary_user_did_through_the_overlay_is_done_too() {
    ordinary::repeat(
        module_path!(),
        "what_was_done_through_the_kernels_overlay_is_done_to_the_tree",
    );
}
