//! Egress rules for common package indexes, by name. Each preset has a version: its rules change only with it.

use crate::EgressRule;

/// Rules under one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressPreset {
    /// Its name, as in `preset:python`.
    pub name: &'static str,
    /// Raised whenever the rules change.
    pub version: u32,
    /// The rules.
    pub rules: &'static [&'static str],
}

/// Every preset.
pub const EGRESS_PRESETS: &[EgressPreset] = &[
    EgressPreset {
        name: "python",
        version: 1,
        rules: &["pypi.org:443", "files.pythonhosted.org:443"],
    },
    EgressPreset { name: "node", version: 1, rules: &["registry.npmjs.org:443"] },
    EgressPreset {
        name: "rust",
        version: 1,
        rules: &["index.crates.io:443", "static.crates.io:443", "crates.io:443"],
    },
    EgressPreset { name: "go", version: 1, rules: &["proxy.golang.org:443", "sum.golang.org:443"] },
    EgressPreset { name: "debian", version: 1, rules: &["deb.debian.org", "security.debian.org"] },
    EgressPreset {
        name: "github",
        version: 1,
        rules: &[
            "github.com:443",
            "api.github.com:443",
            "codeload.github.com:443",
            "*.githubusercontent.com:443",
        ],
    },
];

/// The mark before a preset's name.
const PRESET_PREFIX: &str = "preset:";

/// Reads a comma-separated list of rules and presets.
pub fn parse_egress_list(list: &str) -> Result<Vec<EgressRule>, String> {
    let mut rules = Vec::new();
    for entry in list.split(',') {
        match entry.strip_prefix(PRESET_PREFIX) {
            None => rules.push(entry.parse()?),
            Some(name) => rules.extend(expand_preset(name)?),
        }
    }
    Ok(rules)
}

fn expand_preset(name: &str) -> Result<Vec<EgressRule>, String> {
    let Some(preset) = EGRESS_PRESETS.iter().find(|preset| preset.name == name) else {
        let known: Vec<_> = EGRESS_PRESETS.iter().map(|preset| preset.name).collect();
        return Err(format!("there is no preset `{}`: {}", name.escape_debug(), known.join(", ")));
    };
    preset.rules.iter().map(|rule| rule.parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_list_of_rules() {
        for preset in EGRESS_PRESETS {
            let rules = expand_preset(preset.name).unwrap();
            assert_eq!(rules.len(), preset.rules.len(), "{}", preset.name);
        }
    }

    #[test]
    fn presets_and_rules_stand_side_by_side() {
        let rules = parse_egress_list("preset:node,a.org:8080,!b.a.org").unwrap();
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["registry.npmjs.org:443", "a.org:8080", "!b.a.org"]);
        let error = parse_egress_list("preset:perl").unwrap_err();
        assert!(error.starts_with("there is no preset `perl`: python, node"), "{error}");
    }
}
