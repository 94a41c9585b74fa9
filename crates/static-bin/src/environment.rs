//! The outer build, as cargo describes it to a build script, and what of it the inner build may see.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::StaticBinError;

/// Variables of the outer build that hold for the inner one too.
const KEPT_VARIABLES: [&str; 3] = ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
/// Prefixes of variables about the network, which a package's dependencies may have to come from.
const KEPT_PREFIXES: [&str; 2] = ["CARGO_HTTP_", "CARGO_NET_"];
/// What the outer cargo, clippy or rustdoc set for a build script would reach the inner compiler.
const OUTER_PREFIXES: [&str; 4] = ["CARGO", "RUST", "CLIPPY", "DEP_"];
/// The same for variables without a prefix.
const OUTER_VARIABLES: [&str; 7] =
    ["OUT_DIR", "TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG", "NUM_JOBS"];

/// The build that the build script is a part of.
pub(crate) struct OuterBuild {
    pub(crate) cargo: PathBuf,
    pub(crate) target: String,
    pub(crate) out_dir: PathBuf,
    /// The directory of the outer profile's artifacts.
    pub(crate) profile_dir: PathBuf,
}

impl OuterBuild {
    pub(crate) fn from_env() -> Result<Self, StaticBinError> {
        let out_dir = path_variable("OUT_DIR")?;
        // TARGET_DIR/PROFILE/build/PACKAGE/out
        let profile_dir = out_dir.ancestors().nth(3).map(Path::to_owned);
        let profile_dir = profile_dir.ok_or_else(|| StaticBinError::OutDir(out_dir.clone()))?;
        let target =
            std::env::var("TARGET").map_err(|_| StaticBinError::Variable("TARGET".to_owned()))?;
        Ok(Self { cargo: path_variable("CARGO")?, target, out_dir, profile_dir })
    }

    /// The target directory of the inner build.
    pub(crate) fn static_dir(&self) -> PathBuf {
        self.profile_dir.with_file_name("static")
    }
}

/// A path from a variable that cargo has set.
pub(crate) fn path_variable(variable: &str) -> Result<PathBuf, StaticBinError> {
    let value = std::env::var_os(variable);
    value.map(PathBuf::from).ok_or_else(|| StaticBinError::Variable(variable.to_owned()))
}

/// Removes the variables that describe the outer build.
pub(crate) fn remove_outer_variables(cargo: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_outer_variable) {
            cargo.env_remove(name);
        }
    }
}

fn is_outer_variable(name: &str) -> bool {
    let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_kept = KEPT_VARIABLES.contains(&name) || starts_with(&KEPT_PREFIXES);
    !is_kept && (OUTER_VARIABLES.contains(&name) || starts_with(&OUTER_PREFIXES))
}

/// Flags for a static program that has no path of this machine in it, so that it is the same wherever it is built.
pub(crate) fn static_flags(prefix: &Path) -> Vec<String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned(), remap(prefix, "stockade")];
    flags.extend(cargo_home.map(|cargo_home| remap(&cargo_home, "cargo")));
    flags
}

#[cfg(test)]
mod tests {
    use super::is_outer_variable;

    #[test]
    fn variables_of_the_outer_build_do_not_reach_the_inner_one() {
        for name in ["CARGO_FEATURE_NEAR", "RUSTFLAGS", "DEP_STOCKADE_AGENT_MANIFEST_DIR", "HOST"] {
            assert!(is_outer_variable(name), "{name}");
        }
    }

    #[test]
    fn toolchain_network_and_given_programs_reach_the_inner_build() {
        for name in ["CARGO_HOME", "RUSTUP_TOOLCHAIN", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY"] {
            assert!(!is_outer_variable(name), "{name}");
        }
        assert!(!is_outer_variable("STOCKADE_GIVEN_AGENT"));
    }
}
