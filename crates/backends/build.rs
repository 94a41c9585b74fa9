//! Builds the programs that a backend carries along, statically, so that one file installs.

use std::path::{Path, PathBuf};

use stockade_static_bin::{StaticBin, StaticBinError, manifest_dir_of};

/// The programs that were built already: for the inner build of the program for other hosts, which embeds them too.
const GIVEN_AGENT: &str = "STOCKADE_GIVEN_AGENT";
const GIVEN_LAUNCHER: &str = "STOCKADE_GIVEN_LAUNCHER";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let has_feature = |variable| std::env::var_os(variable).is_some();
    if !has_feature("CARGO_FEATURE_LINUX") {
        return Ok(());
    }
    let agent = build_embedded(GIVEN_AGENT, "stockade-agent", "stockade_agent")?;
    let launcher = build_embedded(GIVEN_LAUNCHER, "stockade-launcher", "stockade_launcher")?;
    println!("cargo::rustc-env=STOCKADE_AGENT={}", agent.display());
    println!("cargo::rustc-env=STOCKADE_LAUNCHER={}", launcher.display());
    if has_feature("CARGO_FEATURE_PEER_CLIENT") {
        let far = build_far(&agent, &launcher)?;
        println!("cargo::rustc-env=STOCKADE_FAR={}", far.display());
        println!("cargo::rustc-env=STOCKADE_FAR_SUM={}", sha256_hex(&std::fs::read(far)?));
    }
    Ok(())
}

fn build_embedded(given: &str, program: &str, links: &str) -> Result<PathBuf, StaticBinError> {
    println!("cargo::rerun-if-env-changed={given}");
    if let Some(path) = std::env::var_os(given).map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", path.display());
        return Ok(path);
    }
    let manifest_dir = manifest_dir_of(links)?;
    let (package, bin) = (program, program);
    StaticBin { manifest_dir: &manifest_dir, package, bin, features: &[], given: &[] }.build()
}

/// The program for other hosts is one of this package. Its feature embeds the agent and the launcher, and never leads
/// to `peer-client`: otherwise it would embed itself, and this script would run without end.
fn build_far(agent: &Path, launcher: &Path) -> Result<PathBuf, StaticBinError> {
    StaticBin {
        manifest_dir: Path::new(env!("CARGO_MANIFEST_DIR")),
        package: "stockade-backends",
        bin: "stockade-far",
        features: &["far-program"],
        given: &[(GIVEN_AGENT, agent), (GIVEN_LAUNCHER, launcher)],
    }
    .build()
}

/// Digest taken at build time, so that the whole program need not be read just to know which one it is.
fn sha256_hex(program: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(program).iter().map(|byte| format!("{byte:02x}")).collect()
}
