//! The caller's toolchains inside: where PATH leads on the host, shown read-only at the same paths, with the
//! variables that the toolchains need. What may be shown is a reviewed list (`table.rs`); credentials never are.
//! The engine checks these trees as it checks every mount.

mod caller;
mod choice;
mod git;
mod git_commits;
mod inside;
mod table;
mod trees;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stockade_core::{
    Command, EnvName, Error, ErrorCode, HostPath, HostTree, Image, Mount, Network, Result, Run,
    SandboxPath, SandboxSpec, Workspace,
};
use stockade_engine::EngineConfig;
use stockade_fs::RealPaths;

use caller::{CallerEnvironment, in_path, root_paths};
pub use choice::ToolchainChoice;
use table::{KNOWN_TOOLCHAINS, Toolchain, ToolchainRoot};

const TOOLCHAIN_FLAG: &str = "--toolchain";
/// The home directory inside, of the user that commands run as.
const HOME_INSIDE: &str = "/home/sandbox";
/// The most trees of one toolchain; one that would need more is not shown.
const MAX_TREES: usize = 64;

/// One toolchain that PATH leads to.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundToolchain {
    /// Its name.
    pub name: &'static str,
    /// The paths that are shown beside the host's system directories.
    pub shown: Vec<String>,
    /// Those below that may be written to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<String>,
    /// The variables that are set for it.
    pub variables: BTreeMap<String, String>,
    /// What was not shown, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    #[serde(skip)]
    trees: Vec<HostTree>,
}

impl FoundToolchain {
    fn named(name: &'static str) -> Self {
        let (shown, writable, left_out, trees) = Default::default();
        Self { name, shown, writable, variables: BTreeMap::new(), left_out, trees }
    }

    fn add(&mut self, trees: Vec<HostTree>) {
        self.shown.extend(trees.iter().map(|tree| tree.mount.target.to_string()));
        self.trees.extend(trees);
    }

    /// Adds trees that lie over what is shown, some of them writable, and the variables for that.
    fn add_over(&mut self, trees: Vec<HostTree>, variables: &[(&str, &str)]) {
        let writable = trees.iter().filter(|tree| !tree.mount.read_only);
        self.writable.extend(writable.map(|tree| tree.mount.target.to_string()));
        self.trees.extend(trees);
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.variables.extend(variables.iter().map(owned));
    }

    fn leave_out(&mut self, tree: &HostTree, reason: &str) {
        // Read-only trees over a writable one hold its walls: it is not shown without them.
        let all = !self.writable.is_empty();
        self.writable.clear();
        self.trees.retain(|kept| !all && kept != tree);
        self.shown.retain(|kept| !all && kept != tree.mount.target.as_str());
        let path = tree.mount.source.as_path().to_owned();
        self.left_out.push(LeftOut { path, reason: reason.to_owned() });
    }

    fn leave_home(&mut self) {
        let in_home = |target: &str| Path::new(target).starts_with(HOME_INSIDE);
        self.trees.retain(|tree| !in_home(tree.mount.target.as_str()));
        self.shown.retain(|target| !in_home(target));
    }
}

/// A path that is not shown.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// On the host.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// Whether packages that the caller has downloaded appear in the home directory inside: not in a sandbox whose
/// files may be captured or brought back, since what is mounted there is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packages {
    InHome,
    Absent,
}

/// Adds the toolchains that were chosen to a spec: their trees, variables and PATH.
pub fn add_toolchains(
    choice: &ToolchainChoice,
    packages: Packages,
    spec: &mut SandboxSpec,
    config: &EngineConfig,
) -> Result<Vec<FoundToolchain>> {
    let caller = CallerEnvironment::here();
    let mut found = find_toolchains(choice, spec, &caller.outside(written_places(spec)))?;
    if packages == Packages::Absent {
        found.iter_mut().for_each(FoundToolchain::leave_home);
    }
    if *choice != ToolchainChoice::None {
        found.extend(git::find_git_tree(spec));
    }
    leave_out_refused(&mut found, config);
    add_found(&found, spec)?;
    if *choice != ToolchainChoice::None
        && spec.image == Image::Host
        && let Some(path) = inside::build_path(&CallerEnvironment::here(), spec)
    {
        set_default(spec, "PATH", path)?;
    }
    Ok(found)
}

/// Looks anew at the git directory that a spec shows parts of: a branch may have another name by now, or the repository
/// be set up otherwise, so that other parts may be written to. A spec that shows none is left as it is.
pub fn renew_git_trees(mut spec: SandboxSpec, config: &EngineConfig) -> Result<SandboxSpec> {
    if spec.trees.iter().all(|tree| tree.part_of != HostTree::GIT_PART) {
        return Ok(spec);
    }
    // Variables stay as they are: those of the user's may name the directory too.
    spec.trees.retain(|tree| tree.part_of != HostTree::GIT_PART);
    let mut found: Vec<_> = git::find_git_tree(&spec).into_iter().collect();
    leave_out_refused(&mut found, config);
    add_found(&found, &mut spec)?;
    Ok(spec)
}

fn add_found(found: &[FoundToolchain], spec: &mut SandboxSpec) -> Result<()> {
    for toolchain in found {
        spec.trees.extend(toolchain.trees.iter().cloned());
        for (name, value) in &toolchain.variables {
            set_default(spec, name, value.clone())?;
        }
    }
    Ok(())
}

/// The directories of the host that guests of this spec may write to, by every name they have here.
fn written_places(spec: &SandboxSpec) -> Vec<PathBuf> {
    let workspace = match &spec.workspace {
        Workspace::Local(dir) => Some(dir),
        Workspace::Overlay(layers) => Some(&layers.lower),
        Workspace::Ephemeral => None,
    };
    let mounts = spec.all_mounts().filter(|mount| !mount.read_only).map(|mount| &mount.source);
    let named = workspace.into_iter().chain(mounts).map(|path| path.as_path().to_owned());
    named.flat_map(|path| [path.canonicalize().ok(), Some(path)]).flatten().collect()
}

/// What the flags say of a variable wins.
fn set_default(spec: &mut SandboxSpec, name: &str, value: String) -> Result<()> {
    let name: EnvName = name
        .parse()
        .map_err(|error| Error::new(ErrorCode::Invalid, TOOLCHAIN_FLAG, format!("{error}")))?;
    spec.env.entry(name).or_insert(value);
    Ok(())
}

fn find_toolchains(
    choice: &ToolchainChoice,
    spec: &SandboxSpec,
    caller: &CallerEnvironment,
) -> Result<Vec<FoundToolchain>> {
    if let (ToolchainChoice::Named(_), false) = (choice, spec.image == Image::Host) {
        let message = "toolchains of the host are shown on the host's own root only";
        return Err(Error::new(ErrorCode::Invalid, TOOLCHAIN_FLAG, message)
            .remedy("leave out --image, or use an image that has them"));
    }
    if *choice == ToolchainChoice::None || spec.image != Image::Host || !leaves_system(caller) {
        return all_named_are_there(choice, Vec::new());
    }
    let mut found: Vec<FoundToolchain> = Vec::new();
    for toolchain in KNOWN_TOOLCHAINS.iter().filter(|toolchain| choice.takes(toolchain)) {
        let taken: Vec<_> = found.iter().flat_map(|found| &found.trees).cloned().collect();
        found.extend(find_toolchain(toolchain, spec, caller, &taken));
    }
    let required = matches!(choice, ToolchainChoice::Named(_));
    for toolchain in &mut found {
        toolchain.trees.iter_mut().for_each(|tree| tree.required = required);
    }
    all_named_are_there(choice, found)
}

/// Whether PATH leads anywhere but to the directories that every sandbox has.
fn leaves_system(caller: &CallerEnvironment) -> bool {
    caller.path.iter().any(|dir| !inside::DEFAULT_PATH.iter().any(|known| dir == Path::new(known)))
}

fn all_named_are_there(
    choice: &ToolchainChoice,
    found: Vec<FoundToolchain>,
) -> Result<Vec<FoundToolchain>> {
    let ToolchainChoice::Named(names) = choice else { return Ok(found) };
    let is_there = |name: &String| {
        let of =
            |found: &FoundToolchain| KNOWN_TOOLCHAINS.iter().find(|known| known.name == found.name);
        found.iter().filter_map(of).any(|known| known.is_called(name))
    };
    match names.iter().find(|name| !is_there(name)) {
        None => Ok(found),
        Some(name) => {
            let message = format!("PATH leads to no toolchain `{name}`");
            Err(Error::new(ErrorCode::NotFound, TOOLCHAIN_FLAG, message)
                .remedy("put its directory into PATH, or show it with --mount DIR:DIR"))
        }
    }
}

/// What is shown of one toolchain; none if PATH does not lead to it.
fn find_toolchain(
    toolchain: &'static Toolchain,
    spec: &SandboxSpec,
    caller: &CallerEnvironment,
    taken: &[HostTree],
) -> Option<FoundToolchain> {
    let roots: Vec<_> = toolchain.roots.iter().map(|row| root_paths(row, caller)).collect();
    if !roots.iter().flatten().any(|root| in_path(root, caller)) {
        return None;
    }
    let mut found = FoundToolchain::named(toolchain.name);
    let mut anything = false;
    for (row, roots) in toolchain.roots.iter().zip(&roots) {
        for root in roots.iter().filter(|root| !is_anothers(row, root, taken)) {
            anything |= inside::is_in_host_image(root)
                || add_trees(&mut found, row, root, spec, caller, taken);
        }
    }
    if !anything {
        return None;
    }
    if found.trees.len() > MAX_TREES {
        let reason = format!("would need {} mounts, more than {MAX_TREES}", found.trees.len());
        let path = roots.iter().flatten().next().cloned().unwrap_or_default();
        found.left_out = vec![LeftOut { path, reason }];
        (found.trees, found.shown) = (Vec::new(), Vec::new());
    }
    found.variables = inside::build_variables(toolchain, &roots, caller, &found.trees);
    Some(found)
}

/// Whether a whole root belongs to a toolchain of which only parts are shown.
fn is_anothers(row: &ToolchainRoot, root: &Path, taken: &[HostTree]) -> bool {
    let mut targets = taken.iter().map(|tree| Path::new(tree.mount.target.as_str()));
    row.shown == ["."] && targets.any(|target| target.starts_with(root))
}

/// Whether there is anything of this root to show.
fn add_trees(
    found: &mut FoundToolchain,
    row: &ToolchainRoot,
    root: &Path,
    spec: &SandboxSpec,
    caller: &CallerEnvironment,
    taken: &[HostTree],
) -> bool {
    let in_use = |path: &Path| !row.in_path_only || in_path(parent_of_tree(path), caller);
    let shown = trees::expand_root(caller.paths(), root, row, (row.shown, row.depth), in_use);
    let left_out = shown.left_out.into_iter().map(|(path, reason)| LeftOut { path, reason });
    found.left_out.extend(left_out);
    let at_own_path = shown.paths.into_iter().map(|path| (path.clone(), path));
    let in_home = in_home(row, root, spec, caller);
    let before = found.trees.len();
    for (source, target) in at_own_path.chain(in_home) {
        if caller.is_written(&source)
            || is_claimed_by_spec(&target, spec)
            || is_covered(&target, &found.trees)
            || is_covered(&target, taken)
        {
            continue;
        }
        match build_host_tree(caller.paths(), found.name, &source, &target) {
            Some(tree) => found.add(vec![tree]),
            None => found.left_out.push(LeftOut { path: source, reason: "is not UTF-8".into() }),
        }
    }
    found.trees.len() > before
}

/// Of `…/versions/node/v20/bin` the version: PATH leads into its `bin` for `lib` too.
fn parent_of_tree(path: &Path) -> &Path {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("bin" | "lib" | "include" | "share") => path.parent().unwrap_or(path),
        Some(_) | None => path,
    }
}

/// Downloaded packages, for a sandbox that can download none.
fn in_home(
    row: &ToolchainRoot,
    root: &Path,
    spec: &SandboxSpec,
    caller: &CallerEnvironment,
) -> Vec<(PathBuf, PathBuf)> {
    if matches!(spec.network, Network::Egress(_)) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (from, to, depth) in row.in_home {
        let base = root.join(from);
        for path in
            trees::expand_root(caller.paths(), root, row, (&[*from], *depth), |_| true).paths
        {
            let Ok(rest) = path.strip_prefix(&base) else { continue };
            let target = Path::new(HOME_INSIDE).join(to).join(rest);
            all.push((path.clone(), target.components().collect()));
        }
    }
    all
}

/// What the caller asked for lies there, or it is the workspace's: that wins.
fn is_claimed_by_spec(path: &Path, spec: &SandboxSpec) -> bool {
    let workspace = match &spec.workspace {
        Workspace::Local(dir) => Some(dir.as_path()),
        Workspace::Overlay(layers) => Some(layers.lower.as_path()),
        Workspace::Ephemeral => None,
    };
    let mounts = spec.mounts.iter().map(|mount| Path::new(mount.target.as_str()));
    mounts.chain(workspace).any(|other| path.starts_with(other) || other.starts_with(path))
}

fn is_covered(path: &Path, trees: &[HostTree]) -> bool {
    trees.iter().any(|tree| path.starts_with(tree.mount.target.as_str()))
}

fn build_host_tree(
    paths: &RealPaths,
    name: &str,
    source: &Path,
    target: &Path,
) -> Option<HostTree> {
    let source: HostPath = paths.canonicalize(source).ok()?.try_into().ok()?;
    let target: SandboxPath = target.to_str()?.parse().ok()?;
    let mount = Mount { source, target, read_only: true };
    Some(HostTree { part_of: name.to_owned(), mount, required: false })
}

/// Leaves out what the engine would refuse: what is Stockade's own, or shared by programs of the host (C-06).
/// All trees are asked about at once: each question reads the host's mounts.
fn leave_out_refused(found: &mut [FoundToolchain], config: &EngineConfig) {
    let trees: Vec<_> = found.iter().flat_map(|found| &found.trees).cloned().collect();
    if trees.is_empty() {
        return;
    }
    let probe = SandboxSpec { trees, ..SandboxSpec::default() };
    for refusal in config.refused_views(&probe).0 {
        let at = refusal.field.strip_prefix("trees[").and_then(|rest| rest.strip_suffix(']'));
        let Some(tree) = at.and_then(|at| probe.trees.get(at.parse::<usize>().ok()?)) else {
            continue;
        };
        for toolchain in found.iter_mut().filter(|found| found.trees.contains(tree)) {
            toolchain.leave_out(tree, &refusal.reason);
        }
    }
}

/// Why commits in a worktree fail inside although its files are changed in place. None where they do not.
pub fn explain_read_only_git(found: &[FoundToolchain]) -> Option<String> {
    let is_shown = |found: &&FoundToolchain| !found.trees.is_empty();
    let git = found.iter().find(|found| found.name == HostTree::GIT_PART).filter(is_shown)?;
    let out = git.left_out.first()?;
    Some(format!("`{}` {}", out.path.display(), out.reason))
}

/// Where a program that was not found inside is on this host, and the flag that shows it. None where it is not
/// here either.
pub fn missing_program(command: &Command) -> Option<String> {
    let Run::Program(argv) = &command.run else { return None };
    let program = argv.first()?;
    let path = inside::find_program(program)?;
    let caller = CallerEnvironment::here();
    let of = |toolchain: &&Toolchain| {
        let mut roots = toolchain.roots.iter().flat_map(|row| root_paths(row, &caller));
        roots.any(|root| path.starts_with(&root))
    };
    let dir = path.parent().unwrap_or(Path::new("/")).display();
    let flag = match KNOWN_TOOLCHAINS.iter().find(of) {
        Some(toolchain) => format!("--toolchain {}, or --mount {dir}:{dir}", toolchain.name),
        None => format!("--mount {dir}:{dir}"),
    };
    let path = path.display();
    Some(format!(
        "`{program}` is `{path}` on this host, which is not shown inside (show it: {flag})"
    ))
}
