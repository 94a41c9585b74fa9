//! Builds the probe statically, so that the kit can carry it into any sandbox, and as WebAssembly.

use std::path::Path;

use stockade_static_bin::{StaticBin, manifest_dir_of};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let probe = StaticBin {
        manifest_dir: &manifest_dir_of("stockade_probe")?,
        package: "stockade-probe",
        bin: "stockade-probe",
        features: &[],
        given: &[],
    }
    .build()?;
    println!("cargo::rustc-env=STOCKADE_PROBE={}", probe.display());
    let here = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("no crate")?);
    for (name, directory) in [
        ("STOCKADE_WASM_PROBE", "probe-wasm"),
        ("STOCKADE_WASI_CALLS", "wasi-calls"),
        ("STOCKADE_WASI_FILES", "wasi-files"),
    ] {
        println!("cargo::rustc-env={name}={}", wasm(&here.join(directory), directory)?.display());
    }
    println!("cargo::rerun-if-env-changed=CI");
    println!("cargo::rerun-if-changed=/usr/bin");
    Ok(())
}

/// C as a WebAssembly command, by the distribution's compiler. An empty file where there is none.
fn wasm(sources: &Path, name: &str) -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={}", sources.display());
    let out =
        Path::new(&std::env::var_os("OUT_DIR").ok_or("no directory")?).join(format!("{name}.wasm"));
    let all = std::fs::read_dir(sources)?.collect::<Result<Vec<_>, _>>()?;
    let paths = all.into_iter().map(|entry| entry.path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "c"));
    if cfg!(not(feature = "wasm")) {
        std::fs::write(&out, [])?;
        return Ok(out);
    }
    let mut clang = std::process::Command::new("clang");
    clang.args(["--target=wasm32-wasi", "-O2", "-Wall", "-Wextra", "-Werror", "-s", "-o"]);
    let built = clang.arg(&out).args(files).status();
    if built.as_ref().is_ok_and(|status| status.success()) {
        return Ok(out);
    }
    // Where every change is judged, nothing is left out for want of a package.
    if std::env::var_os("CI").is_some() {
        return Err(format!("the WebAssembly probe could not be built: {built:?}").into());
    }
    std::fs::write(&out, [])?;
    Ok(out)
}
