//! Reads the dep-info file that cargo writes beside a program, so that the outer build watches exactly the files that
//! the program was made from.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::StaticBinError;

/// The sources of `program` in the workspace at `root`, the manifests above them, and the lock file.
pub(crate) fn read_inputs(
    program: &Path,
    root: &Path,
    target_dir: &Path,
) -> Result<BTreeSet<PathBuf>, StaticBinError> {
    let dep_info = program.with_extension("d");
    let text =
        fs::read_to_string(&dep_info).map_err(|error| StaticBinError::file(&dep_info, error))?;
    let mut inputs = BTreeSet::from([root.join("Cargo.lock"), root.join("Cargo.toml")]);
    for path in parse_dep_info(&text) {
        let path = root.join(path);
        // What this build has just written, or what does not exist, would ask for another build each time.
        if path.starts_with(target_dir) || !path.exists() {
            continue;
        }
        let mut manifests = path.ancestors().skip(1).map(|dir| dir.join("Cargo.toml"));
        inputs.extend(manifests.find(|manifest| manifest.is_file()));
        inputs.insert(path);
    }
    Ok(inputs)
}

/// The paths after the colon. A space within a path is escaped by a backslash.
fn parse_dep_info(text: &str) -> Vec<PathBuf> {
    let first = text.lines().next().unwrap_or_default();
    let Some((_, listed)) = first.split_once(": ") else { return Vec::new() };
    let (mut paths, mut path) = (Vec::new(), String::new());
    for piece in listed.split(' ') {
        match piece.strip_suffix('\\') {
            Some(start) => {
                path.push_str(start);
                path.push(' ');
            }
            None => {
                path.push_str(piece);
                paths.push(PathBuf::from(std::mem::take(&mut path)));
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_spaces_are_whole() {
        let parsed = parse_dep_info("/t/a\\ b/program: /w/a\\ b/main.rs /w/lib.rs\n");
        assert_eq!(parsed, [PathBuf::from("/w/a b/main.rs"), PathBuf::from("/w/lib.rs")]);
        assert!(parse_dep_info("/t/program:\n").is_empty());
    }

    #[test]
    fn sources_are_watched_with_their_manifest_and_built_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let (member, target) = (root.join("member"), root.join("target/static"));
        fs::create_dir_all(&member).unwrap();
        fs::create_dir_all(&target).unwrap();
        let (source, built) = (member.join("main.rs"), target.join("agent"));
        for file in [&member.join("Cargo.toml"), &source, &built] {
            fs::write(file, "").unwrap();
        }
        let program = target.join("program");
        let [left, source_text, built_text] =
            [&program, &source, &built].map(|path| path.display().to_string());
        let text = format!("{left}: {source_text} {built_text} gone.rs\n");
        fs::write(target.join("program.d"), text).unwrap();
        let inputs = read_inputs(&program, root, &target).unwrap();
        let of_root = [root.join("Cargo.lock"), root.join("Cargo.toml")];
        let of_member = [member.join("Cargo.toml"), source];
        let expected: BTreeSet<PathBuf> = of_root.into_iter().chain(of_member).collect();
        assert_eq!(inputs, expected);
    }
}
