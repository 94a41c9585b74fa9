//! `stockade config`: what is configured and where each value comes from. Writes nothing.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use stockade_core::{BackendChoice, Error, ErrorCode, Result};

use crate::config::{ConfigSource, Settings, load_sources};
use crate::profiles::check_limits;
use crate::registry;
use crate::terminal::printer::{Printer, Tone};
use crate::terminal::table::{Cell, Table};

/// What to do with the configuration.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Show each value that is set, and which file or variable sets it.
    Show,
    /// Check the configuration as a command would read it.
    Check,
}

/// One value.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct EffectiveValue {
    key: String,
    value: String,
    from: String,
}

/// Shows or checks it.
pub fn config(args: &ConfigArgs, printer: &Printer) -> Result<i32> {
    let settings = Settings::load(None, printer)?;
    let found = load_sources()?;
    match args.verb {
        ConfigVerb::Show => show_settings(&settings, found, printer),
        ConfigVerb::Check => check_settings(&settings, &found, printer),
    }
}

fn show_settings(settings: &Settings, found: Vec<ConfigSource>, printer: &Printer) -> Result<i32> {
    let files: Vec<PathBuf> = found.iter().filter_map(|source| source.file.clone()).collect();
    let mut values = collect_effective_values(found);
    if !values.iter().any(|value| value.key == "stateDir") {
        let value = format!("{:?}", settings.state_dir()?);
        values.push(EffectiveValue { key: "stateDir".into(), value, from: "default".into() });
    }
    if printer.is_json() {
        printer.json(&json!({ "files": files, "settings": values }));
        return Ok(0);
    }
    let mut table = Table::new(["KEY", "VALUE", "FROM"]);
    for EffectiveValue { key, value, from } in values {
        table.row([Cell::plain(key), Cell::plain(value), Cell::plain(from)]);
    }
    printer.data(&table.render(printer));
    Ok(0)
}

/// The values that hold: a later source's in the place of an earlier one's.
fn collect_effective_values(found: Vec<ConfigSource>) -> Vec<EffectiveValue> {
    let mut values: Vec<EffectiveValue> = Vec::new();
    for source in found {
        for (key, value) in flatten_table("", &toml::Value::Table(source.values)) {
            values.retain(|known| known.key != key);
            values.push(EffectiveValue { key, value, from: source.name.clone() });
        }
    }
    values.sort_by(|one, other| one.key.cmp(&other.key));
    values
}

/// Tables by dotted keys, everything else as it would be written.
fn flatten_table(prefix: &str, value: &toml::Value) -> Vec<(String, String)> {
    let toml::Value::Table(table) = value else {
        // JSON, which for everything but dates is how TOML writes it.
        return vec![(prefix.to_owned(), serde_json::to_string(value).unwrap_or_default())];
    };
    let below = table.iter().flat_map(|(key, value)| {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        flatten_table(&key, value)
    });
    below.collect()
}

fn check_settings(settings: &Settings, found: &[ConfigSource], printer: &Printer) -> Result<i32> {
    let choice = settings.backend.clone().unwrap_or(BackendChoice::Auto);
    let from = found.iter().rev().find(|source| source.values.contains_key("backend"));
    let from = from.map_or("the configuration", |source| source.name.as_str());
    check_backend(settings, &choice, &format!("{from}: backend"))?;
    settings.engine()?;
    check_limits("limits", &settings.limits)?;
    for (name, profile) in settings.profiles() {
        profile.check(name)?;
        if let Some(choice) = profile.backend() {
            check_backend(settings, choice, &format!("profile.{name}.backend"))?;
        }
    }
    let read: Vec<_> = found.iter().map(|source| source.name.as_str()).collect();
    if printer.is_json() {
        printer.json(&json!({ "valid": true, "read": read }));
        return Ok(0);
    }
    let all = if read.is_empty() { "nothing is configured".into() } else { read.join(", ") };
    printer.data(&format!("{}: {all}\n", printer.tone(Tone::Good, "valid")));
    Ok(0)
}

/// Whether a backend can be built from its settings; `key` is where it is named.
fn check_backend(settings: &Settings, choice: &BackendChoice, key: &str) -> Result<()> {
    let Err(error) = registry::build_backends(settings, choice) else { return Ok(()) };
    let message = format!("{key}: {}", error.message());
    let wrong = Error::new(ErrorCode::Invalid, "config check", message);
    Err(match error.hint() {
        Some(hint) => wrong.remedy(hint),
        None => wrong,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> ConfigSource {
        ConfigSource { name: name.into(), file: None, values: toml::from_str(text).unwrap() }
    }

    #[test]
    fn a_later_source_takes_the_place_of_an_earlier_ones_value() {
        let early = source("system", "backend = \"native\"\n[limits]\nmemory = \"1g\"");
        let late = source("user", "[limits]\nmemory = \"2g\"\ndisk = \"3g\"");
        let shown: Vec<_> = collect_effective_values(vec![early, late])
            .into_iter()
            .map(|EffectiveValue { key, value, from }| format!("{key}={value} {from}"))
            .collect();
        let expected =
            ["backend=\"native\" system", "limits.disk=\"3g\" user", "limits.memory=\"2g\" user"];
        assert_eq!(shown, expected);
    }
}
