//! `glob` and `grep`: both ask the search program inside the place.

mod finder;

use std::fmt::Write as _;

use stockade_backends::local;
use stockade_core::{SandboxPath, WORKSPACE_ROOT, Workspace};
use stockade_finder::{Answer, FinderRequest, What};

use crate::approval::Programs;
use crate::arguments::{Glob, Grep};
use crate::files::escape_path;
use crate::place::ToolPlace;
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

const DEFAULT_FILES: u32 = 1000;
const MAX_FILES: u32 = 20_000;
const DEFAULT_HITS: u32 = 500;
const MAX_HITS: u32 = 5000;
const MAX_CONTEXT_LINES: u32 = 20;
/// Longest pattern.
const MAX_PATTERN_BYTES: usize = 16 << 10;

pub(crate) async fn find_files(
    session: &ToolSession,
    args: Glob,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    check_pattern("pattern", &args.pattern)?;
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let path = resolve_start_path(args.path.as_ref())?;
    approve_search(session, &place, "glob", &path, call).await?;
    let request = FinderRequest {
        workspace: ".".into(),
        path: make_workspace_relative(&place, &path)?.to_string(),
        no_ignore: args.no_ignore,
        hidden: args.hidden,
        limit: args.limit.unwrap_or(DEFAULT_FILES).clamp(1, MAX_FILES),
        what: What::Names { glob: args.pattern },
    };
    let answers = finder::run_finder(session, &place, &request, call).await?;
    let files: Vec<_> = answers.iter().filter_map(extract_file).collect();
    let (more, problems) = find_end(&answers);
    let mut text: String = files.iter().map(|path| format!("{}\n", escape_path(path))).collect();
    append_footer(&mut text, more, problems, "no file fits");
    let data = serde_json::json!({
        "path": path, "files": files, "truncated": more, "problems": problems,
    });
    ToolAnswer::told(&data, text)
}

pub(crate) async fn search_text(
    session: &ToolSession,
    args: Grep,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    check_pattern("pattern", &args.pattern)?;
    check_pattern("glob", args.glob.as_deref().unwrap_or_default())?;
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let path = resolve_start_path(args.path.as_ref())?;
    approve_search(session, &place, "grep", &path, call).await?;
    let request = FinderRequest {
        workspace: ".".into(),
        path: make_workspace_relative(&place, &path)?.to_string(),
        no_ignore: args.no_ignore,
        hidden: args.hidden,
        limit: args.limit.unwrap_or(DEFAULT_HITS).clamp(1, MAX_HITS),
        what: What::Lines {
            pattern: args.pattern,
            glob: args.glob,
            ignore_case: args.ignore_case,
            fixed: args.fixed,
            context: args.context.min(MAX_CONTEXT_LINES),
            files_only: args.files_only,
        },
    };
    let answers = finder::run_finder(session, &place, &request, call).await?;
    build_tool_answer(&path, &answers, args.files_only)
}

fn build_tool_answer(
    path: &SandboxPath,
    answers: &[Answer],
    files_only: bool,
) -> Result<ToolAnswer, ToolError> {
    let (more, problems) = find_end(answers);
    let mut text: String = answers.iter().map(shown_line).collect();
    append_footer(&mut text, more, problems, "nothing fits");
    let mut data = serde_json::json!({
        "path": path, "truncated": more, "problems": problems,
    });
    if files_only {
        data["files"] = answers.iter().filter_map(extract_file).collect();
    } else {
        data["matches"] = answers.iter().filter_map(extract_line).collect();
    }
    ToolAnswer::told(&data, text)
}

fn extract_file(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::File(path) => Some(path),
        Answer::Line { .. } | Answer::End { .. } | Answer::Failed { .. } => None,
    }
}

fn extract_line(answer: &Answer) -> Option<serde_json::Value> {
    match answer {
        Answer::Line { path, number, text, hit } => Some(serde_json::json!({
            "path": path, "line": number, "text": text, "context": !hit,
        })),
        Answer::File(_) | Answer::End { .. } | Answer::Failed { .. } => None,
    }
}

fn shown_line(answer: &Answer) -> String {
    match answer {
        Answer::File(path) => format!("{}\n", escape_path(path)),
        Answer::Line { path, number, text, hit } => {
            let mark = if *hit { ':' } else { '-' };
            format!(
                "{}{mark}{number}{mark}{}\n",
                escape_path(path),
                escape_path(text.trim_end_matches('\r'))
            )
        }
        Answer::End { .. } | Answer::Failed { .. } => String::new(),
    }
}

/// Whether there is more, and what could not be looked into.
fn find_end(answers: &[Answer]) -> (bool, &[String]) {
    match answers.last() {
        Some(Answer::End { more, problems }) => (*more, problems),
        Some(Answer::File(_) | Answer::Line { .. } | Answer::Failed { .. }) | None => (false, &[]),
    }
}

fn append_footer(text: &mut String, more: bool, problems: &[String], nothing: &str) {
    if text.is_empty() {
        text.push_str(nothing);
        text.push('\n');
    }
    if more {
        text.push_str("… there is more\n");
    }
    for problem in problems {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "not searched: {}", escape_path(problem));
    }
}

fn check_pattern(field: &str, text: &str) -> Result<(), ToolError> {
    if text.len() > MAX_PATTERN_BYTES {
        return Err(ToolError::field(field, format!("is longer than {MAX_PATTERN_BYTES} bytes")));
    }
    if text.contains('\0') {
        return Err(ToolError::field(field, "holds a zero byte"));
    }
    Ok(())
}

fn resolve_start_path(path: Option<&SandboxPath>) -> Result<SandboxPath, ToolError> {
    path.map_or_else(|| Ok(".".parse()?), |path| Ok(path.clone()))
}

async fn approve_search(
    session: &ToolSession,
    place: &ToolPlace,
    tool: &str,
    path: &SandboxPath,
    call: &Call,
) -> Result<(), ToolError> {
    place.refuse_outside(&[path]).await?;
    session.pass(place, None, place.facts(tool, Programs::NONE, &[path]), call).await
}

/// The path from the workspace on where it leads there: so it resolves beneath it (C-21).
fn make_workspace_relative(
    place: &ToolPlace,
    path: &SandboxPath,
) -> Result<SandboxPath, ToolError> {
    if let (true, Workspace::Local(root)) = (place.local, &place.spec.workspace) {
        return Ok(local::inside(root, path)?);
    }
    let rest = path.as_str().strip_prefix(WORKSPACE_ROOT);
    match rest.map(|rest| (rest.starts_with('/'), rest.trim_start_matches('/'))) {
        Some((_, "")) => Ok(".".parse()?),
        Some((true, inner)) => Ok(inner.parse()?),
        Some((false, _)) | None => Ok(path.clone()),
    }
}
