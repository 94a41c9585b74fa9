//! `--review`: shows what a command has changed, and asks whether to apply it. Without an answer nothing
//! is applied, and nothing is lost.

use std::io::BufRead;

use stockade_core::{Error, ErrorCode, Result};
use stockade_workspaces::{ApplyOptions, Diff};
use tokio::sync::oneshot;

use super::apply::{attempt_apply, report_application};
use super::diff::paint_patch;
use crate::terminal::interrupts::Interrupts;
use crate::terminal::printer::Printer;
use crate::terminal::prompt::{typed, write_to_stderr};
use crate::workspace::{SettledWorkspace, off_thread};

/// What a person may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReviewAnswer {
    /// What is not held back.
    Yes,
    /// That, and what is held back.
    Held,
    /// Nothing.
    No,
}

/// Refuses where no person can be asked.
pub fn require_reviewer(printer: &Printer) -> Result<()> {
    if !printer.is_json() && typed::by_a_person() {
        return Ok(());
    }
    let message = "--review asks a person, and there is no terminal to ask on";
    Err(Error::new(ErrorCode::Invalid, "run", message).remedy(
        "use --overlay, then `stockade workspace diff ID` and `stockade workspace apply ID`",
    ))
}

/// Shows what was changed and asks; answers the exit code if that is not the command's own.
pub async fn review_changes(
    settled: SettledWorkspace,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<Option<i32>> {
    if settled.diff.is_empty() {
        settled.tell(printer);
        return Ok(None);
    }
    let (from, id) = (settled.workspaces.clone(), settled.workspace.id.clone());
    let diff = settled.diff.clone();
    // The text of the very changes that are applied on a yes (C-23).
    let patch = off_thread(move || from.patch_of(&id, &diff)).await?;
    write_to_stderr(&paint_patch(&patch, printer));
    let held = settled.diff.held().count();
    let include = match ask_user(held, interrupts).await {
        ReviewAnswer::No => {
            settled.tell(printer);
            return Ok(None);
        }
        ReviewAnswer::Yes => Vec::new(),
        ReviewAnswer::Held => list_nameable_paths(&settled.diff),
    };
    // Another command may have gone on in it while this one asked.
    let options = ApplyOptions { include, to: None, seen: Some(settled.diff) };
    let done =
        attempt_apply(settled.workspaces.clone(), settled.workspace.id.clone(), options).await?;
    Ok(Some(report_application(&done, printer)).filter(|code| *code != 0))
}

fn list_nameable_paths(diff: &Diff) -> Vec<stockade_workspaces::TreePath> {
    let named = |change: &&stockade_workspaces::Change| {
        change.held.as_ref().is_some_and(|why| why.can_be_named())
    };
    diff.held().filter(named).map(|change| change.path.clone()).collect()
}

async fn ask_user(held: usize, interrupts: &mut Interrupts) -> ReviewAnswer {
    let question = match held {
        0 => "apply these changes? [y/N] ".to_owned(),
        held => format!("apply these changes? {held} held back unless you say `held` [y/N/held] "),
    };
    // Input typed while the command ran was not meant for a question that had not been shown yet.
    typed::discard_typed_input();
    write_to_stderr(&question);
    tokio::select! {
        line = read_stdin_line() => line.map_or(ReviewAnswer::No, |line| parse_answer(&line, held)),
        _ = interrupts.next() => {
            write_to_stderr("\n");
            ReviewAnswer::No
        }
    }
}

fn parse_answer(line: &str, held: usize) -> ReviewAnswer {
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => ReviewAnswer::Yes,
        "held" if held > 0 => ReviewAnswer::Held,
        _ => ReviewAnswer::No,
    }
}

/// One line of standard input, read by a thread that is never joined: the line may never be typed.
async fn read_stdin_line() -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    let reader = std::thread::Builder::new().name("answer".into()).spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        let _ = sender.send(read.is_ok().then_some(line));
    });
    reader.ok()?;
    receiver.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for yes in ["y\n", "Y\n", " yes \n"] {
            assert_eq!(parse_answer(yes, 0), ReviewAnswer::Yes, "{yes:?}");
        }
        for no in ["", "\n", "n\n", "yess\n", "held\n", "all\n"] {
            assert_eq!(parse_answer(no, 0), ReviewAnswer::No, "{no:?}");
        }
        assert_eq!(parse_answer("held\n", 2), ReviewAnswer::Held);
    }
}
