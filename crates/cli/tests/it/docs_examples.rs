//! The `console` blocks of the documentation, run as a reader would type them: page by page, as root (where the tests
//! are) and as an ordinary user. What cannot run says why in a comment above its block, in one of two forms:
//!
//! - `<!-- not run: REASON -->` for the whole block,
//! - ``<!-- not run `TEXT`: REASON -->`` for the commands that have this text in them.
//!
//! All of them together take seconds. Examples that start a machine or a container are not run, since that takes
//! minutes; backends are measured without a container engine.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::{CliPlace, finish};

/// Programs of the reader's, which are in the workspace here.
const PROGRAMS: [(&str, &str); 4] = [
    ("untrusted", "echo untrusted"),
    ("agent", "echo agent"),
    ("server", "exec sleep 300"),
    ("make", "echo made | tee out.log"),
];

/// One block: its commands, and what is not run of it.
struct ExampleBlock {
    page: String,
    line: usize,
    commands: Vec<String>,
    left_out: Vec<LeftOut>,
}

/// Commands that are not run: those with this text, or all.
struct LeftOut {
    text: Option<String>,
    reason: String,
}

fn list_pages() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md")];
    for dir in ["docs", "docs/backends"] {
        let entries = fs::read_dir(top.join(dir)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    }
    pages.sort();
    pages
}

fn parse_blocks(page: &str, text: &str) -> Vec<ExampleBlock> {
    let lines: Vec<&str> = text.lines().collect();
    let mut blocks = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "```console") {
        let inside = lines[at + 1..].iter().take_while(|line| **line != "```");
        let commands = inside.filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned);
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with("<!-- not run"));
        blocks.push(ExampleBlock {
            page: page.to_owned(),
            line: at + 1,
            commands: commands.collect(),
            left_out: above.map(|line| parse_left_out(line)).collect(),
        });
    }
    blocks
}

fn parse_left_out(comment: &str) -> LeftOut {
    let inner = comment.strip_prefix("<!-- not run").and_then(|rest| rest.strip_suffix("-->"));
    let inner = inner.unwrap_or_else(|| panic!("{comment} is not on one line")).trim();
    let (text, reason) = match inner.strip_prefix('`') {
        Some(rest) => {
            let (text, reason) = rest.split_once("`:").unwrap_or_else(|| panic!("{comment}"));
            (Some(text.to_owned()), reason)
        }
        None => (None, inner.strip_prefix(':').unwrap_or_else(|| panic!("{comment}"))),
    };
    LeftOut { text, reason: reason.trim().to_owned() }
}

impl ExampleBlock {
    /// The commands that are run, with the reader's programs where they are.
    fn runnable(&self) -> Vec<String> {
        let left_out = |command: &str| {
            let fits = |one: &LeftOut| one.text.as_ref().is_none_or(|text| command.contains(text));
            self.left_out.iter().any(fits)
        };
        let run = self.commands.iter().filter(|command| !left_out(command));
        run.map(|command| command.replace("-- make", "-- ./make")).collect()
    }

    /// Fails unless every comment is about something, with a reason.
    fn check_comments(&self) {
        let Self { page, line, commands, left_out } = self;
        assert!(
            !commands.is_empty() || !left_out.is_empty(),
            "{page}:{line} has no command: say why above it"
        );
        for LeftOut { text, reason } in left_out {
            assert!(!reason.is_empty(), "{page}:{line}: a comment without a reason");
            if let Some(text) = text {
                let found = commands.iter().any(|command| command.contains(text));
                assert!(found, "{page}:{line}: no command has `{text}` any more");
            }
        }
    }
}

fn read_blocks() -> Vec<Vec<ExampleBlock>> {
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        parse_blocks(&name, &fs::read_to_string(path).unwrap())
    };
    list_pages().into_iter().map(read).collect()
}

/// A shell script of a page's commands, which names the one that fails.
fn build_script(blocks: &[ExampleBlock]) -> String {
    let mut script = String::new();
    for block in blocks {
        for command in block.runnable() {
            let place = format!("{}:{}: {command}", block.page, block.line);
            let quoted = place.replace('\'', "'\\''");
            let _ = writeln!(script, "echo 'example {quoted}' >&2\n{command}");
        }
    }
    script
}

fn run_pages(new_place: fn() -> CliPlace) {
    let mut pages = 0;
    for blocks in read_blocks() {
        let script = build_script(&blocks);
        if script.is_empty() {
            continue;
        }
        pages += 1;
        let place = new_place();
        for (name, body) in PROGRAMS {
            place.write(name, &format!("#!/bin/sh\n{body}\n"));
            let path = place.workspace().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        place.give_files();
        let done = finish(place.script(&script));
        let ended = finish(place.script("for id in $(stockade ps -q); do stockade kill $id; done"));
        assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert!(pages >= 4, "{pages} pages with examples: were they found?");
}

#[test]
fn every_example_that_is_not_run_says_why() {
    for block in read_blocks().iter().flatten() {
        block.check_comments();
    }
}

#[test]
fn the_examples_of_the_documentation_run() {
    run_pages(|| CliPlace::new().without_engine());
}

#[test]
fn the_examples_of_the_documentation_run_for_an_ordinary_user() {
    run_pages(|| CliPlace::of_an_ordinary_user().without_engine());
}

#[test]
fn comments_leave_out_what_they_name_and_nothing_else() {
    let text = "<!-- not run `b`: is long -->\n```console\n$ a\nout\n$ b c\n```\n\
                <!-- not run: all -->\n```console\n$ d\n```\n";
    let blocks = parse_blocks("page", text);
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].runnable(), ["a"]);
    assert_eq!(blocks[1].runnable(), Vec::<String>::new());
    blocks.iter().for_each(ExampleBlock::check_comments);
}
