//! The contract's clauses, word for word, and the page that shows which case checks each.

use std::fmt::Write;

use crate::coverage::coverage;
use crate::report::table::wrap_text;

/// One clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clause {
    /// Its number.
    pub id: &'static str,
    /// The part of the contract it is in.
    pub part: &'static str,
    /// What it says.
    pub text: &'static str,
}

macro_rules! clauses {
    ($($part:literal: $($id:literal $text:literal)*;)*) => {
        /// Every clause of the contract.
        pub const CONTRACT_CLAUSES: &[Clause] = &[$($(Clause { id: $id, part: $part, text: $text }),*),*];
    };
}

clauses! {
    "Admission":
    "C-01" "Nothing is created before the whole spec is admitted. What the backend cannot enforce is \
        refused in one answer that lists every refusal: feature, reason, remedy."
    "C-02" "Nothing is weakened silently. A limit is held at a level: exact (by the kernel), watched (measured, \
        and ended within a stated time) or not at all. A watched one is applied and told, in one line and \
        in the outcome; under `strict` it is refused. One that cannot be held, and any other missing \
        feature, is refused; a caller may give it up by name (`--without disk-limit`), and that is recorded."
    "C-03" "Default spec: no network but the sandbox's own loopback where the backend has one, a clean \
        environment, the workspace writable and everything else read-only or absent, all limits finite: \
        60 s wall, 30 s CPU (wall × cores where only a wall time was named), 512 MiB memory, 1 GiB disk, \
        128 processes, 16 MiB output; no default times for what is detached or at a terminal."
    "C-04" "Unknown fields, names that do not parse, paths that escape: refused, naming the field."
    "C-05" "A spec that arrives in a file or over a wire (snapshot, bundle, pool, teleport, API of another \
        user) names no host path, mount or given-up feature of its own: those come from the caller, \
        checked anew."
    "C-06" "No view of the host that a guest gets, read-only or not, contains Stockade's own state, \
        configuration, sockets, caches, or another sandbox's private files. Checked once, in the engine, \
        on the final spec, for every backend."
    "C-07" "What Stockade makes on the host is its user's alone from the first instant, whatever the umask.";
    "Execution":
    "C-10" "Exit codes are surfaced verbatim; a signal is reported as that signal; a program that never \
        started is a start failure (not found, not executable, bad directory …), never an exit code."
    "C-11" "Wall-clock expiry kills every process of the execution, descendants that forked, daemonised, \
        changed session or ignore signals included. The outcome says `timed_out`, exit code −1."
    "C-12" "Output past its cap is dropped, not buffered; the outcome says `truncated` and how many \
        bytes; the program keeps running and its exit is never lost."
    "C-13" "stdout and stderr stay apart, each in order, byte for byte, with sequence numbers. Any number \
        of subscribers; one who comes late gets the bounded history once and then the live stream; a slow \
        one slows nobody else and costs bounded memory."
    "C-14" "`exit` can be asked any number of times, by anyone, after the end too: always the same answer."
    "C-15" "`cancel` and `close` are idempotent and safe from anywhere. Dropping a handle kills, unless \
        detached."
    "C-16" "Every outcome comes from the mechanism (wait status, cgroup counter, timer), never from text. \
        Exceeding a limit names the limit. It belongs to one execution: the sandbox can be used again, and \
        what else runs in it goes on."
    "C-17" "Concurrent sandboxes share nothing: files, processes, IPC, network, ids, environment, clocks \
        of limits."
    "C-18" "Every resource of the host that a guest can take (memory in any form, descriptors, inotify, aio, \
        inodes, processes, disk) is bounded, or is a gap that `detect` states."
    "C-19" "No peer — guest, far side, container engine, registry — makes an operation outlive its deadline, \
        grow memory, or speak to the terminal: foreign text is cleaned where it enters.";
    "Files and workspace":
    "C-20" "A read-only workspace is read-only at the host's mount or device, whatever the guest does."
    "C-21" "File operations resolve beneath the root by the kernel (`openat2`, `RESOLVE_BENEATH`), never \
        by string comparison alone; symlink races lose. A path that escapes is refused by name."
    "C-22" "Absolute paths name the sandbox's own tree. Relative ones resolve against the workspace root."
    "C-23" "What a person approved is what is applied, bound by content; nothing the guest does in between \
        counts."
    "C-24" "What would make the host run code later is held back from apply unless a person names it. \
        Unknown dot-names and whatever a version-control system could take for its own are held back by \
        default."
    "C-25" "The guest reaches no socket on which a program of the host listens, in whatever view it lies."
    "C-26" "An image is files only: nothing in it starts, mounts or replaces anything of ours.";
    "End":
    "C-30" "When `destroy` returns, no process, mount, namespace, cgroup, socket, temporary file or lease \
        of that sandbox is left on the host, and that was checked, not assumed."
    "C-31" "If the engine is killed at any instant, the same holds within 5 seconds or at the next start \
        of any engine, whichever comes first."
    "C-32" "If `create` fails or its future is dropped, nothing is left either.";
    "Record":
    "C-40" "Each execution is a job record: id, tenant, backend, boundary, command, workspace, limits, \
        what was given up, started, stopped, outcome, usage, reference to its log. The start is recorded \
        before the program runs. Records are hash-chained: removal or change is detected."
    "C-41" "Secrets never appear in records, bindings, snapshots' metadata, errors or logs.";
    "Network":
    "C-51" "`egress`: exactly the listed names, addresses and ports are reached. Decision and connection use \
        the same resolved address. Everything else is refused and recorded."
    "C-53" "A bound secret is put in outside the walls and only towards its hosts; its placeholder going \
        anywhere else is blocked.";
}

/// Preface of the contract page, before the clauses.
const PAGE_PREFACE: &str = "\
# The contract

What every backend and every front end keeps, whatever the walls are made of. Clauses carry numbers;
tests, docs and code comments cite them. Below each clause stand the cases of the conformance kit that
check it; a case marked *walls* must also fail on the control backend, which has none.

This page is written from the kit's registry: `STOCKADE_WRITE_DOCS=1 scripts/nextest run -p stockade-tck
contract_page` brings it up to date, and the same test fails when it is not.
";

/// `docs/contract.md`, written from the registry.
pub fn page() -> String {
    let coverage = coverage();
    let mut page = String::from(PAGE_PREFACE);
    let mut part = "";
    // Writing to a string cannot fail.
    for (clause, cases) in &coverage.clauses {
        if clause.part != part {
            part = clause.part;
            let _ = write!(page, "\n## {part}\n");
        }
        let text = wrap_text(&format!("**{}** {}", clause.id, clause.text), 100).join("\n");
        let _ = write!(page, "\n{text}\n\n");
        for case in cases {
            let walls = if case.isolation { " *(walls)*" } else { "" };
            let _ = writeln!(page, "- {}{walls}", case.name);
        }
    }
    let _ = write!(
        page,
        "\n## Features\n\nEach feature, a case that needs it, and the case that proves its refusal.\n\n"
    );
    let _ = writeln!(page, "| feature | needed by | refused by |\n| --- | --- | --- |");
    for feature in &coverage.features {
        let needed = feature.needed_by.first().map_or("—", |case| case.name);
        let refused = feature.refused_by.map_or("—", |case| case.name);
        let _ = writeln!(page, "| `{}` | {needed} | {refused} |", feature.feature);
    }
    page
}
