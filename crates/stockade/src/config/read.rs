//! The files of the configuration: which are there, whether they can be trusted, and where something in them is wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade_core::{Error, ErrorCode, Result, Workspace};
use stockade_engine::real_path;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::variables::sources_in_env;
use super::{FRONT_END_KEYS, FrontEndReader, READ_OPERATION, Settings, config_files};
use crate::registry;

/// One file or variable that sets something.
#[derive(Debug)]
pub struct ConfigSource {
    /// What people call it.
    pub name: String,
    /// Which file; nothing if it is a variable.
    pub file: Option<PathBuf>,
    /// What it sets.
    pub values: toml::Table,
}

/// Everything that sets something, the earlier first.
pub fn load_sources() -> Result<Vec<ConfigSource>> {
    let mut sources = Vec::new();
    for file in config_files() {
        // The caller has loaded the settings before, so the text parses.
        if let Some(text) = read_file(&file)?
            && let Ok(values) = toml::from_str(&text)
        {
            let name = file.display().to_string();
            sources.push(ConfigSource { name, file: Some(file), values });
        }
    }
    sources.extend(sources_in_env());
    Ok(sources)
}

/// The text of a file, if it is there and no guest can have written it.
pub(super) fn read_trusted_file(
    file: &Path,
    workspace: Option<&Workspace>,
    note: &dyn Fn(&str),
) -> Result<Option<String>> {
    let Some(text) = read_file(file)? else { return Ok(None) };
    let dir = match workspace {
        Some(Workspace::Local(dir)) => Some(dir),
        Some(Workspace::Overlay(layers)) => Some(&layers.lower),
        Some(Workspace::Ephemeral) | None => None,
    };
    if dir.is_some_and(|dir| real_path(file).starts_with(dir.as_path())) {
        let file = file.display();
        note(&format!("note: `{file}` is ignored: it lies in the workspace"));
        return Ok(None);
    }
    Ok(Some(text))
}

/// The text of a file, if it is there.
fn read_file(file: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("`{}` cannot be read", file.display());
            Err(Error::new(ErrorCode::Invalid, READ_OPERATION, message)
                .remedy("make it a readable text file, or remove it")
                .source(error))
        }
    }
}

/// What a file says. What is wrong in it is refused with the file and the line.
pub(super) fn parse_settings(
    file: &Path,
    text: &str,
    front_end: &mut FrontEndReader<'_>,
) -> Result<Settings> {
    let settings = parse_text(text, front_end).map_err(|wrong| wrong.in_file(file, text))?;
    let wrong = |problem: &str, remedy: &str| {
        let message = format!("`{}`: {problem}", file.display());
        Err(Error::new(ErrorCode::Invalid, READ_OPERATION, message).remedy(remedy))
    };
    let problem = settings.images.problem().or_else(|| settings.network.problem());
    match (&settings.state_dir, problem) {
        (Some(dir), _) if !dir.is_absolute() => {
            wrong("stateDir is not an absolute path", "give the whole path")
        }
        (_, Some(problem)) => wrong(&problem, "correct or remove it"),
        (Some(_) | None, None) => Ok(settings),
    }
}

/// What is wrong in a text, and where.
struct SettingsFault {
    at: Option<Range<usize>>,
    message: String,
}

impl From<toml::de::Error> for SettingsFault {
    fn from(error: toml::de::Error) -> Self {
        Self { at: error.span(), message: error.message().to_owned() }
    }
}

impl SettingsFault {
    fn in_file(self, file: &Path, text: &str) -> Error {
        let line = self.at.map(|at| text[..at.start].matches('\n').count() + 1);
        let place = line.map(|line| format!(" line {line}")).unwrap_or_default();
        let message = format!("`{}`{place}: {}", file.display(), self.message);
        let remedy = match line.is_some() {
            // What the parser takes for a number, since it is no text.
            true if self.message.contains("invalid float") => {
                "put text into quotes: correct or remove that line"
            }
            true => "correct or remove that line",
            false => "correct or remove it",
        };
        Error::new(ErrorCode::Invalid, READ_OPERATION, message.replace('\n', " ")).remedy(remedy)
    }
}

/// Takes a text apart: the front end's keys and the tables of backends are read by those they belong to.
fn parse_text(text: &str, front_end: &mut FrontEndReader<'_>) -> Result<Settings, SettingsFault> {
    let document = DeTable::parse(text)?;
    let span = document.span();
    let (mut own, mut others, mut tables) = (DeTable::new(), DeTable::new(), BTreeMap::new());
    for (key, value) in document.into_inner() {
        let name = key.get_ref().to_string();
        if FRONT_END_KEYS.contains(&name.as_str()) {
            others.insert(key, value);
        } else if is_backend_table(&name) {
            tables.insert(name.clone(), read_backend_table(&name, value)?);
        } else {
            own.insert(key, value);
        }
    }
    front_end(toml::Deserializer::from(Spanned::new(span.clone(), others)))?;
    let top_level: Vec<_> = own.keys().map(Spanned::span).collect();
    let settings = Settings::deserialize(toml::Deserializer::from(Spanned::new(span, own)));
    let settings = settings.map_err(|error| name_every_key(error, &top_level))?;
    Ok(Settings { tables, ..settings })
}

/// Whether a backend reads the table of that name, here or in a build that has it.
fn is_backend_table(name: &str) -> bool {
    let built = registry::factories().into_iter().find(|factory| factory.name.as_str() == name);
    match built {
        Some(factory) => factory.table.is_some(),
        None => registry::KNOWN_BACKENDS.contains(&name),
    }
}

fn read_backend_table(
    name: &str,
    value: Spanned<DeValue<'_>>,
) -> Result<toml::Table, toml::de::Error> {
    let built = registry::factories().into_iter().find(|factory| factory.name.as_str() == name);
    if let Some(reader) = built.and_then(|factory| factory.table) {
        (reader.check)(ValueDeserializer::from(value.clone()))?;
    }
    toml::Table::deserialize(ValueDeserializer::from(value))
}

/// The parser lists the keys that it knows itself when it refuses one; others read more.
fn name_every_key(error: toml::de::Error, top_level: &[Range<usize>]) -> SettingsFault {
    let mut fault = SettingsFault::from(error);
    let unknown = fault.message.starts_with("unknown field");
    if unknown && fault.at.as_ref().is_some_and(|at| top_level.contains(at)) {
        let backends = registry::factories().into_iter().filter(|known| known.table.is_some());
        let backends: Vec<_> = backends.map(|factory| factory.name.to_string()).collect();
        let more = FRONT_END_KEYS.iter().copied().chain(backends.iter().map(String::as_str));
        more.for_each(|key| fault.message.push_str(&format!(", `{key}`")));
    }
    fault
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG_DOCS: &str = include_str!("../../../../docs/configuration.md");

    fn from_toml(text: &str) -> Result<Settings> {
        parse_settings(Path::new("/etc/x.toml"), text, &mut |_| Ok(()))
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_line_and_key() {
        for (text, line, key) in [
            ("backends = \"native\"", 1, "backends"),
            ("[limits]\nram = \"1g\"", 2, "ram"),
            ("[quotas.a]\nboxes = 1", 2, "boxes"),
            ("tenant = \"a\"\n[docker]\nsokcet = \"/x\"", 3, "sokcet"),
            ("[[ssh.hosts]]\nname = \"a\"\nkey = \"b\"", 3, "key"),
            ("[microvm]\nprepare = true", 2, "prepare"),
            ("[native]\nfast = true", 1, "native"),
            ("[[pool]]\nready = 2", 2, "ready"),
            ("[images]\npolicy = \"never\"", 2, "policy"),
            ("[[pool]]\n[pool.spec]\nnetwrok = \"none\"", 3, "netwrok"),
        ] {
            let error = from_toml(text).unwrap_err().to_string();
            let place = format!("`/etc/x.toml` line {line}: unknown field `{key}`");
            assert!(error.contains(&place), "{error}");
        }
    }

    #[test]
    fn a_key_of_the_command_line_is_passed_on_and_not_refused() {
        let mut seen = toml::Table::new();
        let text = "toolchain = \"none\"\n[profile.a]\nbackend = \"native\"";
        let passed = parse_settings(Path::new("/x"), text, &mut |keys| {
            seen = toml::Table::deserialize(keys)?;
            Ok(())
        });
        assert_eq!(passed.unwrap(), Settings::default());
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["profile", "toolchain"]);
    }

    /// The keys of a table, as the parser lists them for one that it does not know.
    fn keys(table: &str) -> Vec<String> {
        let error = from_toml(&format!("{table}\nno-such-key = 1")).unwrap_err().to_string();
        let listed = error.split_once("expected").unwrap_or_else(|| panic!("{table}: {error}")).1;
        // Every other piece between backticks is a name; the error's own remedy has none.
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_on_configuration_names_every_key() {
        const CONFIG_TABLES: [(&str, &str); 15] = [
            ("", ""),
            ("[limits]", "limits."),
            ("[quotas.a]", "quotas.NAME."),
            ("[defaultQuota]", "defaultQuota."),
            ("[docker]", "docker."),
            ("[microvm]", "microvm."),
            ("[microvm.firecracker]", "microvm.firecracker."),
            ("[microvm.firecracker.jailer]", "microvm.firecracker.jailer."),
            ("[remote]", "remote."),
            ("[[ssh.hosts]]", "ssh.hosts."),
            ("[[pool]]", "pool."),
            ("[network]", "network."),
            ("[images]", "images."),
            ("[images.limits]", "images.limits."),
            ("[images.registries.a]", "images.registries.NAME."),
        ];
        for (table, prefix) in CONFIG_TABLES {
            for key in keys(table) {
                let named = format!("`{prefix}{key}");
                assert!(
                    CONFIG_DOCS.contains(&named),
                    "docs/configuration.md does not name {named}`"
                );
            }
        }
        for key in keys("[ssh]") {
            assert!(CONFIG_DOCS.contains(&format!("`ssh.{key}")), "ssh.{key}");
        }
    }

    #[test]
    fn every_key_that_somebody_reads_is_listed_for_one_that_nobody_does() {
        let keys = keys("");
        for key in ["backend", "approval", "profile", "toolchain", "docker", "microvm", "ssh"] {
            assert!(keys.iter().any(|listed| listed == key), "{key} is not among {keys:?}");
        }
    }

    #[test]
    fn hosts_are_named_one_by_one_and_a_name_that_is_none_is_refused() {
        let text = "[[ssh.hosts]]\nname = \"a\"\ncapacity = 2\n[[ssh.hosts]]\nname = \"u@b\"";
        assert!(from_toml(text).is_ok());
        let error = from_toml("[[ssh.hosts]]\nname = \"-oX=y\"").unwrap_err().to_string();
        assert!(error.contains("-oX=y") && error.contains("ssh.hosts"), "{error}");
    }
}
