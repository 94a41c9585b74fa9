//! Why a command ended other than by itself, in one line each.

use stockade_core::{
    Ending, Enforcement, LimitKind, Limits, NO_NETWORK_HINT, Network, OBSERVE_WARNING, Outcome,
    StreamReport, describe_denied_hosts, describe_observed_rules,
};

use crate::terminal::printer::Printer;
use crate::toolchains::{FoundToolchain, explain_read_only_git};

/// Warns of a network that lets everything through, also where the answer is JSON.
pub fn warn_of_network(network: &Network, printer: &Printer) {
    if network.observes() {
        printer.note(&format!("warning: {OBSERVE_WARNING}"));
    }
}

/// Says why commits in a worktree will fail although its files are changed in place.
pub fn note_read_only_git(found: &[FoundToolchain], printer: &Printer) {
    if let (Some(line), false) = (explain_read_only_git(found), printer.is_json()) {
        printer.note(&line);
    }
}

/// One line for each thing that the exit code alone does not tell.
pub fn describe_outcome(outcome: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = describe_ending(outcome).into_iter().collect();
    lines.extend(describe_truncation(outcome));
    lines.extend(outcome.limits_reached.iter().map(|kind| describe_reached_limit(outcome, *kind)));
    lines.extend(describe_denied_hosts(&outcome.network_denied));
    lines.extend(outcome.network_unreachable.then(|| NO_NETWORK_HINT.to_owned()));
    lines.extend(outcome.network_observed.as_deref().map(describe_observed_rules));
    lines
}

fn describe_ending(outcome: &Outcome) -> Option<String> {
    match &outcome.ending {
        Ending::Exited(_) | Ending::Signalled(_) | Ending::Cancelled => None,
        Ending::StartFailed(failure) => Some(format!("cannot start: {}", failure.detail())),
        Ending::LimitExceeded(kind) => Some(format!(
            "ended: the {kind} limit{} was exceeded{}",
            format_limit_value(outcome, *kind),
            suggest_flag(*kind)
        )),
        Ending::TimedOut => {
            let kind = LimitKind::WallTime;
            Some(format!(
                "timed out: the {kind} limit{} ran out{}",
                format_limit_value(outcome, kind),
                suggest_flag(kind)
            ))
        }
        Ending::Killed => Some("ended: another process ended the sandbox on purpose".into()),
        Ending::Refused(reason) => Some(format!("refused: {reason}")),
        Ending::Lost(reason) => Some(format!("lost: {reason}")),
    }
}

fn describe_truncation(outcome: &Outcome) -> Option<String> {
    let dropped = |name: &str, stream: &StreamReport| {
        stream.truncated().then(|| format!("{} bytes of {name}", stream.dropped))
    };
    let both = [dropped("stdout", &outcome.stdout), dropped("stderr", &outcome.stderr)];
    let lost: Vec<_> = both.into_iter().flatten().collect();
    (!lost.is_empty()).then(|| {
        let kind = LimitKind::Output;
        let what = lost.join(" and ");
        format!(
            "truncated: {what} dropped beyond the {kind} limit{}{}",
            format_limit_value(outcome, kind),
            suggest_flag(kind)
        )
    })
}

/// A limit that the command ran into and was not ended for.
fn describe_reached_limit(outcome: &Outcome, kind: LimitKind) -> String {
    format!(
        "note: the {kind} limit{} was reached{}",
        format_limit_value(outcome, kind),
        suggest_flag(kind)
    )
}

/// One line about the limits that were asked for and are only watched; nothing if all are exact (C-02).
pub fn describe_watched_limits(asked: &Limits, limits: &[Enforcement]) -> Option<String> {
    let told = limits.iter().filter_map(|enforcement| match enforcement {
        Enforcement::Partly { limit, value, gap, .. } if asked.asks_for(*limit) => {
            Some(format!("the {limit} limit of {value} is watched, not exact: {gap}"))
        }
        Enforcement::Fully { .. } | Enforcement::Partly { .. } | Enforcement::NotAtAll { .. } => {
            None
        }
    });
    let told: Vec<_> = told.collect();
    (!told.is_empty()).then(|| format!("note: {}", told.join("; ")))
}

/// ` of 512m`, where the value is known.
fn format_limit_value(outcome: &Outcome, kind: LimitKind) -> String {
    let value = outcome.limits.iter().find_map(|enforcement| match enforcement {
        Enforcement::Fully { limit, value, .. } | Enforcement::Partly { limit, value, .. } => {
            (*limit == kind).then_some(value)
        }
        Enforcement::NotAtAll { .. } => None,
    });
    value.map(|value| format!(" of {value}")).unwrap_or_default()
}

fn suggest_flag(kind: LimitKind) -> String {
    match kind {
        // A wall time implies a CPU time; with more of the latter alone the former runs out next.
        LimitKind::CpuTime => " (raise it with --timeout, or --cpu-time if you set that)".into(),
        LimitKind::CpuRate
        | LimitKind::WallTime
        | LimitKind::Memory
        | LimitKind::Disk
        | LimitKind::Processes
        | LimitKind::OpenFiles
        | LimitKind::Output
        | LimitKind::Fuel => format!(" (raise it with {})", limit_flag(kind)),
    }
}

/// The flag that sets a limit.
pub const fn limit_flag(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::CpuRate => "--cpu",
        LimitKind::CpuTime => "--cpu-time",
        LimitKind::WallTime => "--timeout",
        LimitKind::Memory => "--mem",
        LimitKind::Disk => "--disk",
        LimitKind::Processes => "--pids",
        LimitKind::OpenFiles => "--open-files",
        LimitKind::Output => "--max-output",
        LimitKind::Fuel => "--fuel",
    }
}
