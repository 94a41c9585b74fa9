//! The variables by which tools find the cache. Only what can be made again lies in it: no tool's configuration, and
//! no build of the workspace itself, which stays there (`target`, `node_modules`, `build`).

use std::path::Path;

use rustix::fs::OFlags;
use stockade_core::{EnvName, Network, Result, SandboxSpec};
use stockade_fs::open_without_symlinks;

use super::{CACHE_FLAG, cache_error};

/// Each variable, and the directory of the cache that it names.
const CACHE_VARIABLES: [(&str, &str); 16] = [
    // What has no variable of its own mostly follows this one.
    ("XDG_CACHE_HOME", "xdg"),
    ("PIP_CACHE_DIR", "pip"),
    ("UV_CACHE_DIR", "uv"),
    ("POETRY_CACHE_DIR", "poetry"),
    ("npm_config_cache", "npm"),
    ("YARN_CACHE_FOLDER", "yarn"),
    ("BUN_INSTALL_CACHE_DIR", "bun"),
    ("DENO_DIR", "deno"),
    ("GOCACHE", "go-build"),
    ("GOMODCACHE", "go-mod"),
    ("GRADLE_USER_HOME", "gradle"),
    ("COMPOSER_CACHE_DIR", "composer"),
    ("NUGET_PACKAGES", "nuget"),
    ("BUNDLE_USER_CACHE", "bundle"),
    ("CCACHE_DIR", "ccache"),
    ("SCCACHE_DIR", "sccache"),
];
/// The home of cargo in the cache: registry and git checkouts. Programs come from PATH.
const CARGO_DIR: &str = "cargo";
const MAVEN_DIR: &str = "maven";

/// Has tools use a cache at this path. What the flags say of a variable wins.
pub(super) fn set_variables(cache: &str, spec: &mut SandboxSpec) -> Result<()> {
    for (name, dir) in CACHE_VARIABLES {
        set_default(spec, name, format!("{cache}/{dir}"))?;
    }
    // Its wrapper splits this at spaces.
    if !cache.contains(char::is_whitespace) {
        set_default(spec, "MAVEN_OPTS", format!("-Dmaven.repo.local={cache}/{MAVEN_DIR}"))?;
    }
    if takes_over_cargo(cache, spec) {
        set_default(spec, "CARGO_HOME", format!("{cache}/{CARGO_DIR}"))?;
    }
    Ok(())
}

/// Whether cargo's home is in the cache: where crates can be downloaded, and where they were. Otherwise those that the
/// caller has downloaded are in the home directory inside, and must not be hidden.
fn takes_over_cargo(cache: &str, spec: &SandboxSpec) -> bool {
    let registry = Path::new(cache).join(CARGO_DIR).join("registry");
    // A guest may have put a link there, which would tell it what lies on the host.
    let is_filled = || open_without_symlinks(&registry, OFlags::PATH | OFlags::DIRECTORY).is_ok();
    matches!(spec.network, Network::Egress(_)) || is_filled()
}

fn set_default(spec: &mut SandboxSpec, name: &str, value: String) -> Result<()> {
    let name: EnvName = name.parse().map_err(|error| {
        cache_error(stockade_core::ErrorCode::Invalid, format!("{CACHE_FLAG}: {error}"))
    })?;
    spec.env.entry(name).or_insert(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(cache: &str, network: Network) -> SandboxSpec {
        let own = ("PIP_CACHE_DIR".parse().unwrap(), "/own".to_owned());
        let mut spec = SandboxSpec { network, env: [own].into(), ..SandboxSpec::default() };
        set_variables(cache, &mut spec).unwrap();
        spec
    }

    fn value<'s>(spec: &'s SandboxSpec, name: &str) -> Option<&'s str> {
        spec.env.get(&name.parse().unwrap()).map(String::as_str)
    }

    #[test]
    fn tools_use_the_cache_unless_a_flag_says_otherwise() {
        let spec = variables("/c", Network::None);
        assert_eq!(value(&spec, "npm_config_cache"), Some("/c/npm"));
        assert_eq!(value(&spec, "PIP_CACHE_DIR"), Some("/own"));
        assert_eq!(value(&spec, "MAVEN_OPTS"), Some("-Dmaven.repo.local=/c/maven"));
        assert_eq!(value(&variables("/c d", Network::None), "MAVEN_OPTS"), None);
    }

    #[test]
    fn crates_of_the_caller_are_not_hidden_by_an_empty_cache() {
        let cache = tempfile::tempdir().unwrap();
        let real = cache.path().canonicalize().unwrap();
        let home = format!("{}/cargo", real.display());
        let text = real.to_str().unwrap();
        assert_eq!(value(&variables(text, Network::None), "CARGO_HOME"), None);
        let open = Network::Egress(stockade_core::parse_egress_list("example.org").unwrap());
        assert_eq!(value(&variables(text, open), "CARGO_HOME"), Some(home.as_str()));
        std::os::unix::fs::symlink("/", real.join("cargo")).unwrap();
        assert_eq!(value(&variables(text, Network::None), "CARGO_HOME"), None);
        std::fs::remove_file(real.join("cargo")).unwrap();
        std::fs::create_dir_all(real.join("cargo/registry")).unwrap();
        assert_eq!(value(&variables(text, Network::None), "CARGO_HOME"), Some(home.as_str()));
    }
}
