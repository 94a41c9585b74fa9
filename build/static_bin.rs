// Builds one program of this workspace statically, for a build script that embeds its bytes.
// Shared by `include!`. It must never build in the outer build's own directory: the outer cargo holds
// its lock while a build script runs. It builds in one beside that, so that everything these programs
// have in common is compiled once, whoever embeds them.

/// Builds `bin` of `package` with `features` alone and answers where it lies. `sources` are the directories,
/// from the workspace's root, whose change asks for a new build. `given` are programs that it embeds in turn,
/// by the variable that names each: where such a variable is set, nothing is built.
fn static_bin(
    package: &str,
    bin: &str,
    features: &[&str],
    sources: &[&str],
    given: &[(&str, &std::path::Path)],
) -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    let variable = |name: &str| std::env::var_os(name).ok_or(format!("{name} is not set"));
    let here = std::path::PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let is_root = |dir: &&std::path::Path| dir.join("Cargo.lock").is_file();
    let root = here.ancestors().find(is_root).ok_or("no workspace above this crate")?;
    for source in sources.iter().chain(&["Cargo.lock", "Cargo.toml", "build/static_bin.rs"]) {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let target = variable("TARGET")?.into_string().map_err(|_| "TARGET is not text")?;
    // TARGET_DIR/PROFILE/build/PACKAGE/out
    let out = std::path::PathBuf::from(variable("OUT_DIR")?);
    let outer = out.ancestors().nth(3).ok_or("OUT_DIR is not where it should be")?;
    let profile = if outer.ends_with("dist") { "static-dist" } else { "static-bin" };
    let target_dir = outer.with_file_name("static");
    let mut cargo = std::process::Command::new(variable("CARGO")?);
    cargo.current_dir(root).args(["build", "--quiet", "--locked", "--profile", profile]);
    cargo.args(["--package", package, "--bin", bin, "--target", &target]);
    cargo.arg("--no-default-features").arg("--features").arg(features.join(",")).arg("--target-dir").arg(&target_dir);
    // What the outer cargo, clippy or rustdoc set for this script would reach the inner compiler.
    let foreign = |name: &str| {
        let kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
        let prefixes = ["CARGO", "RUST", "CLIPPY", "DEP_"];
        let exact = ["OUT_DIR", "TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG", "NUM_JOBS"];
        !kept.contains(&name)
            && (exact.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix)))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(foreign) {
            cargo.env_remove(name);
        }
    }
    cargo.envs(given.iter().copied());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", static_flags(root).join("\x1f"));
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building {bin} failed: {status}").into());
    }
    Ok(target_dir.join(target).join(profile).join(bin))
}

/// Flags for a static program that has no path of this machine in it, so that it is the same wherever it is
/// built.
fn static_flags(root: &std::path::Path) -> Vec<String> {
    let home = std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cargo"));
    let cargo = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from).or(home);
    let remap = |from: &std::path::Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned(), remap(root, "stockade")];
    flags.extend(cargo.map(|cargo| remap(&cargo, "cargo")));
    flags
}
