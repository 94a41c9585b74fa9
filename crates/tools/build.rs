//! Builds the search program statically, so that it runs in any sandbox.

include!("../../build/static_bin.rs");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sources = ["crates/tools/finder", "crates/fs"];
    let finder = static_bin("stockade-finder", "stockade-finder", &["program"], &sources, &[])?;
    println!("cargo::rustc-env=STOCKADE_FINDER={}", finder.display());
    Ok(())
}
