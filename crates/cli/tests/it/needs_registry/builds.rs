//! Images that are built from a Dockerfile by the command.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::common::registry::TestRegistry;
use crate::common::{CliDone, CliPlace};

const THREE_STAGES: &str = "# syntax=docker/dockerfile:1
ARG BASE
FROM $BASE AS first
ENV GREETING=hello
WORKDIR /work/dir
COPY *.txt ./
RUN cat a.txt > made \\
    # what the variable says
    && echo $GREETING >> made
FROM first AS second
RUN [\"/bin/sh\", \"-c\", \"echo second > /work/second && rm /bin/touch\"]
FROM $BASE AS unused
RUN exit 1
FROM $BASE
COPY --from=first /work/dir/made /data/
COPY --from=1 --chmod=700 /work/second /data/tool
COPY tree /data/tree
LABEL a.b=\"c d\"
EXPOSE 80
ENTRYPOINT [\"/bin/cat\"]
CMD [\"/data/made\", \"/data/tool\"]
";

/// A directory with a Dockerfile and some files.
fn make_context(place: &CliPlace, dockerfile: &str) -> String {
    let context = place.path("context");
    fs::create_dir_all(context.join("tree/inner")).unwrap();
    for (file, text) in [
        ("Dockerfile", dockerfile),
        (".dockerignore", "*.log\ntree/**/secret\n"),
        ("a.txt", "from the context\n"),
        ("b.log", ""),
        ("tree/inner/file", "in a tree\n"),
        ("tree/inner/secret", "hidden\n"),
    ] {
        fs::write(context.join(file), text).unwrap();
    }
    context.to_str().unwrap().to_owned()
}

fn build(place: &CliPlace, registry: &TestRegistry, context: &str) -> CliDone {
    let base = format!("BASE={}", registry.name("1"));
    let args = ["image", "build", "-t", "localhost/built:1", "--build-arg", &base, context];
    place.stockade(&args)
}

fn in_built(place: &CliPlace, line: &str) -> CliDone {
    let image = ["--image", "localhost/built:1", "--pull", "never"];
    place.stockade(&[&["run", "--no-workspace"], &image[..], &["--shell", line]].concat())
}

/// Refused with this at the end of what it says, which begins with steps.
fn fails_with(done: &CliDone, part: &str) {
    assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{done:?}");
    let last = done.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("stockade: ") && last.contains(part), "{part:?}: {done:?}");
}

#[test]
fn three_stages_make_an_image_that_runs_and_is_pushed() {
    makes_an_image_of_three_stages(&CliPlace::new());
}

#[test]
fn three_stages_make_an_image_for_an_ordinary_user_too() {
    makes_an_image_of_three_stages(&CliPlace::of_an_ordinary_user());
}

fn makes_an_image_of_three_stages(place: &CliPlace) {
    let registry = TestRegistry::start();
    let context = make_context(place, THREE_STAGES);
    let built = build(place, &registry, &context);
    assert_eq!(built.code, 0, "{built:?}");
    assert!(built.stderr.contains("[1/15] FROM "), "{built:?}");
    assert!(built.stderr.contains("] RUN cat a.txt > made"), "{built:?}");
    let own = ["run", "--no-workspace", "--image", "localhost/built:1"];
    place.stockade(&own).is(0, "from the context\nhello\nsecond\n", "");
    in_built(place, "cat /data/tree/inner/file; ls /data/tree/inner").is(
        0,
        "in a tree\nfile\n",
        "",
    );
    let pushed = registry.name_of("built", "1");
    place.stockade(&["image", "push", "localhost/built:1", "--to", &pushed]).code_is(0);
    assert_eq!(registry.inspect(&pushed)["Labels"]["a.b"], "c d");
    registry.copy_out(&pushed);
    let listed = place.stockade(&["image", "ls"]).stdout;
    assert_eq!(listed.lines().count(), 3, "steps are not listed: {listed}");
    place.assert_nothing_is_left();
}

#[test]
fn a_second_build_is_cached_until_a_file_changes() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let context = make_context(&place, THREE_STAGES);
    let first = build(&place, &registry, &context);
    let second = build(&place, &registry, &context);
    assert_eq!((second.code, &second.stdout), (0, &first.stdout), "{second:?}");
    let ran = |done: &CliDone| {
        let lines = done.stderr.lines().filter(|line| line.contains("] RUN "));
        lines.map(|line| line.ends_with("  (cached)")).collect::<Vec<_>>()
    };
    assert_eq!((ran(&first), ran(&second)), (vec![false, false], vec![true, true]));
    fs::write(Path::new(&context).join("b.log"), "ignored").unwrap();
    assert_eq!(build(&place, &registry, &context).stdout, first.stdout);
    fs::write(Path::new(&context).join("a.txt"), "changed\n").unwrap();
    let third = build(&place, &registry, &context);
    assert_eq!(ran(&third), [false, false]);
    in_built(&place, "cat /data/made").is(0, "changed\nhello\n", "");
}

#[test]
fn what_fails_is_named_with_file_line_and_instruction() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    for (steps, expected) in [
        ("RUN exit 3", "Dockerfile, line 3: RUN: the command ended with exit code 3"),
        ("HEALTHCHECK NONE", "Dockerfile, line 3: HEALTHCHECK: is not supported"),
        ("COPY none /x", "Dockerfile, line 3: COPY: `none` is not there"),
        ("ADD a.tar.gz /x", "is an archive, which is not extracted"),
        ("USER nobody-there\nRUN true", "Dockerfile, line 4: RUN: the image has no user"),
        ("COPY --chown=1:1 a.txt /x", "--chown"),
    ] {
        let context = make_context(&place, &format!("ARG BASE\nFROM $BASE\n{steps}\n"));
        fails_with(&build(&place, &registry, &context), expected);
    }
    let context = make_context(&place, "FROM scratch\n");
    fails_with(&build(&place, &registry, &context), "no ARG `BASE`");
    assert!(!place.stockade(&["image", "ls"]).stdout.contains("localhost/built"));
    place.assert_nothing_is_left();
}

#[test]
fn nothing_outside_of_the_context_is_copied() {
    let registry = TestRegistry::start();
    let place = CliPlace::new();
    let file = |steps: &str| format!("ARG BASE\nFROM $BASE\n{steps}\n");
    let context = make_context(&place, &file("COPY tree /d"));
    let inside = Path::new(&context);
    fs::write(place.path("outside"), "outside\n").unwrap();
    symlink("../outside", inside.join("link")).unwrap();
    symlink("..", inside.join("up")).unwrap();
    symlink("../../../outside", inside.join("tree/inner/link")).unwrap();
    assert_eq!(build(&place, &registry, &context).code, 0);
    assert_ne!(in_built(&place, "cat /d/inner/link").code, 0, "a link is copied as it is");
    for (steps, expected) in [
        ("COPY ../outside /x", "leads upwards"),
        ("COPY link /x", "is a symbolic link"),
        ("COPY up/outside /x", "is behind a symbolic link"),
    ] {
        fs::write(inside.join("Dockerfile"), file(steps)).unwrap();
        fails_with(&build(&place, &registry, &context), expected);
    }
    fs::write(inside.join("Dockerfile"), file("COPY . /x")).unwrap();
    mknodat(CWD, inside.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fails_with(&build(&place, &registry, &context), "`pipe` is no file");
}
