//! Builds the programs that a backend carries along, statically, so that one file installs.

include!("../../build/static_bin.rs");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("CARGO_FEATURE_LINUX").is_none() {
        return Ok(());
    }
    let agent = static_bin("stockade-agent", "stockade-agent", &[], &["crates/agent"])?;
    let launcher = static_bin("stockade-launcher", "stockade-launcher", &[], &["crates/launcher"])?;
    println!("cargo::rustc-env=STOCKADE_AGENT={}", agent.display());
    println!("cargo::rustc-env=STOCKADE_LAUNCHER={}", launcher.display());
    Ok(())
}
