//! What is known about a call before it is let through.

use serde::{Deserialize, Serialize};
use stockade_core::{BackendName, Boundary, Network};

use super::shell;

/// What is known about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The tool.
    pub tool: String,
    /// What it would start.
    pub programs: Programs,
    /// The paths that file tools touch, from the workspace on where they lie in it.
    pub paths: Vec<String>,
    /// What the programs can reach.
    pub network: NetworkFact,
    /// Who builds the walls.
    pub backend: Option<BackendName>,
    /// What stands between it and the host's kernel.
    pub boundary: Boundary,
    /// Whether it asks for more than the user has set out: network, limits.
    pub widens: bool,
    /// Whether only a person may let it through: no rule that allows the tool does.
    pub person_only: bool,
    /// Further details for the person who is asked. Rules do not look at them.
    pub details: Vec<Detail>,
}

/// Something about a call that decides what it comes to: where it runs, what it reads, what it writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    /// What it is.
    pub name: String,
    /// The agent's own text; a very long one without its middle.
    pub text: String,
    /// Whether it is shown and never recorded: it may hold a secret (C-41).
    #[serde(skip)]
    pub private: bool,
}

/// Longest text of a detail.
const MAX_DETAIL_BYTES: usize = 64 << 10;

impl Detail {
    /// One that is recorded too.
    pub(crate) fn open(name: impl Into<String>, text: impl AsRef<str>) -> Self {
        Self {
            name: name.into(),
            text: cut_middle(text.as_ref(), MAX_DETAIL_BYTES),
            private: false,
        }
    }

    /// One that is only shown.
    pub(crate) fn private(name: impl Into<String>, text: impl AsRef<str>) -> Self {
        Self { private: true, ..Self::open(name, text) }
    }
}

/// The beginning and the end: a person who says yes must see where a long text leads, and that there is more.
pub(super) fn cut_middle(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(most / 2);
    let tail = text.ceil_char_boundary(text.len() - most / 2);
    let between = tail - head;
    format!("{} … [{between} bytes are not shown] … {}", &text[..head], &text[tail..])
}

/// What a call would start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Programs {
    /// Exactly these, each with its arguments. None at all for tools that start nothing.
    Known(Vec<Vec<String>>),
    /// A line that a shell may read in ways that cannot be told beforehand.
    Opaque(String),
}

/// What programs can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkFact {
    /// Nothing.
    None,
    /// The sandbox's own loopback.
    Loopback,
    /// Listed hosts.
    Egress,
    /// Everything the host can reach.
    Host,
}

impl Programs {
    /// Nothing is started.
    pub const NONE: Self = Self::Known(Vec::new());

    /// What a shell line starts, as far as that is certain.
    pub fn of_line(line: &str) -> Self {
        shell::parse_commands(line).map_or_else(|| Self::Opaque(line.to_owned()), Self::Known)
    }

    /// The same programs in an environment of the agent's choice: a variable can make any program
    /// start another, so nothing is certain any more.
    #[must_use]
    pub fn in_chosen_env(self, chosen: bool) -> Self {
        match self {
            Self::Known(argvs) if chosen => {
                let lines: Vec<_> = argvs.iter().map(|argv| argv.join(" ")).collect();
                Self::Opaque(lines.join("; "))
            }
            Self::Known(_) | Self::Opaque(_) => self,
        }
    }
}

impl Programs {
    /// The same programs in a directory of the agent's choice: a program that is named from there may
    /// be any.
    #[must_use]
    pub fn in_chosen_dir(self, chosen: bool) -> Self {
        let relative = match &self {
            Self::Known(argvs) => argvs.iter().any(|argv| shell::is_relative(argv)),
            Self::Opaque(_) => false,
        };
        self.in_chosen_env(chosen && relative)
    }
}

impl From<&Network> for NetworkFact {
    fn from(network: &Network) -> Self {
        match network {
            Network::None => Self::None,
            // Where a backend has no loopback it is less, and a rule for loopback is not too wide for that.
            Network::Auto | Network::Loopback => Self::Loopback,
            // No rule about listed hosts is meant for a list of all.
            Network::Egress(_) if network.observes() => Self::Host,
            Network::Egress(_) => Self::Egress,
        }
    }
}

/// A path as rules see it: without `.` and `..`, and from the workspace on where it lies in it.
pub(crate) fn plain_path(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    match (absolute, parts.as_slice()) {
        (false, []) | (true, ["workspace"]) => ".".into(),
        (true, ["workspace", inside @ ..]) => inside.join("/"),
        (true, parts) => format!("/{}", parts.join("/")),
        (false, parts) => parts.join("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_the_same_fact() {
        for (given, plain) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("a/../b", "b"),
            ("/workspace/a", "a"),
            ("/workspace", "."),
            ("/etc/../etc/passwd", "/etc/passwd"),
            (".", "."),
        ] {
            assert_eq!(plain_path(given), plain, "{given}");
        }
    }

    #[test]
    fn an_environment_of_the_agents_choice_makes_programs_uncertain() {
        let known = Programs::of_line("git status");
        assert!(matches!(known, Programs::Known(_)));
        assert!(matches!(known.in_chosen_env(true), Programs::Opaque(_)));
    }

    #[test]
    fn a_directory_of_the_agents_choice_makes_relative_programs_uncertain() {
        let opaque =
            |line| matches!(Programs::of_line(line).in_chosen_dir(true), Programs::Opaque(_));
        assert!(opaque("./build.sh") && opaque("make; bin/x"));
        assert!(!opaque("git status") && !opaque("/bin/ls"));
    }
}
