//! `bash`: commands that are waited for, and commands that go on by themselves.

mod background;
mod cut;
mod exec;

use std::sync::Arc;

use stockade_core::{Bytes, Command, ErrorCode, JobId, Span, Stdin};

use crate::approval::{Detail, Facts, Programs};
use crate::arguments::{Bash, BashAction};
use crate::place::{Job, Place};
use crate::toolbox::Session;
use crate::{Call, ToolAnswer, ToolError};

/// Output limit of a command where the sandbox's own limit does not say.
const DEFAULT_MAX_OUTPUT: Bytes = Bytes::mib(16);
/// Wall time of a command in the background that has no limit.
const BACKGROUND_WALL_TIME: Span = Span::secs(24 * 60 * 60);

pub(crate) async fn bash(
    session: &Session,
    args: Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    match args.action {
        BashAction::Exec => exec::exec(session, &place, &args, call).await,
        BashAction::Start => background::start(session, &place, &args, call).await,
        BashAction::Status => background::status(&*job(&place, &args)?, &args, call).await,
        BashAction::Logs => background::logs(&*job(&place, &args)?, &args, call).await,
        BashAction::Write => {
            let job = job(&place, &args)?;
            background::write(session, &place, &job, &args, call).await
        }
        BashAction::Stop => background::stop(&*job(&place, &args)?, &args, call).await,
        BashAction::List => background::list(&place),
    }
}

/// The job that is meant. An id that leads nowhere says so.
fn job(place: &Place, args: &Bash) -> Result<Arc<Job>, ToolError> {
    let id = args.job_id.as_ref().ok_or_else(|| ToolError::field("job_id", "is missing"))?;
    place.jobs.get(id).ok_or_else(|| {
        let message = format!("there is no job `{id}` in sandbox `{}`", place.id);
        ToolError::new(ErrorCode::NotFound, message)
            .remedy("`bash` with action `list` names those there are; old ones are forgotten")
    })
}

/// What a line comes to depends on these as much as on itself.
fn details(place: &Place, args: &Bash) -> Vec<Detail> {
    let dir = args.working_directory.as_ref().map(|dir| place.directory(Some(dir)));
    let dir = dir.map(|dir| Detail::open("directory", dir));
    let env =
        args.env.iter().map(|(name, value)| Detail::private(format!("variable {name}"), value));
    let input = args.input.as_ref().map(|input| Detail::private("input", input));
    dir.into_iter().chain(env).chain(input).collect()
}

/// Asks whether the command may run, and makes it ready under a fresh record.
async fn approved(
    session: &Session,
    place: &Place,
    args: &Bash,
    call: &Call,
) -> Result<(JobId, Command, String), ToolError> {
    let line = args.command.clone().filter(|line| !line.trim().is_empty());
    let line = line.ok_or_else(|| ToolError::field("command", "is missing"))?;
    let job = place.engine.fresh_job()?;
    // Before anybody is asked: what would be refused anyway is no question.
    place.refuse_outside(&args.working_directory.iter().collect::<Vec<_>>()).await?;
    let programs = Programs::of_line(&line)
        .in_chosen_env(!args.env.is_empty())
        .in_chosen_dir(args.working_directory.is_some());
    let facts = Facts { details: details(place, args), ..place.facts("bash", programs, &[]) };
    session.pass(place, Some(&job), facts, call).await?;
    let mut command = Command::program([place.shell().await, "-c", &line]);
    command.env = args.env.clone();
    command.dir = args.working_directory.clone();
    if place.spec.limits.output.is_none() {
        // Kept on disk, so there is always a bound.
        command.output = Some(DEFAULT_MAX_OUTPUT);
    }
    command.wall_time = args.timeout_ms.map(|ms| Span::millis(ms.max(1)));
    if args.action == BashAction::Start {
        command.wall_time = command.wall_time.or(Some(BACKGROUND_WALL_TIME));
        command.stdin = Stdin::Stream;
    } else if let Some(input) = &args.input {
        command.stdin = Stdin::Bytes(input.clone().into_bytes());
    }
    Ok((job, command, line))
}
