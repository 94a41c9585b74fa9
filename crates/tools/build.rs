//! Builds the search program statically, so that it runs in any sandbox.

use stockade_static_bin::{StaticBin, StaticBinError, manifest_dir_of};

fn main() -> Result<(), StaticBinError> {
    println!("cargo::rerun-if-changed=build.rs");
    let finder = StaticBin {
        manifest_dir: &manifest_dir_of("stockade_finder")?,
        package: "stockade-finder",
        bin: "stockade-finder",
        features: &["program"],
        given: &[],
    }
    .build()?;
    println!("cargo::rustc-env=STOCKADE_FINDER={}", finder.display());
    Ok(())
}
