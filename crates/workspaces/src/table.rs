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

const SHELL_REASON: &str = "a shell runs it at its start or when a directory is entered";
const EDITOR_REASON: &str = "an editor runs tasks and programs it names";
const AGENT_REASON: &str = "a coding agent takes orders from it";
const CI_REASON: &str = "a CI service runs it with the project's credentials";
const HOOKS_REASON: &str = "a hook manager runs what it names at the next git command";
const PACKAGES_REASON: &str = "a package manager loads code or sends credentials where it says";
const TOOLS_REASON: &str = "a tool version manager runs or installs what it names";
const HOME_REASON: &str = "in a home directory a program runs it or trusts it";
const VCS_REASON: &str = "a version-control system takes it for its own and runs what it names";
const INTERPRETER_REASON: &str =
    "an interpreter runs it at its start, or a tool loads code that it names";
const DEBUGGER_REASON: &str = "a debugger or terminal program runs it at its start";

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

/// Rules of names that are held back, but for those about `.git` itself.
pub(crate) const HELD_NAME_RULES: &[Rule] = &[
    name(".envrc", SHELL_REASON),
    name(".direnv", SHELL_REASON),
    begins(".autoenv", SHELL_REASON),
    begins(".bash", SHELL_REASON),
    begins(".zsh", SHELL_REASON),
    name(".profile", SHELL_REASON),
    name(".zprofile", SHELL_REASON),
    name(".zlogin", SHELL_REASON),
    name(".kshrc", SHELL_REASON),
    name(".inputrc", SHELL_REASON),
    name(".cshrc", SHELL_REASON),
    name(".tcshrc", SHELL_REASON),
    name(".login", SHELL_REASON),
    name(".logout", SHELL_REASON),
    begins(".env", SHELL_REASON),
    name(".hg", VCS_REASON),
    name(".jj", VCS_REASON),
    name(".sl", VCS_REASON),
    name(".svn", VCS_REASON),
    name("_svn", VCS_REASON),
    name(".bzr", VCS_REASON),
    name(".pijul", VCS_REASON),
    name("_darcs", VCS_REASON),
    name("_fossil_", VCS_REASON),
    name(".fslckout", VCS_REASON),
    begins(".fossil", VCS_REASON),
    ends(".fossil", VCS_REASON),
    name("_mtn", VCS_REASON),
    name("{arch}", VCS_REASON),
    name(".arch-ids", VCS_REASON),
    name("bitkeeper", VCS_REASON),
    name(".bk", VCS_REASON),
    name(".repo", VCS_REASON),
    name(".gitmodules", VCS_REASON),
    name(".lfsconfig", VCS_REASON),
    begins(".p4", VCS_REASON),
    name("p4config.txt", VCS_REASON),
    name("p4.ini", VCS_REASON),
    below("cvs", "root", VCS_REASON),
    below("cvs", "repository", VCS_REASON),
    below("cvs", "entries", VCS_REASON),
    name("cvsroot", VCS_REASON),
    name(".rprofile", INTERPRETER_REASON),
    name(".renviron", INTERPRETER_REASON),
    name(".irbrc", INTERPRETER_REASON),
    name(".pryrc", INTERPRETER_REASON),
    name(".ghci", INTERPRETER_REASON),
    name(".pdbrc", INTERPRETER_REASON),
    begins(".pythonrc", INTERPRETER_REASON),
    name(".venv", INTERPRETER_REASON),
    name("sitecustomize.py", INTERPRETER_REASON),
    name("usercustomize.py", INTERPRETER_REASON),
    begins(".eslintrc", INTERPRETER_REASON),
    begins(".prettierrc", INTERPRETER_REASON),
    begins(".babelrc", INTERPRETER_REASON),
    begins(".stylelintrc", INTERPRETER_REASON),
    begins(".pylintrc", INTERPRETER_REASON),
    name("ansible.cfg", INTERPRETER_REASON),
    name("ctags.d", INTERPRETER_REASON),
    name("nuget.config", PACKAGES_REASON),
    name("pip.ini", PACKAGES_REASON),
    name(".vscode", EDITOR_REASON),
    name(".idea", EDITOR_REASON),
    name(".vs", EDITOR_REASON),
    name(".fleet", EDITOR_REASON),
    name(".zed", EDITOR_REASON),
    name(".nova", EDITOR_REASON),
    name(".devcontainer", EDITOR_REASON),
    name(".devcontainer.json", EDITOR_REASON),
    ends(".code-workspace", EDITOR_REASON),
    ends(".sublime-project", EDITOR_REASON),
    name(".exrc", EDITOR_REASON),
    begins(".vim", EDITOR_REASON),
    begins(".nvim", EDITOR_REASON),
    name(".lvimrc", EDITOR_REASON),
    begins(".dir-locals", EDITOR_REASON),
    begins(".emacs", EDITOR_REASON),
    name(".claude", AGENT_REASON),
    begins(".claude.", AGENT_REASON),
    name("claude.md", AGENT_REASON),
    name("claude.local.md", AGENT_REASON),
    begins("agents.md", AGENT_REASON),
    name("agents.override.md", AGENT_REASON),
    name("agent.md", AGENT_REASON),
    name(".agents", AGENT_REASON),
    name("gemini.md", AGENT_REASON),
    name("qwen.md", AGENT_REASON),
    name("crush.md", AGENT_REASON),
    name("codex.md", AGENT_REASON),
    name("warp.md", AGENT_REASON),
    name("copilot-instructions.md", AGENT_REASON),
    begins(".gemini", AGENT_REASON),
    begins(".cursor", AGENT_REASON),
    begins(".codex", AGENT_REASON),
    begins(".aider", AGENT_REASON),
    begins(".continue", AGENT_REASON),
    begins(".windsurf", AGENT_REASON),
    begins(".cline", AGENT_REASON),
    begins(".roo", AGENT_REASON),
    begins(".kilocode", AGENT_REASON),
    begins(".kiro", AGENT_REASON),
    begins(".junie", AGENT_REASON),
    begins(".amazonq", AGENT_REASON),
    begins(".augment", AGENT_REASON),
    begins(".opencode", AGENT_REASON),
    begins("opencode.json", AGENT_REASON),
    begins(".crush", AGENT_REASON),
    name("crush.json", AGENT_REASON),
    begins(".goose", AGENT_REASON),
    begins(".qwen", AGENT_REASON),
    begins(".trae", AGENT_REASON),
    name(".rules", AGENT_REASON),
    name(".mcp.json", AGENT_REASON),
    name("mcp.json", AGENT_REASON),
    name(".mcp", AGENT_REASON),
    name(".github", CI_REASON),
    begins(".gitlab", CI_REASON),
    name(".gitea", CI_REASON),
    name(".forgejo", CI_REASON),
    name(".circleci", CI_REASON),
    name(".buildkite", CI_REASON),
    begins(".woodpecker", CI_REASON),
    begins(".drone.", CI_REASON),
    begins(".travis", CI_REASON),
    begins(".cirrus", CI_REASON),
    begins(".appveyor", CI_REASON),
    begins("appveyor.y", CI_REASON),
    begins("azure-pipelines", CI_REASON),
    name(".azure-pipelines", CI_REASON),
    begins("bitbucket-pipelines", CI_REASON),
    begins("jenkinsfile", CI_REASON),
    begins("buildspec.y", CI_REASON),
    begins("cloudbuild.", CI_REASON),
    name(".semaphore", CI_REASON),
    name(".teamcity", CI_REASON),
    name(".tekton", CI_REASON),
    begins("wercker.y", CI_REASON),
    begins("codemagic.y", CI_REASON),
    begins("bitrise.y", CI_REASON),
    name(".builds", CI_REASON),
    begins(".build.y", CI_REASON),
    name(".husky", HOOKS_REASON),
    name(".githooks", HOOKS_REASON),
    begins(".pre-commit", HOOKS_REASON),
    begins("lefthook", HOOKS_REASON),
    begins(".lefthook", HOOKS_REASON),
    begins(".lintstaged", HOOKS_REASON),
    begins("lint-staged.", HOOKS_REASON),
    begins(".overcommit", HOOKS_REASON),
    name(".npmrc", PACKAGES_REASON),
    begins(".yarn", PACKAGES_REASON),
    begins(".pnpmfile", PACKAGES_REASON),
    name("bunfig.toml", PACKAGES_REASON),
    name(".pypirc", PACKAGES_REASON),
    name("pip.conf", PACKAGES_REASON),
    name(".mvn", PACKAGES_REASON),
    begins(".bundle", PACKAGES_REASON),
    name(".gemrc", PACKAGES_REASON),
    below(".cargo", "config", PACKAGES_REASON),
    below(".cargo", "config.toml", PACKAGES_REASON),
    below(".cargo", "credentials.toml", PACKAGES_REASON),
    below(".cargo", "bin", HOME_REASON),
    name(".tool-versions", TOOLS_REASON),
    begins("mise.", TOOLS_REASON),
    begins(".mise", TOOLS_REASON),
    name(".rtx.toml", TOOLS_REASON),
    name(".asdfrc", TOOLS_REASON),
    begins(".proto", TOOLS_REASON),
    name("devbox.json", TOOLS_REASON),
    begins("devenv.", TOOLS_REASON),
    name("flake.nix", TOOLS_REASON),
    name("shell.nix", TOOLS_REASON),
    name("default.nix", TOOLS_REASON),
    begins("rust-toolchain", TOOLS_REASON),
    name(".ssh", HOME_REASON),
    name(".gnupg", HOME_REASON),
    name(".netrc", HOME_REASON),
    name(".gitconfig", HOME_REASON),
    name(".docker", HOME_REASON),
    name(".kube", HOME_REASON),
    name(".aws", HOME_REASON),
    name(".pam_environment", HOME_REASON),
    begins(".xsession", HOME_REASON),
    begins(".xinit", HOME_REASON),
    name(".xprofile", HOME_REASON),
    below(".local", "bin", HOME_REASON),
    below(".config", "autostart", HOME_REASON),
    below(".config", "systemd", HOME_REASON),
    below(".config", "git", HOME_REASON),
    below(".config", "fish", SHELL_REASON),
    below(".config", "nvim", EDITOR_REASON),
    below(".config", "mise", TOOLS_REASON),
    below(".config", "stockade", HOME_REASON),
    below(".config", "environment.d", HOME_REASON),
    name(".gdbinit", DEBUGGER_REASON),
    name(".lldbinit", DEBUGGER_REASON),
    name(".tmux.conf", DEBUGGER_REASON),
    name(".screenrc", DEBUGGER_REASON),
    name(".watchmanconfig", DEBUGGER_REASON),
];

pub(crate) const UNKNOWN_DOTFILE_REASON: &str =
    "names with a dot in front belong to programs, and this one is not known to be harmless";
pub(crate) const SHORT_NAME_REASON: &str = "on FAT and NTFS it can stand for a longer name";

/// Names with a dot in front that pass: plain data to every program known to read them. None of them
/// can name a program, a plugin, a module, another file to load or a host to connect to.
///
/// `.gitattributes` chooses among filters and drivers, but only those run that the user's own
/// configuration defines; it defines none. Left out on purpose: `.prettierrc`, `.eslintrc` and the like
/// (plugins), `.nvmrc`, `.python-version` and the like (choose programs), `.env` (sourced by shells).
pub(crate) const HARMLESS_DOTFILES: &[&str] = &[
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

pub(crate) const GIT_REASON: &str =
    "git runs programs that it names, or trusts it about where things are";

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
    let Some(first) = rest.first() else { return Some(GIT_REASON) };
    let second = rest.get(1).map(Vec::as_slice);
    let data = GIT_DATA.iter().any(|name| name.as_bytes() == first.as_slice());
    // Alternates make git read objects from any place they name.
    let elsewhere = first == b"objects" && second == Some(b"info");
    let exclude = first == b"info" && second.is_none_or(|name| name == b"exclude");
    if (data && !elsewhere) || exclude { None } else { Some(GIT_REASON) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write;

    use super::*;

    const DOCS_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workspaces.md");
    const TABLE_BEGIN_MARKER: &str = "<!-- held: begin -->\n";
    const TABLE_END_MARKER: &str = "<!-- held: end -->";

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
        for rule in HELD_NAME_RULES {
            reasons.entry(rule.reason).or_default().push(shown(&rule.matches));
        }
        let mut text = "| why | names |\n| --- | --- |\n".to_owned();
        for (reason, names) in reasons {
            writeln!(text, "| {reason} | {} |", names.join(" ")).unwrap();
        }
        let harmless: Vec<_> = HARMLESS_DOTFILES.iter().map(|name| format!("`{name}`")).collect();
        writeln!(text, "| {UNKNOWN_DOTFILE_REASON} | `.*`, but for {} |", harmless.join(" "))
            .unwrap();
        writeln!(text, "| {SHORT_NAME_REASON} | `NAME~1` |").unwrap();
        text
    }

    #[test]
    fn the_page_lists_every_rule() {
        let page = std::fs::read_to_string(DOCS_PAGE).unwrap();
        let (before, rest) = page.split_once(TABLE_BEGIN_MARKER).unwrap();
        let (_, after) = rest.split_once(TABLE_END_MARKER).unwrap();
        let meant = format!("{before}{TABLE_BEGIN_MARKER}{}{TABLE_END_MARKER}{after}", table());
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(DOCS_PAGE, &meant).unwrap();
        }
        let help =
            "write it anew: STOCKADE_WRITE_DOCS=1 scripts/nextest run -p stockade-workspaces";
        assert_eq!(std::fs::read_to_string(DOCS_PAGE).unwrap(), meant, "{help}");
    }

    #[test]
    fn rules_are_lower_case_and_none_is_there_twice() {
        let mut all: Vec<_> = HELD_NAME_RULES.iter().map(|rule| shown(&rule.matches)).collect();
        assert!(all.iter().all(|name| !name.contains(char::is_uppercase)));
        all.sort();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn no_harmless_name_is_held_by_a_rule() {
        for name in HARMLESS_DOTFILES {
            assert!(name.starts_with('.') && !name.contains(char::is_uppercase), "{name}");
            assert!(crate::held::by_name(&name.parse().unwrap()).is_none(), "{name}");
        }
    }
}
