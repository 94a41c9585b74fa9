//! `stockade audit`: reads the journal, checks it, and removes its oldest files where that is asked for.

mod connections;
mod export;
pub mod follow;
mod select;

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use stockade_core::{
    Bytes, Ending, Error, ErrorCode, JobId, OBSERVE_WARNING, Outcome, Result, Span, Workspace,
};
use stockade_engine::{
    Break, Damage, Event, Filter, Job, Journal, JournalOptions, Prune, Record, StateDir, Timestamp,
    Verdict,
};

use crate::args::prefix::by_prefix;
use crate::config::Settings;
use crate::terminal::printer::{Printer, Tone};
use crate::terminal::table::{Cell, Table};

use connections::{JobConnections, ShownJob};
use export::{ExportFormat, export_jobs};
use select::SelectArgs;

const SHOW_OPERATION: &str = "audit show";

/// What to do with the journal.
#[derive(Debug, Args)]
pub struct AuditArgs {
    #[command(subcommand)]
    verb: AuditVerb,
}

#[derive(Debug, Subcommand)]
enum AuditVerb {
    /// List runs, the newest first.
    List {
        #[command(flatten)]
        select: SelectArgs,
        /// Maximum number of runs.
        #[arg(long, value_name = "N", default_value_t = 50, conflicts_with = "all")]
        limit: usize,
        /// List all runs.
        #[arg(long)]
        all: bool,
    },
    /// Print runs as they end.
    Follow {
        #[command(flatten)]
        select: SelectArgs,
    },
    /// Export runs for other programs, in the order in which they ended.
    Export {
        #[command(flatten)]
        select: SelectArgs,
        /// JSON lines, or a table.
        #[arg(long, value_name = "FORMAT", default_value = "json")]
        format: ExportFormat,
    },
    /// Show everything about one job.
    Show {
        /// The job's id, as `audit list` shows it, or the beginning of it.
        #[arg(value_name = "JOB")]
        job: JobId,
    },
    /// Remove the oldest files of the journal, which is recorded. The newest 64 MiB are always kept.
    Prune {
        /// Remove files whose last record is older than this.
        #[arg(long, value_name = "TIME", required_unless_present = "keep")]
        older_than: Option<Span>,
        /// Remove files until the rest is no larger than this.
        #[arg(long, value_name = "SIZE")]
        keep: Option<Bytes>,
        /// Only print what would be removed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Check the hash chain: exit code 0 if no record was changed or removed, else 1 and the place.
    Verify,
}

/// The journal of this user.
pub fn open_journal(printer: &Printer) -> Result<Journal> {
    let settings = Settings::load(None, printer)?;
    let state = StateDir::open(settings.state_dir()?)?;
    Journal::open(&state, JournalOptions::default())
}

/// Reads or checks the journal.
pub fn audit(args: AuditArgs, printer: &Printer) -> Result<i32> {
    let journal = open_journal(printer)?;
    match args.verb {
        AuditVerb::List { select, limit, all } => {
            list_jobs(&journal, &select, if all { usize::MAX } else { limit }, printer)
        }
        AuditVerb::Follow { select } => follow::follow_jobs(&journal, &select, printer),
        AuditVerb::Export { select, format } => export_jobs(&journal, &select, format, printer),
        AuditVerb::Show { job } => show_job(&journal, &job, printer),
        AuditVerb::Prune { older_than, keep, dry_run } => {
            prune_journal(&journal, older_than, keep, dry_run, printer)
        }
        AuditVerb::Verify => Ok(report_verdict(&journal.verify()?, printer)),
    }
}

fn list_jobs(
    journal: &Journal,
    select: &SelectArgs,
    limit: usize,
    printer: &Printer,
) -> Result<i32> {
    let jobs = journal.newest_jobs(select.filter())?;
    let mut jobs =
        jobs.filter(|job| job.as_ref().is_ok_and(|job| select.admits(job)) || job.is_err());
    let shown: Vec<Job> = jobs.by_ref().take(limit).collect::<Result<_>>()?;
    let more = shown.len() == limit && jobs.next().transpose()?.is_some();
    if printer.is_json() {
        printer.json(&shown);
    } else if shown.is_empty() {
        printer.note(if select.is_all() { "nothing was run yet" } else { "no runs match" });
        return Ok(0);
    } else {
        print_job_table(&shown, printer);
    }
    if more {
        printer.note(&format!("only the newest {limit} are shown (--limit N, --all)"));
    }
    Ok(0)
}

fn print_job_table(jobs: &[Job], printer: &Printer) {
    let mut table = Table::new(["JOB", "STARTED (UTC)", "TENANT", "RESULT", "COMMAND"]).cut();
    jobs.iter().filter_map(build_job_row).for_each(|row| table.row(row));
    printer.data(&table.render(printer));
}

fn build_job_row(job: &Job) -> Option<[Cell; 5]> {
    let Event::Started { job: id, tenant, command, .. } = &job.started.event else {
        return None;
    };
    let (tone, result) = describe_result(job);
    Some([
        Cell::plain(id.as_str()),
        Cell::plain(to_the_second(job.started.time)),
        Cell::plain(tenant.as_str()),
        Cell::toned(tone, result),
        Cell::plain(format_command_line(command)),
    ])
}

fn to_the_second(time: Timestamp) -> String {
    time.to_string().chars().take(19).collect::<String>().replace('T', " ")
}

/// How a job ended, in a word or two.
fn describe_result(job: &Job) -> (Tone, String) {
    match find_outcome(job) {
        None if job.stopped.is_some() => (Tone::Bad, "unknown end".into()),
        None => (Tone::Fair, "no end".into()),
        Some(outcome) if outcome.success() => (Tone::Good, "exit 0".into()),
        Some(outcome) => (Tone::Bad, describe_ending(&outcome.ending)),
    }
}

fn find_outcome(job: &Job) -> Option<&Outcome> {
    job.stopped.as_ref()?.event.outcome()
}

fn describe_ending(ending: &Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("exit {code}"),
        Ending::Signalled(signal) => signal.name(),
        Ending::StartFailed(_) => "not started".into(),
        Ending::LimitExceeded(kind) => format!("{kind} limit"),
        Ending::TimedOut => "timed out".into(),
        Ending::Cancelled => "cancelled".into(),
        Ending::Killed => "killed".into(),
        Ending::Refused(_) => "refused".into(),
        Ending::Lost(_) => "lost".into(),
    }
}

/// The command as a person would type it.
fn format_command_line(argv: &[String]) -> String {
    let quoted = argv.iter().map(|word| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn show_job(journal: &Journal, id: &JobId, printer: &Printer) -> Result<i32> {
    let found = match journal.job(id)? {
        Some(job) => Some(job),
        None => by_beginning(journal, id)?,
    };
    let Some(job) = found else {
        return Err(Error::new(
            ErrorCode::NotFound,
            SHOW_OPERATION,
            format!("there is no job `{id}`"),
        )
        .remedy("`stockade audit list` shows the ones there are"));
    };
    let connections = JobConnections::find(journal, &job)?;
    let shown = ShownJob { job, connections };
    if printer.is_json() {
        printer.json(&shown);
    } else {
        printer.data(&build_details_table(&shown).render(printer));
    }
    Ok(0)
}

/// The only job whose id begins so.
fn by_beginning(journal: &Journal, given: &JobId) -> Result<Option<Job>> {
    let all: Vec<Job> = journal.jobs(Filter::default())?.collect::<Result<_>>()?;
    let ids = all.iter().filter_map(|job| job.started.event.job());
    let meant = by_prefix("jobs", given.as_str(), ids, SHOW_OPERATION)?.cloned();
    Ok(all.into_iter().find(|job| meant.is_some() && job.started.event.job() == meant.as_ref()))
}

fn build_details_table(ShownJob { job, connections }: &ShownJob) -> Table<2> {
    let mut table = Table::new(["FIELD", "VALUE"]);
    let mut add = |name: &str, value: Vec<String>| {
        if !value.is_empty() {
            table.row([Cell::plain(name), Cell::lines(value)]);
        }
    };
    if let Event::Started { job, sandbox, tenant, backend, boundary, command, workspace, .. } =
        &job.started.event
    {
        add("job", vec![job.to_string()]);
        add("sandbox", vec![sandbox.to_string()]);
        add("tenant", vec![tenant.to_string()]);
        add("backend", vec![format!("{backend}, boundary {boundary}")]);
        add("command", vec![format_command_line(command)]);
        add("workspace", vec![workspace_text(workspace)]);
    }
    if let Event::Started { image, without, labels, trees, observes, .. } = &job.started.event {
        add("unsafe", observes.then(|| OBSERVE_WARNING.to_owned()).into_iter().collect());
        add("image", image.iter().map(ToString::to_string).collect());
        add("shown", trees.iter().cloned().collect());
        add("without", without.iter().map(ToString::to_string).collect());
        add("labels", labels.iter().map(|(key, value)| format!("{key}={value}")).collect());
    }
    add("decided", job.decided.iter().filter_map(describe_decision).collect());
    add("started", vec![job.started.time.to_string()]);
    let (known, stopped) = (find_outcome(job).is_some(), job.stopped.iter());
    let when = if known { "stopped" } else { "found ended" };
    add(when, stopped.map(|record| record.time.to_string()).collect());
    add("result", vec![describe_result(job).1]);
    if job.stopped.is_some() && find_outcome(job).is_none() {
        add("reason", vec!["its engine died before it: it ended at an unknown time".into()]);
    }
    if let Some(outcome) = find_outcome(job) {
        add("reason", crate::report::reasons::describe_outcome(outcome));
        add("used", format_usage(outcome));
        add(
            "output",
            vec![format!("{} bytes, errors {} bytes", outcome.stdout.bytes, outcome.stderr.bytes)],
        );
    }
    add("network", connections.lines());
    if let Some(log) = find_output_log(job) {
        add("log", vec![log.to_owned()]);
    }
    add("record", vec![format!("{} {}", job.started.seq, job.started.hash)]);
    table
}

/// Where its output is kept, below the state directory. `stockade logs` reads it.
fn find_output_log(job: &Job) -> Option<&str> {
    job.stopped.as_ref()?.event.log()
}

/// Who let it through.
fn describe_decision(record: &Record) -> Option<String> {
    let Event::Decided { asked, rule, .. } = &record.event else {
        return None;
    };
    Some(if *asked { format!("by a person ({rule})") } else { format!("by rule ({rule})") })
}

fn workspace_text(workspace: &Workspace) -> String {
    match workspace {
        Workspace::Ephemeral => "empty".into(),
        Workspace::Local(dir) => dir.to_string(),
        Workspace::Overlay(layers) => format!("a view of {}", layers.lower),
    }
}

fn format_usage(outcome: &Outcome) -> Vec<String> {
    let usage = &outcome.usage;
    let cpu = usage.cpu_ms.map(|ms| format!("{ms} ms of CPU"));
    let memory = usage.peak_memory_bytes.map(|bytes| format!("{} KiB of memory", bytes / 1024));
    let all = [Some(format!("{} ms", usage.wall_ms)), cpu, memory];
    vec![all.into_iter().flatten().collect::<Vec<_>>().join(", ")]
}

fn prune_journal(
    journal: &Journal,
    older_than: Option<Span>,
    keep: Option<Bytes>,
    dry_run: bool,
    printer: &Printer,
) -> Result<i32> {
    let before = older_than.and_then(|age| SystemTime::now().checked_sub(Duration::from(age)));
    let which = Prune { before, larger_than: keep };
    let removed = if dry_run { journal.prunable(which)? } else { journal.prune(which)? };
    if printer.is_json() {
        printer.json(&removed);
        return Ok(0);
    }
    let verb = if dry_run { "would be removed" } else { "removed" };
    let (files, bytes) = (removed.files, Bytes(removed.bytes));
    printer.data(&format!("{files} files of {bytes} in all {verb}\n"));
    Ok(0)
}

fn report_verdict(verdict: &Verdict, printer: &Printer) -> i32 {
    let (code, text) = match verdict {
        Verdict::Clean { records, head } => {
            let clean = printer.tone(Tone::Good, "clean");
            (0, format!("{clean}: {records} records, the last one {head}\n"))
        }
        Verdict::Broken(place) => {
            (1, format!("{}: {}\n", printer.tone(Tone::Bad, "broken"), format_break(place)))
        }
    };
    if printer.is_json() {
        printer.json(verdict);
    } else {
        printer.data(&text);
    }
    code
}

fn format_break(Break { segment, line, seq, what }: &Break) -> String {
    let what = match what {
        Damage::Changed => "was changed",
        Damage::Removed => "was removed",
        Damage::Reordered => "is out of order",
        Damage::Truncated => "and what follows in its file was cut off",
        Damage::Malformed => "is not a record",
    };
    format!("record {seq} ({segment} line {line}) {what}")
}
