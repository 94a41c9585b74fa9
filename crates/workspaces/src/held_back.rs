//! What is held back from `apply` unless it is named (C-24): changes that would make some program of
//! the host run code later, or that reach out of the tree. It does not matter whether the file was
//! there before.
//!
//! Names that begin with a dot are programs' own, and no list of those programs is ever whole: so such
//! a name is held back unless it was reviewed and found to be data. Other names are held back where
//! they are listed. What is only removed is held back where it is listed: an absent file names no code.
//!
//! Judged by name at any depth, without regard to case: on some file systems `.GIT` is `.git`.

use std::fmt;

use serde::Serialize;

use crate::held_names::{
    GIT_REASON, HARMLESS_DOTFILES, HELD_NAME_RULES, HeldRule, NameMatch, SHORT_NAME_REASON,
    UNKNOWN_DOTFILE_REASON, within_git,
};
use crate::path::TreePath;
use crate::tree::OpenTree;

/// Why a change is held back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum HeldReason {
    /// Some program of the host would run code by it.
    RunsCode(&'static str),
    /// A directory with such a path in it would be removed.
    Contains(TreePath),
    /// The file would run with its owner's or group's rights.
    SetId,
    /// The symbolic link leads out of the tree, or could.
    LeavesTree,
    /// A device, fifo or socket: not applied even if named.
    Special,
    /// It cannot be read, or is nested too deeply: not applied even if named.
    OutOfReach,
}

impl HeldReason {
    /// Whether naming the path lets it through.
    pub fn can_be_named(&self) -> bool {
        match self {
            Self::RunsCode(_) | Self::Contains(_) | Self::SetId | Self::LeavesTree => true,
            Self::Special | Self::OutOfReach => false,
        }
    }
}

impl fmt::Display for HeldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunsCode(why) => f.write_str(why),
            Self::Contains(path) => write!(f, "{path} would be removed with it"),
            Self::SetId => f.write_str("it would run with its owner's or group's rights"),
            Self::LeavesTree => f.write_str("the link leads out of the tree"),
            Self::Special => f.write_str("it is a device, fifo or socket"),
            Self::OutOfReach => f.write_str("it cannot be read"),
        }
    }
}

/// Why a path is held back for what it is called.
pub(crate) fn by_name(path: &TreePath) -> Option<&'static str> {
    by_listed_name(path).or_else(|| path.names().find_map(by_unlisted_name))
}

/// Whether a path has a name that is known to make programs run code.
pub(crate) fn is_listed(path: &TreePath) -> bool {
    by_listed_name(path).is_some()
}

/// Why a path is held back for a name that is known to make programs run code.
pub(crate) fn by_listed_name(path: &TreePath) -> Option<&'static str> {
    let names: Vec<Vec<u8>> = path.names().map(fold_name).collect();
    names.iter().enumerate().find_map(|(at, name)| {
        let rest = &names[at + 1..];
        if name == b".git" {
            return within_git(rest);
        }
        HELD_NAME_RULES
            .iter()
            .find(|rule| is_rule_match(&rule.matches, name, rest))
            .map(|rule| rule.reason)
    })
}

/// Why a name is held back although no rule lists it: it begins with a dot and was not reviewed, or
/// stands for a name that it does not show.
fn by_unlisted_name(name: &[u8]) -> Option<&'static str> {
    let folded = fold_name(name);
    let dotted = name.starts_with(b".") || folded.starts_with(b".");
    let harmless =
        HARMLESS_DOTFILES.iter().any(|known| known.as_bytes() == folded) || folded == b".git";
    if dotted && !harmless {
        return Some(UNKNOWN_DOTFILE_REASON);
    }
    is_short_name(&folded).then_some(SHORT_NAME_REASON)
}

/// Whether a name has the form in which FAT and NTFS abbreviate longer ones: `GIT~1` opens `.git`.
fn is_short_name(name: &[u8]) -> bool {
    let stem = name.split(|byte| *byte == b'.').next().unwrap_or(name);
    let Some(tilde) = stem.iter().rposition(|byte| *byte == b'~') else { return false };
    let number = &stem[tilde + 1..];
    stem.len() <= 8 && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

/// A name as the most forgiving of file systems sees it: without regard to case, without characters
/// that do not show, without dots and blanks at its end.
pub(crate) fn fold_name(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_ascii_lowercase() };
    let shown = text.chars().filter(|c| !is_ignorable(*c));
    let folded: String = shown.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    folded.trim_end_matches(['.', ' ']).as_bytes().to_vec()
}

/// Characters that file systems without regard to case pass over.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{e0000}'..='\u{e0fff}')
}

/// Why a symbolic link is held back for what its path could hold if it were a directory: the link
/// could stand for one of another name.
pub(crate) fn by_what_is_in_it(path: &TreePath) -> Option<&'static str> {
    if in_git(path) {
        return Some(GIT_REASON);
    }
    let name = fold_name(path.split()?.1);
    let holds = |rule: &&HeldRule| match rule.matches {
        NameMatch::Below(dir, _) => name == dir.as_bytes(),
        NameMatch::Name(_) | NameMatch::Begins(_) | NameMatch::Ends(_) => false,
    };
    HELD_NAME_RULES.iter().find(holds).map(|rule| rule.reason)
}

/// Whether a path lies in a repository's own directory.
pub(crate) fn in_git(path: &TreePath) -> bool {
    path.names().any(|name| fold_name(name) == b".git")
}

fn is_rule_match(rule: &NameMatch, name: &[u8], rest: &[Vec<u8>]) -> bool {
    match rule {
        NameMatch::Name(wanted) => name == wanted.as_bytes(),
        NameMatch::Begins(start) => name.starts_with(start.as_bytes()),
        NameMatch::Ends(end) => name.ends_with(end.as_bytes()),
        NameMatch::Below(dir, child) => {
            name == dir.as_bytes() && rest.first().is_some_and(|next| next == child.as_bytes())
        }
    }
}

/// Whether a symbolic link at a path leads out of the tree, or could.
pub(crate) fn is_link_leaving(tree: &OpenTree, path: &TreePath, target: &[u8]) -> bool {
    let above = path.split().map_or_else(TreePath::root, |(parent, _)| parent);
    link_leaves(path, target) || tree.is_escaping(&above, target)
}

/// Whether a symbolic link at a path could lead out of the tree, by what it says.
///
/// After a name that may itself be a link, where `..` leads cannot be told from here; so only those in
/// front count, and not more of them than there are directories above.
fn link_leaves(path: &TreePath, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut up = 0;
    let mut named = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if named => return true,
            b".." => up += 1,
            _ => named = true,
        }
    }
    up >= path.names().count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_path_held(path: &str) -> bool {
        by_name(&path.parse().unwrap()).is_some()
    }

    #[test]
    fn what_runs_code_is_held_at_any_depth_and_in_any_case() {
        for path in [
            ".git/hooks/pre-commit",
            "sub/.git/config",
            ".GIT/Config",
            ".git",
            ".git/config.worktree",
            ".git/modules/x/hooks/post-checkout",
            ".git/info/attributes",
            ".git/objects/info/alternates",
            ".git/rebase-merge/git-rebase-todo",
            ".envrc",
            "a/b/.ENVRC",
            ".vscode/tasks.json",
            ".idea",
            ".claude/settings.json",
            "Claude.md",
            "docs/AGENTS.md",
            ".cursorrules",
            ".mcp.json",
            ".aider.conf.yml",
            ".github/workflows/ci.yml",
            ".gitlab-ci.yml",
            "Jenkinsfile",
            ".husky/pre-push",
            ".npmrc",
            "mise.toml",
            ".tool-versions",
            ".cargo/config.toml",
            "x.code-workspace",
            ".bashrc",
            ".hg/hgrc",
            ".jj/repo/config.toml",
            ".sl/config",
            ".svn/wc.db",
            ".bzr/branch/branch.conf",
            ".pijul/config",
            "_darcs/prefs/defaults",
            "_FOSSIL_",
            "repo.fossil",
            "CVS/Root",
            "_MTN/monotonerc",
            ".Rprofile",
            ".irbrc",
            ".ghci",
            ".pdbrc",
            ".cshrc",
            ".login",
            "ansible.cfg",
            ".config/stockade/config.toml",
            ".cargo/registry",
            ".prettierrc",
            ".eslintrc.json",
            ".env",
            ".venv/bin/activate",
            ".anything-made-up-tomorrow",
            "a/.x/b",
            "...",
            "\u{200c}.x",
            "GIT~1/config",
            "CLAUDE~1.MD",
            ".git\u{3a}\u{3a}$INDEX_ALLOCATION/config",
            ".g\u{200c}it/config",
            ".hu\u{17f}\u{212a}y/pre-push",
            ".git /hooks/x",
            ".envrc.",
        ] {
            assert!(is_path_held(path), "{path}");
        }
    }

    #[test]
    fn plain_work_is_not_held() {
        for path in [
            "src/main.rs",
            "README.md",
            ".git/objects/ab/cdef",
            ".git/refs/heads/main",
            ".git/index",
            ".git/HEAD",
            ".git/logs/HEAD",
            ".gitignore",
            "config",
            "hooks/x",
            "vscode/x",
            "package.json",
            ".gitattributes",
            "sub/.editorconfig",
            ".DS_Store",
            ".well-known/security.txt",
            "cvs/parser.rs",
            "file~",
            "longer-name~1.txt",
            "a..b",
            "agents.rs",
        ] {
            assert!(!is_path_held(path), "{path}");
        }
    }

    #[test]
    fn links_out_of_the_tree_are_seen_through_other_links() {
        let leaves =
            |path: &str, target: &str| link_leaves(&path.parse().unwrap(), target.as_bytes());
        for (path, target) in [
            ("l", "/etc/passwd"),
            ("l", ".."),
            ("a/l", "../../x"),
            ("l", "d/../x"),
            ("a/b/l", "../c/../../../x"),
        ] {
            assert!(leaves(path, target), "{path} -> {target}");
        }
        for (path, target) in [("l", "x"), ("a/l", "../x"), ("a/b/l", "../../x/y"), ("l", "./x//y")]
        {
            assert!(!leaves(path, target), "{path} -> {target}");
        }
    }

    proptest! {
        #[test]
        fn a_held_name_is_held_wherever_it_is_and_however_it_is_written(
            rule in 0..HELD_NAME_RULES.len(), above in "[a-z]{0,5}", below in "[a-z]{0,5}", flips in any::<u64>()
        ) {
            let name = match HELD_NAME_RULES[rule].matches {
                NameMatch::Name(name) => name.to_owned(),
                NameMatch::Begins(start) => format!("{start}x"),
                NameMatch::Ends(end) => format!("x{end}"),
                NameMatch::Below(dir, child) => format!("{dir}/{child}"),
            };
            let name: String = name.chars().enumerate().map(|(at, c)| {
                if flips >> (at % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c }
            }).collect();
            let path = format!("{above}/{name}/{below}");
            prop_assert!(is_path_held(path.trim_matches('/')), "{}", path);
        }

        #[test]
        fn no_name_makes_the_judge_panic(bytes in prop::collection::vec(1u8..=255, 1..60)) {
            if let Ok(path) = TreePath::from_bytes(&bytes) {
                let _ = by_name(&path);
                let _ = link_leaves(&path, &bytes);
            }
        }
    }
}
