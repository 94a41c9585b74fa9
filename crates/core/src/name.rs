//! Names and ids. Each parses strictly, so that a value of one of these types is always safe to put
//! into a path, a label or a record.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name that does not parse (C-04).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {expected}")]
pub struct NameError {
    given: String,
    expected: &'static str,
}

fn is_bounded_text(given: &str, longest: usize, allowed: impl Fn(u8) -> bool) -> bool {
    (1..=longest).contains(&given.len()) && given.bytes().all(allowed)
}

fn lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Names of tenants and tokens: like ids, with `-`, `_` and `.` inside, never in front.
fn plain_name(given: &str, longest: usize) -> bool {
    is_bounded_text(given, longest, |b| lower_alphanumeric(b) || b"-_.".contains(&b))
        && given.bytes().next().is_some_and(lower_alphanumeric)
}

fn variable_name(given: &str) -> bool {
    is_bounded_text(given, 256, |b| b.is_ascii_alphanumeric() || b == b'_')
        && !given.as_bytes()[0].is_ascii_digit()
}

/// What can stand in a registry's path and begins like one, so that no engine takes it for an option.
fn image_name(given: &str) -> bool {
    is_bounded_text(given, 255, |b| b.is_ascii_alphanumeric() || b"-_./:@".contains(&b))
        && given.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && !given.contains("..")
        && !given.contains("//")
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Cow<'static, str>);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            fn check(given: Cow<'static, str>) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(&given) {
                    return Ok(Self(given));
                }
                let given = given.chars().take(80).collect();
                Err(NameError { given, expected: $expected })
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(given: &str) -> Result<Self, NameError> {
                Self::check(given.to_owned().into())
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;

            fn try_from(given: String) -> Result<Self, NameError> {
                Self::check(given.into())
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0.into_owned()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(
    /// A sandbox's id, unique on its host.
    SandboxId, "a sandbox id (1 to 32 lower-case letters and digits)",
    |given| is_bounded_text(given, 32, lower_alphanumeric)
);
name!(
    /// The id of one execution's record.
    JobId, "a job id (1 to 32 lower-case letters and digits)",
    |given| is_bounded_text(given, 32, lower_alphanumeric)
);
name!(
    /// The id of one engine: of one process, in most cases.
    EngineId, "an engine id (1 to 32 lower-case letters and digits)",
    |given| is_bounded_text(given, 32, lower_alphanumeric)
);
name!(
    /// A workspace's id, unique in its state directory.
    WorkspaceId, "a workspace id (1 to 32 lower-case letters and digits)",
    |given| is_bounded_text(given, 32, lower_alphanumeric)
);
name!(
    /// The id of a stored snapshot.
    SnapshotId, "a snapshot id (1 to 64 lower-case letters and digits)",
    |given| is_bounded_text(given, 64, lower_alphanumeric)
);
name!(
    /// A backend's name. Each backend owns the one constant that holds its own.
    BackendName, "a backend name (1 to 32 lower-case letters and digits)",
    |given| is_bounded_text(given, 32, lower_alphanumeric)
);
name!(
    /// The tenant a sandbox is run for.
    TenantName,
    "a tenant name (1 to 64 lower-case letters, digits, `-`, `_`, `.`, a letter or digit first)",
    |given| plain_name(given, 64)
);
name!(
    /// What a bearer token of the API is called by.
    TokenName,
    "a token's name (1 to 64 lower-case letters, digits, `-`, `_`, `.`, a letter or digit first)",
    |given| plain_name(given, 64)
);
name!(
    /// The name of an environment variable.
    EnvName,
    "an environment variable's name (letters, digits and `_`, not a digit first)",
    variable_name
);
name!(
    /// An image's name as registries write it: `[host[:port]/]path[:tag][@digest]`.
    ImageName,
    "an image's name (`name`, `name:tag`, `host/name@sha256:…`)",
    image_name
);

impl BackendName {
    /// A name known when the program is built. Panics in a constant if it does not parse.
    pub const fn literal(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= 32, "a backend name has 1 to 32 characters");
        let mut at = 0;
        while at < bytes.len() {
            let plain = bytes[at].is_ascii_lowercase() || bytes[at].is_ascii_digit();
            assert!(plain, "a backend name has lower-case letters and digits only");
            at += 1;
        }
        Self(Cow::Borrowed(name))
    }
}

impl Default for TenantName {
    /// The tenant of a user who works without tenants.
    fn default() -> Self {
        Self(Cow::Borrowed("default"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_leave_a_directory_are_refused() {
        for given in ["", "..", "a/b", "A", "a b", "a\n", "é", &"a".repeat(33)] {
            assert!(given.parse::<SandboxId>().is_err(), "{given:?}");
        }
        assert!("a1b2c3".parse::<SandboxId>().is_ok());
    }

    #[test]
    fn a_tenant_name_does_not_begin_with_punctuation() {
        assert!("team-a.ci_2".parse::<TenantName>().is_ok());
        for given in [".hidden", "-rf", "_x", "Team"] {
            assert!(given.parse::<TenantName>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn an_image_name_is_no_option_and_no_path() {
        for given in ["debian", "debian:12", "localhost:5000/a/b:1.2", "a@sha256:0f", "a/b_c"] {
            assert!(given.parse::<ImageName>().is_ok(), "{given:?}");
        }
        for given in ["", "-v", "/etc", "../x", "a/../b", "a b", "a\n", "a//b", "a?x=1"] {
            assert!(given.parse::<ImageName>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn a_variable_name_holds_no_equals_sign() {
        assert!("_PATH2".parse::<EnvName>().is_ok());
        for given in ["", "2A", "A=B", "A B", "A\0"] {
            assert!(given.parse::<EnvName>().is_err(), "{given:?}");
        }
    }
}
