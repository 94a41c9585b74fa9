//! What `--toolchain` takes.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::Deserialize;

use super::table::{KNOWN_TOOLCHAINS, Toolchain};

/// Which toolchains are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ToolchainChoice {
    /// Those that PATH leads to, where the backend can show them.
    #[default]
    Auto,
    /// None.
    None,
    /// These, or the command is refused.
    Named(BTreeSet<String>),
}

impl ToolchainChoice {
    pub(super) fn takes(&self, toolchain: &Toolchain) -> bool {
        match self {
            Self::Auto => true,
            Self::None => false,
            Self::Named(names) => names.iter().any(|name| toolchain.is_called(name)),
        }
    }
}

impl TryFrom<String> for ToolchainChoice {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl FromStr for ToolchainChoice {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        match given {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let names: BTreeSet<String> = given.split(',').map(str::to_owned).collect();
        let is_known = |name: &String| KNOWN_TOOLCHAINS.iter().any(|known| known.is_called(name));
        match names.iter().find(|name| !is_known(name)) {
            None => Ok(Self::Named(names)),
            Some(unknown) => {
                let known = KNOWN_TOOLCHAINS.iter().flat_map(|known| [known.language, known.name]);
                let known: BTreeSet<_> = known.collect();
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                let unknown = unknown.escape_debug();
                Err(format!(
                    "`{unknown}` is not a toolchain: give `auto`, `none` or some of {known}"
                ))
            }
        }
    }
}
