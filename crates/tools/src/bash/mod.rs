//! `bash`: commands that are waited for, and commands that go on by themselves.

mod background;
mod cut;
mod exec;

use std::sync::Arc;

use stockade_core::{Bytes, Command, ErrorCode, JobId, Span, Stdin};

use crate::approval::{Detail, Facts, Programs};
use crate::arguments::{Bash, BashAction};
use crate::place::{ToolJob, ToolPlace};
use crate::toolbox::ToolSession;
use crate::{Call, ToolAnswer, ToolError};

/// Output limit of a command where the sandbox's own limit does not say.
const DEFAULT_MAX_OUTPUT: Bytes = Bytes::mib(16);
/// Wall time of a command in the background that has no limit.
const BACKGROUND_WALL_TIME: Span = Span::secs(24 * 60 * 60);

pub(crate) async fn run_bash(
    session: &ToolSession,
    args: Bash,
    call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    match args.action {
        BashAction::Exec => exec::run_command(session, &place, &args, call).await,
        BashAction::Start => background::start_job(session, &place, &args, call).await,
        BashAction::Status => {
            background::report_status(&*find_job(&place, &args)?, &args, call).await
        }
        BashAction::Logs => background::read_logs(&*find_job(&place, &args)?, &args, call).await,
        BashAction::Write => {
            let job = find_job(&place, &args)?;
            background::write_job_stdin(session, &place, &job, &args, call).await
        }
        BashAction::Stop => background::stop_job(&*find_job(&place, &args)?, &args, call).await,
        BashAction::List => background::list_jobs(&place),
    }
}

/// The job that is meant. An id that leads nowhere says so.
fn find_job(place: &ToolPlace, args: &Bash) -> Result<Arc<ToolJob>, ToolError> {
    let id = args.job_id.as_ref().ok_or_else(|| ToolError::field("job_id", "is missing"))?;
    place.jobs.get(id).ok_or_else(|| {
        let message = format!("there is no job `{id}` in sandbox `{}`", place.id);
        ToolError::new(ErrorCode::NotFound, message)
            .remedy("`bash` with action `list` names those there are; old ones are forgotten")
    })
}

/// What a line comes to depends on these as much as on itself.
fn collect_details(place: &ToolPlace, args: &Bash) -> Vec<Detail> {
    let dir = args.working_directory.as_ref().map(|dir| place.directory(Some(dir)));
    let dir = dir.map(|dir| Detail::open("directory", dir));
    let env =
        args.env.iter().map(|(name, value)| Detail::private(format!("variable {name}"), value));
    let input = args.input.as_ref().map(|input| Detail::private("input", input));
    dir.into_iter().chain(env).chain(input).collect()
}

/// Asks whether the command may run, and makes it ready under a fresh record.
async fn approve_command(
    session: &ToolSession,
    place: &ToolPlace,
    args: &Bash,
    call: &Call,
) -> Result<(JobId, Command, String), ToolError> {
    let line = args.command.clone().filter(|line| !line.trim().is_empty());
    let line = line.ok_or_else(|| ToolError::field("command", "is missing"))?;
    let job = place.engine.fresh_job()?;
    // Before a person is asked: what would be refused anyway is no question.
    place.refuse_outside(&args.working_directory.iter().collect::<Vec<_>>()).await?;
    let programs = Programs::of_line(&line)
        .in_chosen_env(!args.env.is_empty())
        .in_chosen_dir(args.working_directory.is_some());
    let facts =
        Facts { details: collect_details(place, args), ..place.facts("bash", programs, &[]) };
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
