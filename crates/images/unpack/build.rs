//! Tells the build scripts of dependents where this package lies, so that they can build its program and embed it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=manifest_dir={}", env!("CARGO_MANIFEST_DIR"));
}
