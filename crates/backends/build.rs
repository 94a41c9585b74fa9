//! Builds the programs that a backend carries along, statically, so that one file installs.

include!("../../build/static_bin.rs");

/// What the program for other hosts is made of, beside itself.
const FAR: [&str; 11] = [
    "crates/backends/far",
    "crates/backends/src/across",
    "crates/backends/src/agent_sandbox",
    "crates/backends/src/linux",
    "crates/backends/src/managed",
    "crates/backends/src/native",
    "crates/backends/Cargo.toml",
    "crates/agent/src",
    "crates/launcher/src",
    "crates/core/src",
    FS,
];

/// What every program here uses.
const FS: &str = "crates/fs";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted = |feature| std::env::var_os(feature).is_some();
    if !wanted("CARGO_FEATURE_LINUX") {
        return Ok(());
    }
    let agent = carried(GIVEN_AGENT, "stockade-agent", "crates/agent")?;
    let launcher = carried(GIVEN_LAUNCHER, "stockade-launcher", "crates/launcher")?;
    println!("cargo::rustc-env=STOCKADE_AGENT={}", agent.display());
    println!("cargo::rustc-env=STOCKADE_LAUNCHER={}", launcher.display());
    if wanted("CARGO_FEATURE_NEAR") {
        let given = [(GIVEN_AGENT, agent.as_path()), (GIVEN_LAUNCHER, launcher.as_path())];
        let far = static_bin("stockade-far", "stockade-far", &[], &FAR, &given)?;
        println!("cargo::rustc-env=STOCKADE_FAR={}", far.display());
        println!("cargo::rustc-env=STOCKADE_FAR_SUM={}", sum(&std::fs::read(far)?));
    }
    Ok(())
}

/// The programs that were built already, when this is a part of one that carries them as well.
const GIVEN_AGENT: &str = "STOCKADE_GIVEN_AGENT";
const GIVEN_LAUNCHER: &str = "STOCKADE_GIVEN_LAUNCHER";

fn carried(
    given: &str,
    program: &str,
    source: &str,
) -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-env-changed={given}");
    match std::env::var_os(given) {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", std::path::Path::new(&path).display());
            Ok(path.into())
        }
        None => static_bin(program, program, &[], &[source, FS], &[]),
    }
}

/// Digest taken at build time, so that the whole program need not be read just to know which one it is.
fn sum(program: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(program).iter().map(|byte| format!("{byte:02x}")).collect()
}
