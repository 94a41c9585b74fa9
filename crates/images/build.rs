//! Builds the unpacking program statically, so that it runs in any sandbox.

use stockade_static_bin::{StaticBin, StaticBinError, manifest_dir_of};

fn main() -> Result<(), StaticBinError> {
    println!("cargo::rerun-if-changed=build.rs");
    let unpack = StaticBin {
        manifest_dir: &manifest_dir_of("stockade_unpack")?,
        package: "stockade-unpack",
        bin: "stockade-unpack",
        features: &[],
        given: &[],
    }
    .build()?;
    println!("cargo::rustc-env=STOCKADE_UNPACK={}", unpack.display());
    Ok(())
}
