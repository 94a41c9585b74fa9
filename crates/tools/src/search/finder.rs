//! The search program: put into the place once, then run there as an ordinary command.
//!
//! What it prints is guest input: a guest may have put another program in its place. It is
//! bounded, read strictly, and believed only about the sandbox it comes from.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use stockade_core::{Bytes, Command, Ending, ErrorCode, Span, Stdin, clean_foreign};
use stockade_finder::{Answer, FinderFailure, FinderRequest};
use stockade_fs::{Survives, draft_name, write_atomically};

use crate::place::ToolPlace;
use crate::toolbox::ToolSession;
use crate::{Call, ToolError};

/// Program of the finder: static, so that it runs in any root.
static FINDER_PROGRAM: &[u8] = include_bytes!(env!("STOCKADE_FINDER"));

/// Most output of the finder, and its timeout.
const MAX_FINDER_OUTPUT: Bytes = Bytes::mib(16);
const FINDER_TIMEOUT: Span = Span::secs(60);

/// Script that reads the program from its input into a private place, and prints where that is.
const INSTALL_SCRIPT: &str = "umask 077 && d=$(mktemp -d) && cat > \"$d/finder\" && \
                       chmod 500 \"$d/finder\" && printf '%s' \"$d/finder\"";

/// Asks the search program, putting it in place first if need be.
pub(super) async fn run_finder(
    session: &ToolSession,
    place: &ToolPlace,
    request: &FinderRequest,
    call: &Call,
) -> Result<Vec<Answer>, ToolError> {
    let program = match place.local {
        true => place.finder.get_or_try_init(|| async { at_home(session) }).await?,
        false => place.finder.get_or_try_init(|| carried_in(place, call)).await?,
    };
    let request = serde_json::to_string(request).map_err(ToolError::unprintable)?;
    let mut command = Command::program([program.as_str(), &request]);
    command.dir = Some(".".parse()?);
    command.wall_time = Some(FINDER_TIMEOUT);
    command.output = Some(MAX_FINDER_OUTPUT);
    let ran = place.run(command, call).await?;
    if !ran.outcome.success() {
        return Err(ending_error(&ran.outcome.ending));
    }
    parse_answers(&ran.stdout)
}

/// Strictly: whole lines, each an answer, the last one the end.
fn parse_answers(stdout: &[u8]) -> Result<Vec<Answer>, ToolError> {
    let broken =
        || ToolError::new(ErrorCode::Protocol, "the search program sent an invalid answer");
    let lines = stdout.strip_suffix(b"\n").ok_or_else(broken)?.split(|byte| *byte == b'\n');
    let answers: Result<Vec<Answer>, _> = lines.map(serde_json::from_slice).collect();
    let mut answers = answers.map_err(|_| broken())?;
    match answers.pop() {
        Some(Answer::Failed { kind, why }) => Err(refusal_error(kind, &clean_foreign(&why))),
        Some(end @ Answer::End { .. }) => {
            answers.push(end);
            Ok(answers)
        }
        Some(Answer::File(_) | Answer::Line { .. }) | None => Err(broken()),
    }
}

fn refusal_error(kind: FinderFailure, why: &str) -> ToolError {
    match kind {
        FinderFailure::Pattern => ToolError::field("pattern", why),
        FinderFailure::Glob => ToolError::field("glob", why),
        FinderFailure::NotFound => ToolError::new(ErrorCode::NotFound, why),
        FinderFailure::Escapes => ToolError::new(ErrorCode::PathEscapes, why),
        FinderFailure::Unusable => ToolError::new(ErrorCode::Invalid, why),
    }
}

fn ending_error(ending: &Ending) -> ToolError {
    let (code, why) = match ending {
        Ending::TimedOut => (ErrorCode::TooSlow, "it took too long".to_owned()),
        Ending::LimitExceeded(limit) => {
            (ErrorCode::TooLarge, format!("it reached the limit of {limit}"))
        }
        Ending::StartFailed(failure) => (ErrorCode::Unavailable, failure.detail().to_owned()),
        Ending::Killed => (ErrorCode::Gone, "its sandbox was ended".to_owned()),
        Ending::Refused(why) => (ErrorCode::Denied, why.clone()),
        Ending::Lost(why) => (ErrorCode::Gone, why.clone()),
        Ending::Exited(_) | Ending::Signalled(_) | Ending::Cancelled => {
            (ErrorCode::System, format!("it ended early ({ending:?})"))
        }
    };
    ToolError::new(code, format!("the search was not finished: {why}"))
        .remedy("search a smaller directory")
}

/// Into a private directory of the sandbox, by a shell there: only it knows where one is.
async fn carried_in(place: &ToolPlace, call: &Call) -> Result<String, ToolError> {
    let mut command = Command::shell(INSTALL_SCRIPT);
    command.stdin = Stdin::Bytes(FINDER_PROGRAM.to_vec());
    command.wall_time = Some(FINDER_TIMEOUT);
    let ran = place.run(command, call).await?;
    let path = String::from_utf8(ran.stdout).ok().filter(|path| path.starts_with('/'));
    match (ran.outcome.success(), path) {
        (true, Some(path)) => Ok(path),
        _ => Err(ToolError::new(ErrorCode::Unavailable, "the search program cannot be installed")
            .remedy("the sandbox needs a shell and a temporary directory it can write to")),
    }
}

/// Installs it in the state directory of this user, once for all sessions.
fn at_home(session: &ToolSession) -> Result<String, ToolError> {
    let dir = session.options.state_dir.join("tools");
    let path = dir.join(format!("finder-{:016x}", fingerprint_build(FINDER_PROGRAM)));
    let kept = || -> std::io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        install_finder(&path)
    };
    kept().map_err(|error| {
        let message = format!("the search program cannot be kept in `{}`: {error}", dir.display());
        ToolError::new(ErrorCode::StateUnavailable, message)
    })?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        ToolError::new(ErrorCode::StateUnavailable, "the state directory is no text")
    })
}

/// Installs it atomically: it appears whole or not at all, also beside another process that does the same.
fn install_finder(path: &Path) -> std::io::Result<()> {
    write_atomically(path, &draft_name("finder"), FINDER_PROGRAM, 0o500, Survives::Process)
}

/// Tells one build from another (FNV-1a: an attacker who can write there needs no collision).
fn fingerprint_build(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
