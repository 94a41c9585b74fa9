//! The variables a command gets: those that flags and files name, and no others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stockade_core::{EnvName, Error, ErrorCode, Result};

const ENV_FLAG: &str = "--env";
const ENV_FILE_FLAG: &str = "--env-file";
/// Size of an environment file: far more than any environment a program can be given.
const MAX_ENV_FILE_BYTES: u64 = 1 << 20;

/// Files first, flags over them, in the order they were given.
pub fn gather_variables(files: &[PathBuf], flags: &[String]) -> Result<BTreeMap<EnvName, String>> {
    let mut all = BTreeMap::new();
    for file in files {
        read_file(file, &mut all)?;
    }
    for flag in flags {
        let (name, value) = parse_variable(flag)?;
        all.insert(name, value);
    }
    Ok(all)
}

fn parse_variable(given: &str) -> Result<(EnvName, String)> {
    let (name, value) = match given.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (given, None),
    };
    let name: EnvName =
        name.parse().map_err(|error| invalid_flag_error(ENV_FLAG, format!("{error}")))?;
    match value {
        Some(value) => Ok((name, value)),
        None => inherit_variable(name),
    }
}

fn inherit_variable(name: EnvName) -> Result<(EnvName, String)> {
    match std::env::var(name.as_str()) {
        Ok(value) => Ok((name, value)),
        Err(std::env::VarError::NotPresent) => {
            Err(invalid_flag_error(ENV_FLAG, format!("{name} is not set here"))
                .remedy(format!("set it, or give a value: --env {name}=…")))
        }
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(invalid_flag_error(ENV_FLAG, format!("the value of {name} is not valid UTF-8")))
        }
    }
}

fn read_file(file: &Path, all: &mut BTreeMap<EnvName, String>) -> Result<()> {
    for (at, line) in read_env_file(file)?.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line itself may be a secret, so only its place is told (C-41).
        let place = || format!("`{}` line {}", file.display(), at + 1);
        let (name, value) = line.split_once('=').ok_or_else(|| {
            invalid_flag_error(ENV_FILE_FLAG, format!("{} is not of the form K=V", place()))
        })?;
        // As in a file that a shell reads too.
        let name = name.strip_prefix("export ").unwrap_or(name).trim_start();
        let name = name.parse().map_err(|_| {
            invalid_flag_error(ENV_FILE_FLAG, format!("{} does not name a variable", place()))
        })?;
        all.insert(name, value.to_owned());
    }
    Ok(())
}

fn read_env_file(file: &Path) -> Result<String> {
    let unreadable = |error: std::io::Error| {
        invalid_flag_error(ENV_FILE_FLAG, format!("`{}` cannot be read", file.display()))
            .remedy("give a text file that is there and that you may read")
            .source(error)
    };
    let size = std::fs::metadata(file).map_err(unreadable)?.len();
    if size > MAX_ENV_FILE_BYTES {
        return Err(invalid_flag_error(
            ENV_FILE_FLAG,
            format!("`{}` is larger than {MAX_ENV_FILE_BYTES} bytes", file.display()),
        ));
    }
    std::fs::read_to_string(file).map_err(unreadable)
}

fn invalid_flag_error(flag: &'static str, message: String) -> Error {
    Error::new(ErrorCode::Invalid, flag, message)
}
