//! Terminals (C-13).

use serde_json::json;
use stockade_core::{Feature, TerminalSize};

use crate::case::{case, check, same};
use crate::kit::{collect_output, probe_command, wait_for_output};
use crate::{Case, Kit, Stop, Verdict};

pub(super) const TERMINAL_CASES: &[Case] = &[
    case!("a program is given a terminal of the size asked for", "C-13", check_terminal_size)
        .needs(&[Feature::Terminal]),
    case!("a program sees its terminal's new size", "C-13", check_terminal_resize)
        .needs(&[Feature::Terminal]),
    case!("a program has no terminal unless it was asked for", "C-03", no_terminal),
];

/// A terminal may put a carriage return before each newline: the facts are found all the same.
fn last_line(stdout: &[u8]) -> Verdict<serde_json::Value> {
    let text = String::from_utf8_lossy(stdout);
    let line = text.lines().map(str::trim).rfind(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| Stop::Failed(format!("expected facts, saw {text:?}")))?;
    Ok(serde_json::from_str(line)?)
}

async fn check_terminal_size(kit: Kit) -> Verdict {
    let mut command = probe_command(["terminal"]);
    command.terminal = Some(TerminalSize { rows: 33, cols: 123 });
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    let facts = last_line(&ran.stdout)?;
    same!("which descriptors are terminals", facts["terminals"], json!([true, true, true]));
    same!("rows and columns", (&facts["rows"], &facts["cols"]), (&json!(33), &json!(123)));
    check!(ran.stderr.is_empty(), "expected one stream, saw another: {:?}", ran.stderr);
    Ok(())
}

async fn check_terminal_resize(kit: Kit) -> Verdict {
    let mut command = probe_command(["wait-resize", "10000"]);
    command.terminal = Some(TerminalSize { rows: 10, cols: 20 });
    let execution = kit.start(kit.spec(), command).await?;
    wait_for_output(&mut execution.subscribe(), "ready").await?;
    execution.resize(TerminalSize { rows: 50, cols: 160 }).await?;
    let ran = collect_output(execution.subscribe()).await?.exited(0)?;
    let facts = last_line(&ran.stdout)?;
    same!("rows and columns", (&facts["rows"], &facts["cols"]), (&json!(50), &json!(160)));
    Ok(())
}

async fn no_terminal(kit: Kit) -> Verdict {
    let facts = kit.facts(["terminal"]).await?;
    same!("which descriptors are terminals", facts["terminals"], json!([false, false, false]));
    Ok(())
}
