//! The names that make programs of the host run code, each with the reason, and the names with a dot
//! in front that were reviewed and do not. Lower case; a rule holds for the name itself and for
//! everything beneath it.
//!
//! Not here: what runs only when the project itself is built or run (`Makefile`, `package.json`,
//! `build.rs`). That is the work under review.

/// How a rule names paths.
#[derive(Debug)]
pub(crate) enum NameMatch {
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
pub(crate) struct HeldRule {
    pub(crate) matches: NameMatch,
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

const fn match_name(name: &'static str, reason: &'static str) -> HeldRule {
    HeldRule { matches: NameMatch::Name(name), reason }
}

const fn match_prefix(start: &'static str, reason: &'static str) -> HeldRule {
    HeldRule { matches: NameMatch::Begins(start), reason }
}

const fn match_suffix(end: &'static str, reason: &'static str) -> HeldRule {
    HeldRule { matches: NameMatch::Ends(end), reason }
}

const fn match_child(dir: &'static str, child: &'static str, reason: &'static str) -> HeldRule {
    HeldRule { matches: NameMatch::Below(dir, child), reason }
}

/// Rules of names that are held back, but for those about `.git` itself.
pub(crate) const HELD_NAME_RULES: &[HeldRule] = &[
    match_name(".envrc", SHELL_REASON),
    match_name(".direnv", SHELL_REASON),
    match_prefix(".autoenv", SHELL_REASON),
    match_prefix(".bash", SHELL_REASON),
    match_prefix(".zsh", SHELL_REASON),
    match_name(".profile", SHELL_REASON),
    match_name(".zprofile", SHELL_REASON),
    match_name(".zlogin", SHELL_REASON),
    match_name(".kshrc", SHELL_REASON),
    match_name(".inputrc", SHELL_REASON),
    match_name(".cshrc", SHELL_REASON),
    match_name(".tcshrc", SHELL_REASON),
    match_name(".login", SHELL_REASON),
    match_name(".logout", SHELL_REASON),
    match_prefix(".env", SHELL_REASON),
    match_name(".hg", VCS_REASON),
    match_name(".jj", VCS_REASON),
    match_name(".sl", VCS_REASON),
    match_name(".svn", VCS_REASON),
    match_name("_svn", VCS_REASON),
    match_name(".bzr", VCS_REASON),
    match_name(".pijul", VCS_REASON),
    match_name("_darcs", VCS_REASON),
    match_name("_fossil_", VCS_REASON),
    match_name(".fslckout", VCS_REASON),
    match_prefix(".fossil", VCS_REASON),
    match_suffix(".fossil", VCS_REASON),
    match_name("_mtn", VCS_REASON),
    match_name("{arch}", VCS_REASON),
    match_name(".arch-ids", VCS_REASON),
    match_name("bitkeeper", VCS_REASON),
    match_name(".bk", VCS_REASON),
    match_name(".repo", VCS_REASON),
    match_name(".gitmodules", VCS_REASON),
    match_name(".lfsconfig", VCS_REASON),
    match_prefix(".p4", VCS_REASON),
    match_name("p4config.txt", VCS_REASON),
    match_name("p4.ini", VCS_REASON),
    match_child("cvs", "root", VCS_REASON),
    match_child("cvs", "repository", VCS_REASON),
    match_child("cvs", "entries", VCS_REASON),
    match_name("cvsroot", VCS_REASON),
    match_name(".rprofile", INTERPRETER_REASON),
    match_name(".renviron", INTERPRETER_REASON),
    match_name(".irbrc", INTERPRETER_REASON),
    match_name(".pryrc", INTERPRETER_REASON),
    match_name(".ghci", INTERPRETER_REASON),
    match_name(".pdbrc", INTERPRETER_REASON),
    match_prefix(".pythonrc", INTERPRETER_REASON),
    match_name(".venv", INTERPRETER_REASON),
    match_name("sitecustomize.py", INTERPRETER_REASON),
    match_name("usercustomize.py", INTERPRETER_REASON),
    match_prefix(".eslintrc", INTERPRETER_REASON),
    match_prefix(".prettierrc", INTERPRETER_REASON),
    match_prefix(".babelrc", INTERPRETER_REASON),
    match_prefix(".stylelintrc", INTERPRETER_REASON),
    match_prefix(".pylintrc", INTERPRETER_REASON),
    match_name("ansible.cfg", INTERPRETER_REASON),
    match_name("ctags.d", INTERPRETER_REASON),
    match_name("nuget.config", PACKAGES_REASON),
    match_name("pip.ini", PACKAGES_REASON),
    match_name(".vscode", EDITOR_REASON),
    match_name(".idea", EDITOR_REASON),
    match_name(".vs", EDITOR_REASON),
    match_name(".fleet", EDITOR_REASON),
    match_name(".zed", EDITOR_REASON),
    match_name(".nova", EDITOR_REASON),
    match_name(".devcontainer", EDITOR_REASON),
    match_name(".devcontainer.json", EDITOR_REASON),
    match_suffix(".code-workspace", EDITOR_REASON),
    match_suffix(".sublime-project", EDITOR_REASON),
    match_name(".exrc", EDITOR_REASON),
    match_prefix(".vim", EDITOR_REASON),
    match_prefix(".nvim", EDITOR_REASON),
    match_name(".lvimrc", EDITOR_REASON),
    match_prefix(".dir-locals", EDITOR_REASON),
    match_prefix(".emacs", EDITOR_REASON),
    match_name(".claude", AGENT_REASON),
    match_prefix(".claude.", AGENT_REASON),
    match_name("claude.md", AGENT_REASON),
    match_name("claude.local.md", AGENT_REASON),
    match_prefix("agents.md", AGENT_REASON),
    match_name("agents.override.md", AGENT_REASON),
    match_name("agent.md", AGENT_REASON),
    match_name(".agents", AGENT_REASON),
    match_name("gemini.md", AGENT_REASON),
    match_name("qwen.md", AGENT_REASON),
    match_name("crush.md", AGENT_REASON),
    match_name("codex.md", AGENT_REASON),
    match_name("warp.md", AGENT_REASON),
    match_name("copilot-instructions.md", AGENT_REASON),
    match_prefix(".gemini", AGENT_REASON),
    match_prefix(".cursor", AGENT_REASON),
    match_prefix(".codex", AGENT_REASON),
    match_prefix(".aider", AGENT_REASON),
    match_prefix(".continue", AGENT_REASON),
    match_prefix(".windsurf", AGENT_REASON),
    match_prefix(".cline", AGENT_REASON),
    match_prefix(".roo", AGENT_REASON),
    match_prefix(".kilocode", AGENT_REASON),
    match_prefix(".kiro", AGENT_REASON),
    match_prefix(".junie", AGENT_REASON),
    match_prefix(".amazonq", AGENT_REASON),
    match_prefix(".augment", AGENT_REASON),
    match_prefix(".opencode", AGENT_REASON),
    match_prefix("opencode.json", AGENT_REASON),
    match_prefix(".crush", AGENT_REASON),
    match_name("crush.json", AGENT_REASON),
    match_prefix(".goose", AGENT_REASON),
    match_prefix(".qwen", AGENT_REASON),
    match_prefix(".trae", AGENT_REASON),
    match_name(".rules", AGENT_REASON),
    match_name(".mcp.json", AGENT_REASON),
    match_name("mcp.json", AGENT_REASON),
    match_name(".mcp", AGENT_REASON),
    match_name(".github", CI_REASON),
    match_prefix(".gitlab", CI_REASON),
    match_name(".gitea", CI_REASON),
    match_name(".forgejo", CI_REASON),
    match_name(".circleci", CI_REASON),
    match_name(".buildkite", CI_REASON),
    match_prefix(".woodpecker", CI_REASON),
    match_prefix(".drone.", CI_REASON),
    match_prefix(".travis", CI_REASON),
    match_prefix(".cirrus", CI_REASON),
    match_prefix(".appveyor", CI_REASON),
    match_prefix("appveyor.y", CI_REASON),
    match_prefix("azure-pipelines", CI_REASON),
    match_name(".azure-pipelines", CI_REASON),
    match_prefix("bitbucket-pipelines", CI_REASON),
    match_prefix("jenkinsfile", CI_REASON),
    match_prefix("buildspec.y", CI_REASON),
    match_prefix("cloudbuild.", CI_REASON),
    match_name(".semaphore", CI_REASON),
    match_name(".teamcity", CI_REASON),
    match_name(".tekton", CI_REASON),
    match_prefix("wercker.y", CI_REASON),
    match_prefix("codemagic.y", CI_REASON),
    match_prefix("bitrise.y", CI_REASON),
    match_name(".builds", CI_REASON),
    match_prefix(".build.y", CI_REASON),
    match_name(".husky", HOOKS_REASON),
    match_name(".githooks", HOOKS_REASON),
    match_prefix(".pre-commit", HOOKS_REASON),
    match_prefix("lefthook", HOOKS_REASON),
    match_prefix(".lefthook", HOOKS_REASON),
    match_prefix(".lintstaged", HOOKS_REASON),
    match_prefix("lint-staged.", HOOKS_REASON),
    match_prefix(".overcommit", HOOKS_REASON),
    match_name(".npmrc", PACKAGES_REASON),
    match_prefix(".yarn", PACKAGES_REASON),
    match_prefix(".pnpmfile", PACKAGES_REASON),
    match_name("bunfig.toml", PACKAGES_REASON),
    match_name(".pypirc", PACKAGES_REASON),
    match_name("pip.conf", PACKAGES_REASON),
    match_name(".mvn", PACKAGES_REASON),
    match_prefix(".bundle", PACKAGES_REASON),
    match_name(".gemrc", PACKAGES_REASON),
    match_child(".cargo", "config", PACKAGES_REASON),
    match_child(".cargo", "config.toml", PACKAGES_REASON),
    match_child(".cargo", "credentials.toml", PACKAGES_REASON),
    match_child(".cargo", "bin", HOME_REASON),
    match_name(".tool-versions", TOOLS_REASON),
    match_prefix("mise.", TOOLS_REASON),
    match_prefix(".mise", TOOLS_REASON),
    match_name(".rtx.toml", TOOLS_REASON),
    match_name(".asdfrc", TOOLS_REASON),
    match_prefix(".proto", TOOLS_REASON),
    match_name("devbox.json", TOOLS_REASON),
    match_prefix("devenv.", TOOLS_REASON),
    match_name("flake.nix", TOOLS_REASON),
    match_name("shell.nix", TOOLS_REASON),
    match_name("default.nix", TOOLS_REASON),
    match_prefix("rust-toolchain", TOOLS_REASON),
    match_name(".ssh", HOME_REASON),
    match_name(".gnupg", HOME_REASON),
    match_name(".netrc", HOME_REASON),
    match_name(".gitconfig", HOME_REASON),
    match_name(".docker", HOME_REASON),
    match_name(".kube", HOME_REASON),
    match_name(".aws", HOME_REASON),
    match_name(".pam_environment", HOME_REASON),
    match_prefix(".xsession", HOME_REASON),
    match_prefix(".xinit", HOME_REASON),
    match_name(".xprofile", HOME_REASON),
    match_child(".local", "bin", HOME_REASON),
    match_child(".config", "autostart", HOME_REASON),
    match_child(".config", "systemd", HOME_REASON),
    match_child(".config", "git", HOME_REASON),
    match_child(".config", "fish", SHELL_REASON),
    match_child(".config", "nvim", EDITOR_REASON),
    match_child(".config", "mise", TOOLS_REASON),
    match_child(".config", "stockade", HOME_REASON),
    match_child(".config", "environment.d", HOME_REASON),
    match_name(".gdbinit", DEBUGGER_REASON),
    match_name(".lldbinit", DEBUGGER_REASON),
    match_name(".tmux.conf", DEBUGGER_REASON),
    match_name(".screenrc", DEBUGGER_REASON),
    match_name(".watchmanconfig", DEBUGGER_REASON),
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

    fn format_rule(rule: &NameMatch) -> String {
        match rule {
            NameMatch::Name(name) => format!("`{name}`"),
            NameMatch::Begins(start) => format!("`{start}*`"),
            NameMatch::Ends(end) => format!("`*{end}`"),
            NameMatch::Below(dir, child) => format!("`{dir}/{child}`"),
        }
    }

    fn format_table() -> String {
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for rule in HELD_NAME_RULES {
            reasons.entry(rule.reason).or_default().push(format_rule(&rule.matches));
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
        let meant =
            format!("{before}{TABLE_BEGIN_MARKER}{}{TABLE_END_MARKER}{after}", format_table());
        if std::env::var_os("STOCKADE_WRITE_DOCS").is_some() {
            std::fs::write(DOCS_PAGE, &meant).unwrap();
        }
        let help =
            "write it anew: STOCKADE_WRITE_DOCS=1 scripts/nextest run -p stockade-workspaces";
        assert_eq!(std::fs::read_to_string(DOCS_PAGE).unwrap(), meant, "{help}");
    }

    #[test]
    fn rules_are_lower_case_and_none_is_there_twice() {
        let mut all: Vec<_> =
            HELD_NAME_RULES.iter().map(|rule| format_rule(&rule.matches)).collect();
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
            assert!(crate::held_back::by_name(&name.parse().unwrap()).is_none(), "{name}");
        }
    }
}
