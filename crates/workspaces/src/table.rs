//! The names that make programs of the host run code, each with the reason, and the names with a dot
//! in front that were reviewed and do not. Lower case; a rule holds for the name itself and for
//! everything beneath it.
//!
//! Not here: what runs only when somebody builds or runs the project itself (`Makefile`,
//! `package.json`, `build.rs`). That is the work under review.

/// How a rule names paths.
#[derive(Debug)]
pub(crate) enum Match {
    /// A part of the path is called so.
    Name(&'static str),
    /// A part of the path begins so.
    Begins(&'static str),
    /// A part of the path ends so.
    Ends(&'static str),
    /// A part of the path is called so, and the next one so.
    Below(&'static str, &'static str),
}

/// One kind of path, and what would happen.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) matches: Match,
    pub(crate) reason: &'static str,
}

const SHELL: &str = "a shell runs it at its start or when a directory is entered";
const EDITOR: &str = "an editor runs tasks and programs it names";
const AGENT: &str = "a coding agent takes orders from it";
const CI: &str = "a CI service runs it with the project's credentials";
const HOOKS: &str = "a hook manager runs what it names at the next git command";
const PACKAGES: &str = "a package manager loads code or sends credentials where it says";
const TOOLS: &str = "a tool version manager runs or installs what it names";
const HOME: &str = "in a home directory a program runs it or trusts it";
const VCS: &str = "a version-control system takes it for its own and runs what it names";
const INTERPRETER: &str = "an interpreter runs it at its start, or a tool loads code that it names";
const DEBUGGER: &str = "a debugger or terminal program runs it at its start";

const fn name(name: &'static str, reason: &'static str) -> Rule {
    Rule { matches: Match::Name(name), reason }
}

const fn begins(start: &'static str, reason: &'static str) -> Rule {
    Rule { matches: Match::Begins(start), reason }
}

const fn ends(end: &'static str, reason: &'static str) -> Rule {
    Rule { matches: Match::Ends(end), reason }
}

const fn below(dir: &'static str, child: &'static str, reason: &'static str) -> Rule {
    Rule { matches: Match::Below(dir, child), reason }
}

/// Every rule but those about `.git` itself.
pub(crate) const RULES: &[Rule] = &[
    name(".envrc", SHELL),
    name(".direnv", SHELL),
    begins(".autoenv", SHELL),
    begins(".bash", SHELL),
    begins(".zsh", SHELL),
    name(".profile", SHELL),
    name(".zprofile", SHELL),
    name(".zlogin", SHELL),
    name(".kshrc", SHELL),
    name(".inputrc", SHELL),
    name(".cshrc", SHELL),
    name(".tcshrc", SHELL),
    name(".login", SHELL),
    name(".logout", SHELL),
    begins(".env", SHELL),
    name(".hg", VCS),
    name(".jj", VCS),
    name(".sl", VCS),
    name(".svn", VCS),
    name("_svn", VCS),
    name(".bzr", VCS),
    name(".pijul", VCS),
    name("_darcs", VCS),
    name("_fossil_", VCS),
    name(".fslckout", VCS),
    begins(".fossil", VCS),
    ends(".fossil", VCS),
    name("_mtn", VCS),
    name("{arch}", VCS),
    name(".arch-ids", VCS),
    name("bitkeeper", VCS),
    name(".bk", VCS),
    name(".repo", VCS),
    name(".gitmodules", VCS),
    name(".lfsconfig", VCS),
    begins(".p4", VCS),
    name("p4config.txt", VCS),
    name("p4.ini", VCS),
    below("cvs", "root", VCS),
    below("cvs", "repository", VCS),
    below("cvs", "entries", VCS),
    name("cvsroot", VCS),
    name(".rprofile", INTERPRETER),
    name(".renviron", INTERPRETER),
    name(".irbrc", INTERPRETER),
    name(".pryrc", INTERPRETER),
    name(".ghci", INTERPRETER),
    name(".pdbrc", INTERPRETER),
    begins(".pythonrc", INTERPRETER),
    name(".venv", INTERPRETER),
    name("sitecustomize.py", INTERPRETER),
    name("usercustomize.py", INTERPRETER),
    begins(".eslintrc", INTERPRETER),
    begins(".prettierrc", INTERPRETER),
    begins(".babelrc", INTERPRETER),
    begins(".stylelintrc", INTERPRETER),
    begins(".pylintrc", INTERPRETER),
    name("ansible.cfg", INTERPRETER),
    name("ctags.d", INTERPRETER),
    name("nuget.config", PACKAGES),
    name("pip.ini", PACKAGES),
    name(".vscode", EDITOR),
    name(".idea", EDITOR),
    name(".vs", EDITOR),
    name(".fleet", EDITOR),
    name(".zed", EDITOR),
    name(".nova", EDITOR),
    name(".devcontainer", EDITOR),
    name(".devcontainer.json", EDITOR),
    ends(".code-workspace", EDITOR),
    ends(".sublime-project", EDITOR),
    name(".exrc", EDITOR),
    begins(".vim", EDITOR),
    begins(".nvim", EDITOR),
    name(".lvimrc", EDITOR),
    begins(".dir-locals", EDITOR),
    begins(".emacs", EDITOR),
    name(".claude", AGENT),
    begins(".claude.", AGENT),
    name("claude.md", AGENT),
    name("claude.local.md", AGENT),
    begins("agents.md", AGENT),
    name("agents.override.md", AGENT),
    name("agent.md", AGENT),
    name(".agents", AGENT),
    name("gemini.md", AGENT),
    name("qwen.md", AGENT),
    name("crush.md", AGENT),
    name("codex.md", AGENT),
    name("warp.md", AGENT),
    name("copilot-instructions.md", AGENT),
    begins(".gemini", AGENT),
    begins(".cursor", AGENT),
    begins(".codex", AGENT),
    begins(".aider", AGENT),
    begins(".continue", AGENT),
    begins(".windsurf", AGENT),
    begins(".cline", AGENT),
    begins(".roo", AGENT),
    begins(".kilocode", AGENT),
    begins(".kiro", AGENT),
    begins(".junie", AGENT),
    begins(".amazonq", AGENT),
    begins(".augment", AGENT),
    begins(".opencode", AGENT),
    begins("opencode.json", AGENT),
    begins(".crush", AGENT),
    name("crush.json", AGENT),
    begins(".goose", AGENT),
    begins(".qwen", AGENT),
    begins(".trae", AGENT),
    name(".rules", AGENT),
    name(".mcp.json", AGENT),
    name("mcp.json", AGENT),
    name(".mcp", AGENT),
    name(".github", CI),
    begins(".gitlab", CI),
    name(".gitea", CI),
    name(".forgejo", CI),
    name(".circleci", CI),
    name(".buildkite", CI),
    begins(".woodpecker", CI),
    begins(".drone.", CI),
    begins(".travis", CI),
    begins(".cirrus", CI),
    begins(".appveyor", CI),
    begins("appveyor.y", CI),
    begins("azure-pipelines", CI),
    name(".azure-pipelines", CI),
    begins("bitbucket-pipelines", CI),
    begins("jenkinsfile", CI),
    begins("buildspec.y", CI),
    begins("cloudbuild.", CI),
    name(".semaphore", CI),
    name(".teamcity", CI),
    name(".tekton", CI),
    begins("wercker.y", CI),
    begins("codemagic.y", CI),
    begins("bitrise.y", CI),
    name(".builds", CI),
    begins(".build.y", CI),
    name(".husky", HOOKS),
    name(".githooks", HOOKS),
    begins(".pre-commit", HOOKS),
    begins("lefthook", HOOKS),
    begins(".lefthook", HOOKS),
    begins(".lintstaged", HOOKS),
    begins("lint-staged.", HOOKS),
    begins(".overcommit", HOOKS),
    name(".npmrc", PACKAGES),
    begins(".yarn", PACKAGES),
    begins(".pnpmfile", PACKAGES),
    name("bunfig.toml", PACKAGES),
    name(".pypirc", PACKAGES),
    name("pip.conf", PACKAGES),
    name(".mvn", PACKAGES),
    begins(".bundle", PACKAGES),
    name(".gemrc", PACKAGES),
    below(".cargo", "config", PACKAGES),
    below(".cargo", "config.toml", PACKAGES),
    below(".cargo", "credentials.toml", PACKAGES),
    below(".cargo", "bin", HOME),
    name(".tool-versions", TOOLS),
    begins("mise.", TOOLS),
    begins(".mise", TOOLS),
    name(".rtx.toml", TOOLS),
    name(".asdfrc", TOOLS),
    begins(".proto", TOOLS),
    name("devbox.json", TOOLS),
    begins("devenv.", TOOLS),
    name("flake.nix", TOOLS),
    name("shell.nix", TOOLS),
    name("default.nix", TOOLS),
    begins("rust-toolchain", TOOLS),
    name(".ssh", HOME),
    name(".gnupg", HOME),
    name(".netrc", HOME),
    name(".gitconfig", HOME),
    name(".docker", HOME),
    name(".kube", HOME),
    name(".aws", HOME),
    name(".pam_environment", HOME),
    begins(".xsession", HOME),
    begins(".xinit", HOME),
    name(".xprofile", HOME),
    below(".local", "bin", HOME),
    below(".config", "autostart", HOME),
    below(".config", "systemd", HOME),
    below(".config", "git", HOME),
    below(".config", "fish", SHELL),
    below(".config", "nvim", EDITOR),
    below(".config", "mise", TOOLS),
    below(".config", "stockade", HOME),
    below(".config", "environment.d", HOME),
    name(".gdbinit", DEBUGGER),
    name(".lldbinit", DEBUGGER),
    name(".tmux.conf", DEBUGGER),
    name(".screenrc", DEBUGGER),
    name(".watchmanconfig", DEBUGGER),
];

pub(crate) const UNKNOWN: &str =
    "names with a dot in front belong to programs, and this one is not known to be harmless";
pub(crate) const SHORT: &str = "on FAT and NTFS it can stand for a longer name";

/// Names with a dot in front that pass: plain data to every program known to read them. None of them
/// can name a program, a plugin, a module, another file to load or a host to connect to.
///
/// `.gitattributes` chooses among filters and drivers, but only those run that the user's own
/// configuration defines; it defines none. Left out on purpose: `.prettierrc`, `.eslintrc` and the like
/// (plugins), `.nvmrc`, `.python-version` and the like (choose programs), `.env` (sourced by shells).
pub(crate) const HARMLESS: &[&str] = &[
    ".bazelignore",
    ".clang-format",
    ".clang-format-ignore",
    ".coverage",
    ".dockerignore",
    ".ds_store",
    ".editorconfig",
    ".eslintignore",
    ".fdignore",
    ".gcloudignore",
    ".git-blame-ignore-revs",
    ".gitattributes",
    ".gitignore",
    ".gitkeep",
    ".helmignore",
    ".hgignore",
    ".ignore",
    ".keep",
    ".mailmap",
    ".markdownlintignore",
    ".mypy_cache",
    ".nojekyll",
    ".npmignore",
    ".package-lock.json",
    ".prettierignore",
    ".pytest_cache",
    ".rgignore",
    ".ruff_cache",
    ".rustfmt.toml",
    ".stylelintignore",
    ".vercelignore",
    ".vscodeignore",
    ".well-known",
];

pub(crate) const GIT: &str = "git runs programs that it names, or trusts it about where things are";

/// What is plain data in a repository: commits, branches, the index. All else is held back, so that
/// what git learns to read tomorrow is held back too.
const GIT_DATA: &[&str] = &[
    "objects",
    "refs",
    "logs",
    "head",
    "index",
    "packed-refs",
    "orig_head",
    "fetch_head",
    "merge_head",
    "merge_msg",
    "merge_mode",
    "cherry_pick_head",
    "revert_head",
    "auto_merge",
    "squash_msg",
    "commit_editmsg",
    "description",
];

/// Whether a path in `.git` is held back, given the lower-case names after it.
pub(crate) fn within_git(rest: &[Vec<u8>]) -> Option<&'static str> {
    let Some(first) = rest.first() else { return Some(GIT) };
    let second = rest.get(1).map(Vec::as_slice);
    let data = GIT_DATA.iter().any(|name| name.as_bytes() == first.as_slice());
    // Alternates make git read objects from any place they name.
    let elsewhere = first == b"objects" && second == Some(b"info");
    let exclude = first == b"info" && second.is_none_or(|name| name == b"exclude");
    if (data && !elsewhere) || exclude { None } else { Some(GIT) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workspaces.md");
    const BEGIN: &str = "<!-- held: begin -->\n";
    const END: &str = "<!-- held: end -->";

    fn shown(rule: &Match) -> String {
        match rule {
            Match::Name(name) => format!("`{name}`"),
            Match::Begins(start) => format!("`{start}*`"),
            Match::Ends(end) => format!("`*{end}`"),
            Match::Below(dir, child) => format!("`{dir}/{child}`"),
        }
    }

    fn table() -> String {
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for rule in RULES {
            reasons.entry(rule.reason).or_default().push(shown(&rule.matches));
        }
        let mut text = "| why | names |\n| --- | --- |\n".to_owned();
        for (reason, names) in reasons {
            writeln!(text, "| {reason} | {} |", names.join(" ")).unwrap();
        }
        let harmless: Vec<_> = HARMLESS.iter().map(|name| format!("`{name}`")).collect();
        writeln!(text, "| {UNKNOWN} | `.*`, but for {} |", harmless.join(" ")).unwrap();
        writeln!(text, "| {SHORT} | `NAME~1` |").unwrap();
        text
    }

    #[test]
    fn the_page_lists_every_rule() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let meant = format!("{before}{BEGIN}{}{END}{after}", table());
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, &meant).unwrap();
        }
        let help =
            "write it anew: STOCKADE_WRITE_DOCS=1 scripts/nextest run -p stockade-workspaces";
        assert_eq!(std::fs::read_to_string(PAGE).unwrap(), meant, "{help}");
    }

    #[test]
    fn rules_are_lower_case_and_none_is_there_twice() {
        let mut all: Vec<_> = RULES.iter().map(|rule| shown(&rule.matches)).collect();
        assert!(all.iter().all(|name| !name.contains(char::is_uppercase)));
        all.sort();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn no_harmless_name_is_held_by_a_rule() {
        for name in HARMLESS {
            assert!(name.starts_with('.') && !name.contains(char::is_uppercase), "{name}");
            assert!(crate::held::by_name(&name.parse().unwrap()).is_none(), "{name}");
        }
    }
}
