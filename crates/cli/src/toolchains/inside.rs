//! What a command inside is told of its toolchains: the caller's PATH as far as it is shown, and variables.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use stockade_core::{HostTree, SandboxSpec};

use super::caller::CallerEnvironment;
use super::table::{Toolchain, VariableValue};

/// What every sandbox on the host's root sees of it.
const IN_HOST_IMAGE: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"];
/// Where programs are looked for in any case.
pub(super) const DEFAULT_PATH: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// The longest word that is passed on.
const MAX_WORD_BYTES: usize = 64;

pub(super) fn is_in_host_image(path: &Path) -> bool {
    IN_HOST_IMAGE.iter().any(|shown| path.starts_with(shown))
}

/// The caller's PATH as far as it leads to something that is shown, in its order, and the usual directories
/// behind it. None where that is nothing but the usual.
pub(super) fn build_path(caller: &CallerEnvironment, spec: &SandboxSpec) -> Option<String> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    let usual = DEFAULT_PATH.iter().map(PathBuf::from);
    let led = caller.path.iter().filter_map(|dir| shown_dir(dir, spec));
    for dir in led.chain(usual) {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    let text: Option<Vec<_>> = dirs.iter().map(|dir| dir.to_str()).collect();
    (dirs.len() > DEFAULT_PATH.len()).then_some(text?.join(":"))
}

/// The directory itself, or where its links lead, whichever is shown.
fn shown_dir(dir: &Path, spec: &SandboxSpec) -> Option<PathBuf> {
    let mounted = |path: &Path| {
        let mut mounts = spec.mounts.iter();
        mounts.any(|mount| path.starts_with(mount.target.as_str()))
    };
    let shown = |path: &Path| is_shown(path, &spec.trees) || mounted(path);
    if shown(dir) {
        return Some(dir.to_owned());
    }
    let real = dir.canonicalize().ok()?;
    shown(&real).then_some(real)
}

/// Whether it lies in what is shown, or holds programs that are shown one by one.
fn is_shown(path: &Path, trees: &[HostTree]) -> bool {
    let mut targets = trees.iter().map(|tree| Path::new(tree.mount.target.as_str()));
    is_in_host_image(path)
        || targets.any(|target| path.starts_with(target) || target.parent() == Some(path))
}

/// The variables of a toolchain, for as much of it as is shown.
pub(super) fn build_variables(
    toolchain: &Toolchain,
    roots: &[Vec<PathBuf>],
    caller: &CallerEnvironment,
    trees: &[HostTree],
) -> BTreeMap<String, String> {
    let root = |at: usize| roots.get(at)?.first();
    let value = |(name, value): &(&str, VariableValue)| {
        let value = match value {
            VariableValue::Root(at) => root(*at)?.to_str()?.to_owned(),
            VariableValue::ShownPath => shown_path(&caller.absolute(name)?, trees)?,
            VariableValue::Word => {
                caller.variables.get(*name).filter(|word| is_word(word))?.clone()
            }
            VariableValue::GoProxy(at, inside) => {
                let dir = root(*at)?.join(inside);
                let shown = is_shown(&dir, trees).then_some(dir)?;
                format!("file://{},https://proxy.golang.org,direct", shown.to_str()?)
            }
        };
        Some(((*name).to_owned(), value))
    };
    toolchain.variables.iter().filter_map(value).collect()
}

fn shown_path(path: &Path, trees: &[HostTree]) -> Option<String> {
    let holds = |path: &Path| {
        let mut targets = trees.iter().map(|tree| Path::new(tree.mount.target.as_str()));
        is_in_host_image(path)
            || targets.any(|target| path.starts_with(target) || target.starts_with(path))
    };
    if holds(path) {
        return path.to_str().map(str::to_owned);
    }
    let real = path.canonicalize().ok()?;
    holds(&real).then(|| real.to_str().map(str::to_owned))?
}

/// A version or a name: nothing in which a reader could overlook a secret.
fn is_word(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    !text.is_empty() && text.len() <= MAX_WORD_BYTES && text.bytes().all(plain)
}

/// Where the caller finds a program: by PATH, or as an absolute path.
pub(super) fn find_program(program: &str) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = match program.contains('/') {
        true => {
            Some(PathBuf::from(program)).into_iter().filter(|path| path.is_absolute()).collect()
        }
        false => CallerEnvironment::here().path.iter().map(|dir| dir.join(program)).collect(),
    };
    let runs = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    candidates.into_iter().find(runs)
}
