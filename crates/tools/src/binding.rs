//! What a session is bound to, as a summary that is safe to store: no configuration, no environment,
//! and no label that could hold a secret (C-41).

use std::collections::BTreeMap;

use serde::Serialize;
use stockade_core::{Image, Workspace};

use crate::place::ToolPlace;

/// What a session is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Who builds the walls; `local` without any.
    pub provider: String,
    /// The sandbox.
    pub sandbox_id: String,
    /// The directory the work is about, or `ephemeral`.
    pub workspace: String,
    /// What stands between it and the host's kernel.
    pub profile: String,
    /// What its root is made of.
    pub image: String,
    /// The labels that smell of no secret.
    pub labels: BTreeMap<String, String>,
}

impl Binding {
    pub(crate) fn of(place: &ToolPlace) -> Self {
        let spec = &place.spec;
        Self {
            provider: place.backend.to_string(),
            sandbox_id: place.id.to_string(),
            workspace: match &spec.workspace {
                Workspace::Ephemeral => "ephemeral".into(),
                Workspace::Local(path) => path.to_string(),
                Workspace::Overlay(layers) => format!("overlay:{}", layers.lower),
            },
            profile: place.boundary.to_string(),
            image: match &spec.image {
                Image::Host => "host".into(),
                Image::Directory(path) => format!("directory:{path}"),
                Image::Oci(path) => format!("oci:{path}"),
                Image::Named(name) => format!("named:{name}"),
                Image::Wasm(path) => format!("wasm:{path}"),
            },
            labels: filter_secret_labels(&spec.labels),
        }
    }
}

/// Words that stand for secrets, in any case and joined any way.
const SECRET_WORDS: &[&str] = &[
    "apikey",
    "auth",
    "bearer",
    "cookie",
    "credential",
    "key",
    "passphrase",
    "passwd",
    "password",
    "pin",
    "private",
    "pwd",
    "secret",
    "session",
    "signature",
    "token",
];

/// The labels that smell of no secret, by their name or by their value.
fn filter_secret_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let kept =
        labels.iter().filter(|(name, value)| !is_secret_name(name) && !smells_of_value(value));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a name smells of a secret: one of the words anywhere in it, once joints and case are gone.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let plain: String =
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    SECRET_WORDS.iter().any(|word| plain.contains(word))
}

/// Values that carry their own name along, such as `Bearer …` or `password=…`.
fn smells_of_value(value: &str) -> bool {
    let start = value.trim_start().to_ascii_lowercase();
    let named = value.split_once(['=', ':']).is_some_and(|(name, _)| is_secret_name(name));
    start.starts_with("bearer ") || start.starts_with("basic ") || named
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_secrets_are_noticed_however_they_are_joined() {
        for name in [
            "token",
            "apiKey",
            "API_KEY",
            "x-api-key",
            "GITHUB.TOKEN",
            "Authorization",
            "dbPassword",
            "pass_wd",
            "Set-Cookie",
            "session-id",
            "clientSecret",
            "aws credential",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["team", "purpose", "branch", "run", "owner"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_label_that_names_a_secret_is_kept(
            word in proptest::sample::select(SECRET_WORDS),
            before in "[a-z]{0,6}", after in "[a-z]{0,6}",
            joints in proptest::collection::vec("[-_. ]{0,1}", 16), upper in any::<u32>(),
        ) {
            let mut name = before;
            for (at, c) in word.chars().enumerate() {
                let up = upper >> (at % 32) & 1 == 1;
                name.push(if up { c.to_ascii_uppercase() } else { c });
                name.push_str(&joints[at % joints.len()]);
            }
            name.push_str(&after);
            let labels = BTreeMap::from([(name.clone(), "x".to_owned()), ("team".into(), "a".into())]);
            let kept = filter_secret_labels(&labels);
            prop_assert!(!kept.contains_key(&name), "{}", name);
            prop_assert_eq!(kept.len(), 1);
        }
    }
}
