//! Builds a program statically, for a build script that embeds its bytes.
//!
//! Sources in a workspace are built in place, with the workspace's lock file and profiles. A package that was unpacked
//! from a registry has no workspace above it: it is copied and built with the lock file that came with it.
//!
//! Never builds in the outer build's own directory, because the outer cargo holds its lock while a build script runs.
//! The directory beside it is shared by all programs, so that their common dependencies are compiled once. Never
//! writes to the sources.

mod dep_info;
mod environment;
mod error;
mod package;

use std::path::{Path, PathBuf};
use std::process::Command;

use environment::OuterBuild;
pub use error::StaticBinError;

/// The profile of the programs, in the workspace and in a copied package.
const STATIC_PROFILE: &str = "static-bin";
/// The workspace's profile of the programs in what is given away.
const STATIC_DIST_PROFILE: &str = "static-dist";

/// One program of one package.
#[derive(Debug, Clone, Copy)]
pub struct StaticBin<'a> {
    /// Directory of the package's manifest.
    pub manifest_dir: &'a Path,
    /// Name of the package.
    pub package: &'a str,
    /// Name of the program.
    pub bin: &'a str,
    /// Features to build it with, instead of the default ones.
    pub features: &'a [&'a str],
    /// Variables for the build scripts of the inner build: programs that are built already.
    pub given: &'a [(&'a str, &'a Path)],
}

/// The manifest directory of a dependency with the key `links`, which its build script passes on as metadata.
pub fn manifest_dir_of(links: &str) -> Result<PathBuf, StaticBinError> {
    environment::path_variable(&format!("DEP_{}_MANIFEST_DIR", links.to_ascii_uppercase()))
}

impl StaticBin<'_> {
    /// Builds the program and returns its path. Tells the outer cargo what to watch for changes.
    pub fn build(&self) -> Result<PathBuf, StaticBinError> {
        let outer = OuterBuild::from_env()?;
        println!("cargo::rerun-if-env-changed=DOCS_RS");
        if std::env::var_os("DOCS_RS").is_some() {
            return self.write_empty(&outer);
        }
        match package::workspace_root(self.manifest_dir) {
            Some(root) => self.build_in_workspace(&outer, root),
            None => self.build_package(&outer),
        }
    }

    /// Stands in for the program where only documentation is built, without a network.
    fn write_empty(&self, outer: &OuterBuild) -> Result<PathBuf, StaticBinError> {
        let path = outer.out_dir.join(self.bin);
        std::fs::write(&path, []).map_err(|error| StaticBinError::file(&path, error))?;
        Ok(path)
    }

    fn build_in_workspace(
        &self,
        outer: &OuterBuild,
        root: &Path,
    ) -> Result<PathBuf, StaticBinError> {
        let is_dist = outer.profile_dir.ends_with("dist");
        let profile = if is_dist { STATIC_DIST_PROFILE } else { STATIC_PROFILE };
        let program = self.run_cargo(outer, root, root, profile)?;
        for input in dep_info::read_inputs(&program, root, &outer.static_dir())? {
            println!("cargo::rerun-if-changed={}", input.display());
        }
        Ok(program)
    }

    fn build_package(&self, outer: &OuterBuild) -> Result<PathBuf, StaticBinError> {
        println!("cargo::rerun-if-changed={}", self.manifest_dir.display());
        let copy = outer.out_dir.join(self.package);
        package::copy_package(self.manifest_dir, &copy)?;
        // The same prefix for every copy: with flags that differ, each program would compile all dependencies anew.
        self.run_cargo(outer, &copy, &outer.profile_dir, STATIC_PROFILE)
    }

    /// Builds in `dir`, with paths beneath `prefix` written as relative ones.
    fn run_cargo(
        &self,
        outer: &OuterBuild,
        dir: &Path,
        prefix: &Path,
        profile: &str,
    ) -> Result<PathBuf, StaticBinError> {
        let target_dir = outer.static_dir();
        let mut cargo = Command::new(&outer.cargo);
        cargo.current_dir(dir).args(["build", "--quiet", "--profile", profile]);
        cargo.args(["--package", self.package, "--bin", self.bin, "--target", &outer.target]);
        cargo.args(["--no-default-features", "--features", &self.features.join(",")]);
        cargo.arg("--target-dir").arg(&target_dir);
        // A package can be made without a lock file; a workspace was found by it.
        if dir.join("Cargo.lock").is_file() {
            cargo.arg("--locked");
        }
        environment::remove_outer_variables(&mut cargo);
        cargo.envs(self.given.iter().copied());
        cargo.env("CARGO_ENCODED_RUSTFLAGS", environment::static_flags(prefix).join("\x1f"));
        let status = cargo.status().map_err(|error| StaticBinError::file(&outer.cargo, error))?;
        if !status.success() {
            return Err(StaticBinError::Cargo { bin: self.bin.to_owned(), status });
        }
        Ok(target_dir.join(&outer.target).join(profile).join(self.bin))
    }
}
