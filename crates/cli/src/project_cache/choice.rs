//! What `--cache` takes.

use std::str::FromStr;

use serde::Deserialize;

/// The longest name.
const MAX_NAME_BYTES: usize = 32;

/// Which cache is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum CacheChoice {
    /// None.
    #[default]
    None,
    /// The project's own, where there is a project and the backend can show it.
    Auto,
    /// One by its name, or the command is refused.
    Named(CacheName),
}

/// The name of a cache: safe as a part of a file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheName(String);

impl CacheName {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CacheChoice {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl FromStr for CacheChoice {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        match given {
            "none" => return Ok(Self::None),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match (1..=MAX_NAME_BYTES).contains(&given.len()) && given.bytes().all(plain) {
            true => Ok(Self::Named(CacheName(given.to_owned()))),
            false => Err(format!(
                "`{}` is not a cache: give `auto`, `none` or a name of up to {MAX_NAME_BYTES} small \
                 letters, digits and `-`",
                given.escape_debug()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_part_of_a_files_name_and_nothing_else() {
        assert_eq!("none".parse(), Ok(CacheChoice::None));
        assert_eq!("auto".parse(), Ok(CacheChoice::Auto));
        for name in ["ci", "release-2", "a"] {
            assert_eq!(name.parse(), Ok(CacheChoice::Named(CacheName(name.into()))));
        }
        for wrong in ["", "..", "a/b", "A", "a b", "a.b", &"a".repeat(33)] {
            let told = wrong.parse::<CacheChoice>().unwrap_err();
            assert!(told.contains("is not a cache"), "{wrong}: {told}");
        }
    }
}
