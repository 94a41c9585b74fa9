//! Settings from variables of the environment, `STOCKADE_…`.

use std::ffi::OsString;

use stockade_core::{BackendChoice, Error, ErrorCode, Result};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::read::ConfigSource;
use super::{DAEMON_BACKEND, FrontEndReader, READ_OPERATION, Settings};

const ENV_PREFIX: &str = "STOCKADE_";

/// One variable, the key of a file that means the same, and where its value goes.
type Variable = (&'static str, &'static str, fn(&mut Settings, &str) -> Result<(), String>);

const ENV_VARIABLES: [Variable; 16] = [
    ("BACKEND", "backend", |to, given| set_parsed(&mut to.backend, given)),
    ("HOST", "remote.url", |to, given| {
        to.set_daemon_url(given);
        to.backend.get_or_insert(BackendChoice::Named(DAEMON_BACKEND));
        Ok(())
    }),
    ("TOKEN_FILE", "remote.tokenFile", |to, given| {
        to.daemon_token = Some(given.to_owned());
        Ok(())
    }),
    ("CA_FILE", "remote.caFile", |to, given| {
        to.daemon_ca = Some(given.to_owned());
        Ok(())
    }),
    ("BOUNDARIES", "boundaries", |to, given| {
        let all: Result<_, String> = given.split(',').map(str::parse).collect();
        to.boundaries = Some(all?);
        Ok(())
    }),
    ("TENANT", "tenant", |to, given| set_parsed(&mut to.tenant, given)),
    ("STATE_DIR", "stateDir", |to, given| {
        let dir = std::path::absolute(given).map_err(|error| error.to_string())?;
        to.state_dir = Some(dir);
        Ok(())
    }),
    ("CPU", "limits.cpuRate", |to, given| set_parsed(&mut to.limits.cpu_rate, given)),
    ("MEM", "limits.memory", |to, given| set_parsed(&mut to.limits.memory, given)),
    ("DISK", "limits.disk", |to, given| set_parsed(&mut to.limits.disk, given)),
    ("PIDS", "limits.processes", |to, given| set_parsed(&mut to.limits.processes, given)),
    ("TIMEOUT", "limits.wallTime", |to, given| set_parsed(&mut to.limits.wall_time, given)),
    ("CPU_TIME", "limits.cpuTime", |to, given| set_parsed(&mut to.limits.cpu_time, given)),
    ("MAX_OUTPUT", "limits.output", |to, given| set_parsed(&mut to.limits.output, given)),
    ("OPEN_FILES", "limits.openFiles", |to, given| set_parsed(&mut to.limits.open_files, given)),
    ("STRICT", "strict", |to, given| set_parsed(&mut to.strict, given)),
];

/// Variables for the front end's own keys, which it reads as it reads them in a file.
const FRONT_END_VARIABLES: [(&str, &str); 3] =
    [("TOOLCHAIN", "toolchain"), ("CACHE", "cache"), ("CACHE_LIMIT", "cacheLimit")];

fn set_parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    to: &mut Option<T>,
    given: &str,
) -> Result<(), String> {
    *to = Some(given.parse().map_err(|error: T::Err| error.to_string())?);
    Ok(())
}

/// The variables that set something here.
pub(super) fn sources_in_env() -> Vec<ConfigSource> {
    let own = ENV_VARIABLES.iter().map(|(variable, key, _)| (*variable, *key));
    let known = own.chain(FRONT_END_VARIABLES);
    let set = known.filter_map(|(variable, key)| {
        let name = format!("{ENV_PREFIX}{variable}");
        let value = toml::Value::String(std::env::var(&name).ok()?);
        let values = toml::Table::from_iter([(key.to_owned(), value)]);
        Some(ConfigSource { name, file: None, values })
    });
    set.collect()
}

/// What the variables say. One that begins as ours and is none is told to `note`.
pub(super) fn from_env(
    variables: impl Iterator<Item = (OsString, OsString)>,
    note: &dyn Fn(&str),
    front_end: &mut FrontEndReader<'_>,
) -> Result<Settings> {
    let mut settings = Settings::default();
    for (name, value) in variables {
        let Some(name) = name.to_str() else { continue };
        let Some(variable) = name.strip_prefix(ENV_PREFIX) else { continue };
        // The conformance kit's own, for the engines that it starts.
        if variable.starts_with("TCK_") {
            continue;
        }
        let applied = match value.to_str() {
            Some(value) => apply_variable(variable, value, &mut settings, front_end),
            None if is_known(variable) => Err("is not valid UTF-8".into()),
            None => Ok(false),
        };
        if !applied.map_err(|why| wrong_variable(name, &why))? {
            note(&format!("note: {name} is no setting of stockade: ignored"));
        }
    }
    Ok(settings)
}

fn is_known(variable: &str) -> bool {
    ENV_VARIABLES.iter().any(|(known, ..)| *known == variable)
        || FRONT_END_VARIABLES.iter().any(|(known, _)| *known == variable)
}

/// Sets what a variable says; false if there is none of that name.
fn apply_variable(
    variable: &str,
    value: &str,
    settings: &mut Settings,
    front_end: &mut FrontEndReader<'_>,
) -> Result<bool, String> {
    if let Some((.., apply)) = ENV_VARIABLES.iter().find(|(known, ..)| *known == variable) {
        return apply(settings, value).map(|()| true);
    }
    let Some((_, key)) = FRONT_END_VARIABLES.iter().find(|(known, _)| *known == variable) else {
        return Ok(false);
    };
    let mut table = DeTable::new();
    let text = DeValue::String(DeString::Owned(value.to_owned()));
    table.insert(Spanned::new(0..0, DeString::Borrowed(key)), Spanned::new(0..0, text));
    let read = front_end(toml::Deserializer::from(Spanned::new(0..0, table)));
    read.map(|()| true).map_err(|error| error.message().to_owned())
}

fn wrong_variable(name: &str, why: &str) -> Error {
    Error::new(ErrorCode::Invalid, READ_OPERATION, format!("{name}: {why}"))
        .remedy("correct or unset it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_a_setting_and_nonsense_is_refused_by_its_name() {
        let given = |name: &str, value: &str| {
            let all = [(OsString::from(name), OsString::from(value))];
            from_env(all.into_iter(), &|_| {}, &mut |_| Ok(()))
        };
        assert_eq!(given("STOCKADE_MEM", "1g").unwrap().limits.memory.unwrap().0, 1 << 30);
        assert_eq!(given("STOCKADE_STRICT", "true").unwrap().strict, Some(true));
        let remote = given("STOCKADE_HOST", "unix:///a").unwrap();
        assert_eq!(remote, Settings::default().with_daemon("unix:///a"));
        let token = given("STOCKADE_TOKEN_FILE", "/t").unwrap().daemon_token;
        assert_eq!(token.as_deref(), Some("/t"));
        let table = given("STOCKADE_CA_FILE", "/ca.pem").unwrap().backend_table(&DAEMON_BACKEND);
        assert_eq!(table.get("caFile").and_then(toml::Value::as_str), Some("/ca.pem"));
        for name in ["STOCKADE_MEM", "STOCKADE_TIMEOUT", "STOCKADE_PIDS", "STOCKADE_BOUNDARIES"] {
            let error = given(name, "lots").unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("unset"), "{error}");
        }
    }

    #[test]
    fn a_variable_that_is_no_setting_is_told_and_not_refused() {
        let told = std::cell::RefCell::new(Vec::new());
        let all = [("STOCKADE_MEMORY".into(), "1g".into()), ("STOCKADE_TCK_X".into(), "1".into())];
        let note = |line: &str| told.borrow_mut().push(line.to_owned());
        from_env(all.into_iter(), &note, &mut |_| Ok(())).unwrap();
        assert_eq!(
            *told.borrow(),
            ["note: STOCKADE_MEMORY is no setting of stockade: ignored".to_owned()]
        );
    }

    #[test]
    fn the_page_on_configuration_names_every_variable() {
        const CONFIG_DOCS: &str = include_str!("../../../../docs/configuration.md");
        let own = ENV_VARIABLES.iter().map(|(variable, key, _)| (*variable, *key));
        for (variable, key) in own.chain(FRONT_END_VARIABLES) {
            let row = format!("| `{ENV_PREFIX}{variable}` | `{key}` |");
            assert!(CONFIG_DOCS.contains(&row), "docs/configuration.md has no row {row}");
        }
    }
}
