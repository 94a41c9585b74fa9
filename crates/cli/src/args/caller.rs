//! What a command finds of its caller without being told: language, time zone, and under whose name git
//! commits. Nothing here is a secret, and flags come first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use stockade_core::{EnvName, Image, SandboxSpec, Workspace};

/// The largest configuration of git that is looked at.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Variables of git's identity, with the key of its configuration that each is taken from.
const GIT_IDENTITY_ENV: [(&str, &str); 4] = [
    ("GIT_AUTHOR_NAME", "name"),
    ("GIT_AUTHOR_EMAIL", "email"),
    ("GIT_COMMITTER_NAME", "name"),
    ("GIT_COMMITTER_EMAIL", "email"),
];

/// Adds what a command may know of its caller to the environment of a spec.
pub fn add_to(spec: &mut SandboxSpec) {
    if spec.deterministic {
        return;
    }
    let on_host = spec.image == Image::Host;
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, value) in std::env::vars_os() {
        if let (Ok(name), Ok(value)) = (name.into_string(), value.into_string())
            && (name == "TZ" || on_host && is_locale(&name))
        {
            found.push((name, value));
        }
    }
    if on_host || has_repository(&spec.workspace) {
        found.extend(read_git_identity());
    }
    let named = found.into_iter().filter_map(|(name, value)| Some((name.parse().ok()?, value)));
    named.for_each(|(name, value): (EnvName, String)| {
        spec.env.entry(name).or_insert(value);
    });
}

/// Another root may not have the caller's language, and programs complain then.
fn is_locale(name: &str) -> bool {
    name == "LANG" || name == "LANGUAGE" || name.starts_with("LC_")
}

fn has_repository(workspace: &Workspace) -> bool {
    match workspace {
        Workspace::Local(dir) => dir.as_path().join(".git").exists(),
        Workspace::Overlay(layers) => layers.lower.as_path().join(".git").exists(),
        Workspace::Ephemeral => false,
    }
}

/// Name and mail as git would take them, from the environment or the user's own configuration. Git itself is
/// not asked: that would take longer than most commands, and read what lies in the workspace.
fn read_git_identity() -> Vec<(String, String)> {
    let mut configured: Option<BTreeMap<String, String>> = None;
    let value = |(variable, key): (&str, &str)| {
        let given = std::env::var(variable).ok().filter(|value| !value.is_empty());
        let value =
            given.or_else(|| configured.get_or_insert_with(user_section).get(key).cloned())?;
        Some((variable.to_owned(), value))
    };
    GIT_IDENTITY_ENV.into_iter().filter_map(value).collect()
}

/// The section `[user]` of the user's files, the later over the earlier.
fn user_section() -> BTreeMap<String, String> {
    let files = config_files(|name| std::env::var_os(name).map(PathBuf::from));
    let texts = files.iter().filter_map(|file| read_regular_file(file));
    texts.flat_map(|text| parse_user(&text)).collect()
}

fn config_files(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    if let Some(only) = variable("GIT_CONFIG_GLOBAL") {
        return vec![only];
    }
    let home = variable("HOME");
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let below = base.map(|base| base.join("git/config"));
    below.into_iter().chain(home.map(|home| home.join(".gitconfig"))).collect()
}

/// The text of a regular file: reading a pipe or a device of that name could block this command.
fn read_regular_file(file: &Path) -> Option<String> {
    if !std::fs::metadata(file).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(file).ok()?.take(MAX_CONFIG_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The keys of `[user]` in git's format, in lower case. Included files are not read.
fn parse_user(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let name = section.split(']').next().unwrap_or_default();
            inside = name.trim().eq_ignore_ascii_case("user");
        } else if inside && let Some((key, value)) = line.split_once('=') {
            let value = strip_quotes(value.trim());
            if !value.is_empty() {
                found.push((key.trim().to_ascii_lowercase(), value));
            }
        }
    }
    found
}

/// A value without its quotes and without the comment behind it.
fn strip_quotes(value: &str) -> String {
    let (mut plain, mut quoted) = (String::new(), false);
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => quoted = !quoted,
            '\\' => plain.extend(characters.next()),
            '#' | ';' if !quoted => break,
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_mail_are_read_as_git_reads_them() {
        let text = "# mine\n[core]\n\tname = not this\n[User]\n\tName = \"Ada \\\"B\\\" C\" ; really\n\
                    \temail = ada@example.org # home\n[user \"x\"]\n\temail = other@example.org\n";
        let expected = [("name", "Ada \"B\" C"), ("email", "ada@example.org")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(parse_user(text), expected);
        assert_eq!(parse_user("[user]\nname =\nname\n"), []);
    }

    #[test]
    fn the_file_in_the_home_directory_comes_last() {
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/h"));
        let expected = [PathBuf::from("/h/.config/git/config"), PathBuf::from("/h/.gitconfig")];
        assert_eq!(config_files(home), expected);
        let other = |name: &str| (name == "GIT_CONFIG_GLOBAL").then(|| PathBuf::from("/g"));
        assert_eq!(config_files(other), [PathBuf::from("/g")]);
    }
}
