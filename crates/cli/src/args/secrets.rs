//! The secrets that `--secret` binds, and their values: from the caller's environment, from files, or from
//! commands. Values are handed to the engine, or to a supervisor by its pipe, and are neither shown nor kept (C-41).
//!
//! The flags are parsed here and not by the parser of flags, whose errors show what was given: that may be a
//! secret, given by mistake.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stockade_core::{EnvName, Error, ErrorCode, Result, SecretBinding, SecretValue};
use stockade_engine::{IssuedSecret, SecretCommand, SecretSupply, Timestamp};

const SECRET_FLAG: &str = "--secret";
const FILE_FLAG: &str = "--secret-file";
const COMMAND_FLAG: &str = "--secret-command";
/// The most that is read of a file: more than the longest value.
const MAX_SOURCE_BYTES: u64 = 64 << 10;

/// Values of secrets by their names.
pub type SecretValues = BTreeMap<EnvName, GatheredSecret>;

/// The value of a secret, and what gives another one later.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatheredSecret {
    value: SecretValue,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<SecretCommand>,
}

impl From<GatheredSecret> for SecretSupply {
    fn from(GatheredSecret { value, expires, command }: GatheredSecret) -> Self {
        match command {
            Some(command) => {
                let issued = IssuedSecret { value, expires: expires.map(Into::into) };
                Self::new(issued, Arc::new(command))
            }
            None => value.into(),
        }
    }
}

/// Where the value of a secret comes from.
#[derive(Debug, Clone)]
enum SecretSource {
    File(PathBuf),
    /// A line of shell, which prints it.
    Command(String),
}

/// What `--secret` binds.
pub fn parse_bindings(given: &[String]) -> Result<Vec<SecretBinding>> {
    let parse = |given: &String| -> Result<SecretBinding> {
        given.parse().map_err(|reason: String| {
            Error::new(ErrorCode::Invalid, SECRET_FLAG, reason).remedy(
                "its value is not given here: set the variable, or name a file or a command",
            )
        })
    };
    given.iter().map(parse).collect()
}

/// A value for each secret that is bound: of its file or command, else of the variable of its name.
pub async fn gather_secrets(
    bound: &[SecretBinding],
    files: &[String],
    commands: &[String],
) -> Result<SecretValues> {
    let sources = parse_sources(bound, files, commands)?;
    let mut values = SecretValues::new();
    for name in bound.iter().map(SecretBinding::name) {
        let gathered = match sources.get(name) {
            Some(SecretSource::File(path)) => check_value(name, read_secret_file(path)?)?,
            Some(SecretSource::Command(line)) => ask_command(name, line).await?,
            None => check_value(name, read_variable(name)?)?,
        };
        values.insert(name.clone(), gathered);
    }
    Ok(values)
}

fn check_value(name: &EnvName, value: String) -> Result<GatheredSecret> {
    let value = SecretValue::try_from(value).map_err(|reason| {
        Error::new(ErrorCode::Invalid, SECRET_FLAG, format!("`{name}`: {reason}"))
    })?;
    Ok(GatheredSecret { value, expires: None, command: None })
}

fn parse_sources(
    bound: &[SecretBinding],
    files: &[String],
    commands: &[String],
) -> Result<BTreeMap<EnvName, SecretSource>> {
    let files = files.iter().map(|given| (FILE_FLAG, given));
    let commands = commands.iter().map(|given| (COMMAND_FLAG, given));
    let mut sources = BTreeMap::new();
    for (flag, given) in files.chain(commands) {
        let (name, source) = parse_source(flag, given)?;
        if !bound.iter().any(|secret| *secret.name() == name) {
            let message = format!("`{name}` is bound to no host");
            return Err(Error::new(ErrorCode::Invalid, flag, message)
                .remedy(format!("bind it as well: `--secret {name}=HOST`")));
        }
        if sources.insert(name.clone(), source).is_some() {
            let message = format!("the value of `{name}` is given twice");
            return Err(Error::new(ErrorCode::Invalid, flag, message)
                .remedy("give one file or one command"));
        }
    }
    Ok(sources)
}

fn parse_source(flag: &'static str, given: &str) -> Result<(EnvName, SecretSource)> {
    let parsed = given.split_once('=').filter(|(_, source)| !source.is_empty());
    let parsed = parsed.and_then(|(name, source)| Some((name.parse().ok()?, source)));
    match parsed {
        Some((name, path)) if flag == FILE_FLAG => Ok((name, SecretSource::File(path.into()))),
        Some((name, line)) => Ok((name, SecretSource::Command(line.to_owned()))),
        None => Err(Error::new(ErrorCode::Invalid, flag, "it names no variable, or no source")
            .remedy(format!("give `{flag} NAME=…`, with the name that --secret binds"))),
    }
}

fn read_variable(name: &EnvName) -> Result<String> {
    std::env::var(name.as_str()).map_err(|error| {
        let reason = match error {
            std::env::VarError::NotPresent => "is not set here",
            // Its text is the value, so that the error is not passed on.
            std::env::VarError::NotUnicode(_) => "is not valid UTF-8",
        };
        Error::new(ErrorCode::Invalid, SECRET_FLAG, format!("the variable {name} {reason}")).remedy(
            format!(
                "set it, or name where the value is: `--secret-file {name}=PATH`, \
                 `--secret-command {name}=COMMAND`"
            ),
        )
    })
}

fn read_secret_file(path: &PathBuf) -> Result<String> {
    let read = File::open(path).and_then(read_line);
    read.map_err(|error| {
        let message = format!("`{}` cannot be read", path.display());
        Error::new(ErrorCode::Invalid, FILE_FLAG, message)
            .remedy("give a text file that is there and that you may read")
            .source(error)
    })
}

/// Its error output is this program's.
async fn ask_command(name: &EnvName, line: &str) -> Result<GatheredSecret> {
    let failed = |message: String| {
        Error::new(ErrorCode::Invalid, COMMAND_FLAG, message)
            .remedy("run it by itself: it has to print the value, and to end with 0")
    };
    let dir = std::env::current_dir().map_err(|error| {
        failed(format!("`{name}`: there is no directory to run its command in")).source(error)
    })?;
    let command = SecretCommand::new(line.to_owned(), dir);
    let issued = command.ask_attended().await;
    let issued = issued.map_err(|reason| failed(format!("`{name}`: {reason}")))?;
    let expires = issued.expires.map(Timestamp::from);
    Ok(GatheredSecret { value: issued.value, expires, command: Some(command) })
}

/// A text without the end of its last line.
fn read_line(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(MAX_SOURCE_BYTES).read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn gather(bound: &str, files: &[&str], commands: &[&str]) -> Result<SecretValues> {
        let owned = |given: &[&str]| given.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        gather_secrets(&[bound.parse().unwrap()], &owned(files), &owned(commands)).await
    }

    fn value_of(values: &SecretValues) -> &str {
        let key: EnvName = "KEY".parse().unwrap();
        values[&key].value.expose()
    }

    #[tokio::test]
    async fn a_value_is_the_line_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "correct horse\r\n").unwrap();
        let file = format!("KEY={}", path.display());
        let values = gather("KEY=a.org", &[&file], &[]).await.unwrap();
        assert_eq!(value_of(&values), "correct horse");
        assert!(gather("OTHER=a.org", &[&file], &[]).await.is_err());
        assert!(gather("KEY=a.org", &[&file, &file], &[]).await.is_err());
        std::fs::write(&path, "hunter2").unwrap();
        let error = gather("KEY=a.org", &[&file], &[]).await.unwrap_err().to_string();
        assert!(error.contains("`KEY`") && !error.contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn a_value_is_what_its_command_prints() {
        let values = gather("KEY=a.org", &[], &["KEY=echo correct horse"]).await.unwrap();
        assert_eq!(value_of(&values), "correct horse");
        for line in ["KEY=echo correct-horse; exit 3", "KEY=yes correct-horse", "KEY=/nowhere"] {
            let error = gather("KEY=a.org", &[], &[line]).await.unwrap_err().to_string();
            assert!(error.contains("`KEY`") && !error.contains("correct"), "{error}");
        }
        assert!(
            gather("KEY=a.org", &["KEY=/dev/null"], &["KEY=echo correct-horse"]).await.is_err()
        );
        let line = r#"KEY=echo '{"value":"correct horse","expires":"2100-01-01T00:00:00Z"}'"#;
        let values = gather("KEY=a.org", &[], &[line]).await.unwrap();
        assert_eq!(value_of(&values), "correct horse");
        // A supervisor gets all of it, and nothing shows it.
        let handed = serde_json::to_string(&values).unwrap();
        assert!(handed.contains("2100-01-01T00:00:00.000Z") && handed.contains("echo"), "{handed}");
        serde_json::from_str::<SecretValues>(&handed).unwrap();
        let shown = format!("{values:?}");
        assert!(!shown.contains("correct") && !shown.contains("echo"), "{shown}");
    }

    #[tokio::test]
    async fn a_secret_without_a_value_is_refused_with_the_way_to_give_one() {
        let error = gather("STOCKADE_TEST_UNSET=a.org", &[], &[]).await.unwrap_err();
        assert!(error.hint().unwrap().contains("--secret-file STOCKADE_TEST_UNSET=PATH"));
    }

    #[tokio::test]
    async fn what_does_not_parse_is_not_shown() {
        for wrong in ["sk-0123456789", "KEY=", "1=sk-0123456789", "=sk-0123456789"] {
            let as_file = gather("KEY=a.org", &[wrong], &[]).await.unwrap_err();
            let as_command = gather("KEY=a.org", &[], &[wrong]).await.unwrap_err();
            for error in [as_file, as_command] {
                assert!(!format!("{error} {:?}", error.hint()).contains("sk-"), "{error}");
            }
        }
        let given = ["KEY=sk 0123456789".to_owned()];
        let error = parse_bindings(&given).unwrap_err();
        assert!(!format!("{error} {:?}", error.hint()).contains("sk "), "{error}");
    }
}
