//! The user's rules, and what they say about facts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use stockade_core::{BackendName, Boundary, Span};

use super::facts::{Facts, NetworkFact, Programs};
use crate::pattern;

/// The user's rules: the first that matches decides. Each program of a line is judged by itself, and
/// the strictest verdict holds for the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ApprovalConfig {
    /// How long a person may take to answer; no answer is a no. Absent: two minutes.
    pub ask_timeout: Option<Span>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// What it says.
    pub verdict: RuleVerdict,
    /// What it is called in records. Absent: its number.
    #[serde(default)]
    pub name: Option<String>,
    /// What it is about. Everything that is given must fit.
    #[serde(default, rename = "match")]
    pub on: Match,
}

/// What a rule is about. What is left out fits everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Match {
    /// Tools by name.
    pub tools: Option<Vec<String>>,
    /// Programs as they are called. `allow` fits the very word only; `deny` and `ask` fit a path to
    /// a program of that name too, and an opaque line could be anything: there `deny` becomes `ask`.
    pub programs: Option<Vec<String>>,
    /// Arguments one by one, with `*` within a word; `...` at the end stands for any that follow.
    pub arguments: Option<Vec<String>>,
    /// Paths of file tools, as globs from the workspace on. `allow` wants all of them to fit, the
    /// others one. Says nothing about what programs open: that is what walls are for.
    pub paths: Option<Vec<String>>,
    /// What may be reached.
    pub network: Option<Vec<NetworkFact>>,
    /// Backends by name; `local` is execution without walls.
    pub backends: Option<Vec<BackendName>>,
    /// Boundaries; `none` is execution without walls.
    pub boundaries: Option<Vec<Boundary>>,
}

/// What a rule says, the strictest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleVerdict {
    /// Go ahead.
    Allow,
    /// Ask a person.
    Ask,
    /// Never.
    Deny,
}

/// A verdict and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// What is to be done.
    pub verdict: RuleVerdict,
    /// The rule's name or number, or `default`.
    pub rule: String,
}

/// Programs whose arguments say what else is started.
const STARTS_OTHERS: &[&str] = &[
    "ash",
    "awk",
    "bash",
    "bun",
    "busybox",
    "bwrap",
    "chroot",
    "chrt",
    "dash",
    "deno",
    "doas",
    "env",
    "expect",
    "fakeroot",
    "find",
    "flock",
    "gawk",
    "gdb",
    "ionice",
    "ksh",
    "ld.so",
    "ltrace",
    "lua",
    "make",
    "mawk",
    "nice",
    "node",
    "nohup",
    "npx",
    "nsenter",
    "numactl",
    "parallel",
    "perf",
    "perl",
    "php",
    "pkexec",
    "prlimit",
    "proot",
    "pypy",
    "python",
    "python3",
    "ruby",
    "run-parts",
    "runuser",
    "screen",
    "script",
    "setpriv",
    "setsid",
    "sh",
    "ssh",
    "start-stop-daemon",
    "stdbuf",
    "stockade",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "tclsh",
    "timeout",
    "tmux",
    "toybox",
    "unshare",
    "valgrind",
    "vi",
    "vim",
    "watch",
    "xargs",
    "xvfb-run",
    "zsh",
];

impl ApprovalConfig {
    /// How long a person may take to answer.
    pub fn patience(&self) -> Duration {
        self.ask_timeout.map_or(Duration::from_secs(120), Duration::from)
    }

    /// What the rules say: the strictest over everything that would be started.
    pub fn judge(&self, facts: &Facts) -> Ruling {
        let units = match &facts.programs {
            Programs::Known(argvs) if argvs.is_empty() => vec![Unit::Nothing],
            Programs::Known(argvs) => argvs.iter().map(|argv| Unit::Program(argv)).collect(),
            Programs::Opaque(_) => vec![Unit::Anything],
        };
        let rulings = units.into_iter().map(|unit| self.apply_first_rule(facts, unit));
        let strictest = rulings.max_by_key(|ruling| ruling.verdict);
        let ruling = strictest.unwrap_or_else(|| default_ruling(facts));
        match ruling.verdict {
            RuleVerdict::Allow if facts.person_only => {
                let rule = format!("{}, but only a person may allow this", ruling.rule);
                Ruling { verdict: RuleVerdict::Ask, rule }
            }
            RuleVerdict::Allow | RuleVerdict::Ask | RuleVerdict::Deny => ruling,
        }
    }

    fn apply_first_rule(&self, facts: &Facts, unit: Unit<'_>) -> Ruling {
        let numbered = self.rules.iter().enumerate();
        let mut hits = numbered.filter_map(|(at, rule)| {
            let verdict = rule.verdict_on(facts, unit)?;
            let name = rule.name.clone().unwrap_or_else(|| format!("rule {}", at + 1));
            Some(Ruling { verdict, rule: name })
        });
        hits.next().unwrap_or_else(|| default_ruling(facts))
    }
}

/// What is judged by itself.
#[derive(Clone, Copy)]
enum Unit<'a> {
    /// A tool that starts no program.
    Nothing,
    /// One program with its arguments.
    Program(&'a [String]),
    /// A line that may start anything.
    Anything,
}

fn default_ruling(facts: &Facts) -> Ruling {
    let free = facts.boundary != Boundary::None && !facts.widens;
    let verdict = if free { RuleVerdict::Allow } else { RuleVerdict::Ask };
    Ruling { verdict, rule: "default".into() }
}

/// How surely a program is the one a rule names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    No,
    Perhaps,
    Yes,
}

impl Rule {
    fn verdict_on(&self, facts: &Facts, unit: Unit<'_>) -> Option<RuleVerdict> {
        if !self.on.surroundings_fit(facts) || !self.paths_fit(facts) {
            return None;
        }
        match (self.program_fit(unit), self.verdict) {
            (Fit::Yes, verdict) => Some(verdict),
            (Fit::Perhaps, RuleVerdict::Deny | RuleVerdict::Ask) => Some(RuleVerdict::Ask),
            (Fit::Perhaps, RuleVerdict::Allow) | (Fit::No, _) => None,
        }
    }

    fn program_fit(&self, unit: Unit<'_>) -> Fit {
        let about = self.on.programs.is_some() || self.on.arguments.is_some();
        match unit {
            _ if !about => Fit::Yes,
            Unit::Nothing => Fit::No,
            Unit::Anything => Fit::Perhaps,
            Unit::Program(argv) if self.is_named(argv) => Fit::Yes,
            // Even where it is not the one itself, it may start it.
            Unit::Program(argv) if starts_others(argv) => Fit::Perhaps,
            Unit::Program(_) => Fit::No,
        }
    }

    fn is_named(&self, argv: &[String]) -> bool {
        let Some((program, arguments)) = argv.split_first() else {
            return false;
        };
        let named = self.on.programs.as_ref().is_none_or(|names| {
            names.iter().any(|name| {
                name == program
                    || (self.verdict != RuleVerdict::Allow && name == program_base_name(program))
            })
        });
        named
            && self
                .on
                .arguments
                .as_ref()
                .is_none_or(|wanted| has_matching_arguments(wanted, arguments))
    }

    fn paths_fit(&self, facts: &Facts) -> bool {
        let Some(globs) = &self.on.paths else { return true };
        let fit = |path: &String| globs.iter().any(|glob| pattern::path_fits(glob, path));
        match self.verdict {
            RuleVerdict::Allow => !facts.paths.is_empty() && facts.paths.iter().all(fit),
            RuleVerdict::Ask | RuleVerdict::Deny => facts.paths.iter().any(fit),
        }
    }
}

impl Match {
    fn surroundings_fit(&self, facts: &Facts) -> bool {
        let listed = |tools: &Vec<String>| tools.contains(&facts.tool);
        let backend = |names: &Vec<BackendName>| {
            facts.backend.as_ref().is_some_and(|backend| names.contains(backend))
        };
        self.tools.as_ref().is_none_or(listed)
            && self.network.as_ref().is_none_or(|known| known.contains(&facts.network))
            && self.backends.as_ref().is_none_or(backend)
            && self.boundaries.as_ref().is_none_or(|known| known.contains(&facts.boundary))
    }
}

fn program_base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn starts_others(argv: &[String]) -> bool {
    let Some(name) = argv.first().map(|program| program_base_name(program)) else { return false };
    // Interpreters go by their version too: `python3.11`.
    let unversioned = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let listed = STARTS_OTHERS.contains(&name) || STARTS_OTHERS.contains(&unversioned);
    listed || name.starts_with("ld-linux")
}

/// Whether arguments fit their patterns one by one; `...` at the end takes the rest.
fn has_matching_arguments(wanted: &[String], given: &[String]) -> bool {
    match wanted.split_last() {
        Some((last, before)) if last == "..." => {
            given.len() >= before.len() && words_fit(before, given)
        }
        _ => wanted.len() == given.len() && words_fit(wanted, given),
    }
}

fn words_fit(wanted: &[String], given: &[String]) -> bool {
    wanted.iter().zip(given).all(|(wanted, given)| pattern::word_fits(wanted, given))
}

#[cfg(test)]
mod tests;
