//! Builds the probe statically, so that the kit can carry it into any sandbox.

include!("../../build/static_bin.rs");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let probe = static_bin("stockade-probe", "stockade-probe", &[], &["crates/tck/probe"])?;
    println!("cargo::rustc-env=STOCKADE_PROBE={}", probe.display());
    Ok(())
}
