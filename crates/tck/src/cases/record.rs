//! The record of each execution: there before the program, true afterwards, without secrets (C-40,
//! C-41).

use std::path::Path;

use stockade_core::{Command, Ending, ErrorCode, Feature, JobId, Outcome, Span, Stdin};
use stockade_engine::{Event, Job};

use crate::case::{case, check, same};
use crate::kit::probe_command;
use crate::{Case, Kit, Stop, Verdict};

pub(super) const RECORD_CASES: &[Case] = &[
    case!("each execution has a record of who ran what where", "C-40", check_record_fields),
    case!("the start is recorded before the program runs", "C-40", check_start_recorded_first),
    case!(
        "the record's outcome is the true one, however it ended",
        "C-40",
        check_recorded_outcomes
    ),
    case!("the chain of records is whole after all kinds of ends", "C-40", check_record_chain),
    case!("executions of two tenants are told apart", "C-40", check_tenant_records),
    case!(
        "no value of the environment is ever written down",
        "C-41",
        check_environment_not_recorded
    ),
    case!("no input is ever written down", "C-41", check_stdin_not_recorded)
        .needs(&[Feature::Stdin]),
    case!("no error tells a secret", "C-41", check_errors_hold_no_secret),
];

fn find_job(kit: &Kit, job: &JobId) -> Verdict<Job> {
    let found = kit.engine().journal().job(job)?;
    found.ok_or_else(|| Stop::Failed(format!("expected a record of {job}, saw none")))
}

fn find_recorded_outcome(job: &Job) -> Option<&Outcome> {
    job.stopped.as_ref()?.event.outcome()
}

async fn check_record_fields(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.tenant = "team-a".parse()?;
    spec.labels.insert("purpose".into(), "to be told".into());
    let execution = kit.start(spec, probe_command(["exit", "6"])).await?;
    execution.outcome().await;
    let Event::Started { sandbox, tenant, backend, command, labels, .. } =
        find_job(&kit, execution.job())?.started.event
    else {
        return Err(Stop::failed("expected the record of a start, saw another"));
    };
    same!("sandbox", &sandbox, execution.sandbox());
    same!("tenant", tenant.as_str(), "team-a");
    same!("backend", backend, kit.backend().name());
    same!("command", command, ["./probe", "exit", "6"].map(String::from).to_vec());
    same!("label", labels.get("purpose").map(String::as_str), Some("to be told"));
    Ok(())
}

async fn check_start_recorded_first(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let execution = room.start_ready(["sleep", "600000"]).await?;
    let job = find_job(&kit, execution.job())?;
    check!(job.stopped.is_none(), "expected no end yet, saw {:?}", job.stopped);
    execution.close().await?;
    Ok(())
}

async fn check_recorded_outcomes(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    let mut slow = probe_command(["sleep", "600000"]);
    slow.wall_time = Some(Span::millis(500));
    let commands = [
        probe_command(["exit", "13"]),
        probe_command(["signal-self", "11"]),
        Command::program(["./no-such-program"]),
        slow,
    ];
    for command in commands {
        let execution = room.start(command).await?;
        let outcome = execution.outcome().await;
        same!(
            "the recorded outcome",
            find_recorded_outcome(&find_job(&kit, execution.job())?),
            Some(&outcome)
        );
    }
    let cancelled = room.start_ready(["sleep", "600000"]).await?;
    cancelled.close().await?;
    let ending = find_recorded_outcome(&find_job(&kit, cancelled.job())?)
        .map(|outcome| outcome.ending.clone());
    same!("the recorded ending", ending, Some(Ending::Cancelled));
    Ok(())
}

async fn check_record_chain(kit: Kit) -> Verdict {
    let room = kit.room().await?;
    room.run(["exit", "1"]).await?;
    drop(room.start(probe_command(["sleep", "600000"])).await?);
    kit.run_with(kit.spec(), Command::program(["./no-such-program"])).await?;
    kit.engine().close().await?;
    let verdict = kit.engine().journal().verify()?;
    check!(verdict.is_clean(), "expected a whole chain, saw {verdict:?}");
    Ok(())
}

async fn check_tenant_records(kit: Kit) -> Verdict {
    for (tenant, code) in [("one", "1"), ("two", "2")] {
        let mut spec = kit.spec();
        spec.tenant = tenant.parse()?;
        kit.run_with(spec, probe_command(["exit", code])).await?;
    }
    for (tenant, code) in [("one", 1), ("two", 2)] {
        let filter =
            stockade_engine::Filter { tenant: Some(tenant.parse()?), ..Default::default() };
        let jobs =
            kit.engine().journal().jobs(filter)?.collect::<stockade_core::Result<Vec<_>>>()?;
        let endings: Vec<_> = jobs
            .iter()
            .filter_map(find_recorded_outcome)
            .map(|outcome| outcome.ending.clone())
            .collect();
        same!(format!("endings of tenant {tenant}"), endings, vec![Ending::Exited(code)]);
    }
    Ok(())
}

/// Secret that no record may hold.
const SECRET_VALUE: &str = "correct-horse-battery-staple";

/// Stops the case if the secret is in any file below this directory.
fn kept_from(directory: &Path) -> Verdict {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            kept_from(&path)?;
            continue;
        }
        let held = std::fs::read(&path).unwrap_or_default();
        let found = held.windows(SECRET_VALUE.len()).any(|part| part == SECRET_VALUE.as_bytes());
        check!(!found, "expected no secret in the state directory, saw it in {}", path.display());
    }
    Ok(())
}

async fn check_environment_not_recorded(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.env.insert("TOKEN".parse()?, SECRET_VALUE.into());
    let room = kit.room_with(spec.clone()).await?;
    let mut command = probe_command(["exit", "0"]);
    command.env.insert("PASSWORD".parse()?, SECRET_VALUE.into());
    room.run_command(command).await?.exited(0)?;
    kept_from(&kit.state())?;
    kit.run_with(spec, Command::program(["./no-such-program"])).await?;
    kit.engine().close().await?;
    kept_from(&kit.state())
}

async fn check_stdin_not_recorded(kit: Kit) -> Verdict {
    let mut command = probe_command(["echo"]);
    command.stdin = Stdin::Bytes(SECRET_VALUE.into());
    let ran = kit.run_with(kit.spec(), command).await?.exited(0)?;
    same!("what came back", String::from_utf8_lossy(&ran.stdout), SECRET_VALUE);
    kept_from(&kit.state())
}

async fn check_errors_hold_no_secret(kit: Kit) -> Verdict {
    let mut spec = kit.spec();
    spec.env.insert("TOKEN".parse()?, format!("{SECRET_VALUE}\0"));
    let Err(error) = kit.engine().create(spec).await else {
        return Err(Stop::failed("expected a zero byte to be refused, but it was taken"));
    };
    same!("the refusal's code", error.code(), ErrorCode::Refused);
    check!(
        !format!("{error} {error:?}").contains(SECRET_VALUE),
        "expected no secret, saw it in {error}"
    );
    kept_from(&kit.state())
}
