//! Whether a sandbox that was prepared for one spec may serve another. When in doubt it may not: then
//! one is made, which is slower and never wrong.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use stockade_core::{Admitted, Image, SandboxSpec, Workspace};

/// Whether both get the same walls around the same things, for the same tenant. Labels may differ:
/// they are put on when it is handed out. So may the words by which the backend was chosen, since
/// both were admitted to the same one.
pub(super) fn same_walls(one: &Admitted, other: &Admitted) -> bool {
    one.backend() == other.backend()
        && one.boundary() == other.boundary()
        && one.limits() == other.limits()
        && one.enforcement() == other.enforcement()
        && same_spec(one.spec(), other.spec())
}

/// Taken apart field by field, so that a new field has to be thought about.
fn same_spec(one: &SandboxSpec, other: &SandboxSpec) -> bool {
    let SandboxSpec {
        backend: _,
        host,
        boundaries: _,
        image,
        root,
        workspace,
        workspace_at,
        read_only,
        mounts,
        trees,
        env,
        user,
        workdir,
        network,
        secrets,
        deterministic,
        limits,
        // What it changes shows in how the limits are enforced.
        strict: _,
        tenant,
        labels: _,
        without,
    } = one;
    (image, root, workspace) == (&other.image, &other.root, &other.workspace)
        && (read_only, mounts, env) == (&other.read_only, &other.mounts, &other.env)
        && (workspace_at, trees) == (&other.workspace_at, &other.trees)
        && (user, workdir, network) == (&other.user, &other.workdir, &other.network)
        && (deterministic, limits, host) == (&other.deterministic, &other.limits, &other.host)
        && (tenant, without, secrets) == (&other.tenant, &other.without, &other.secrets)
}

/// What the host had under the paths of a spec when a sandbox was prepared. A path may lead to something
/// else by the time a caller wants it, and walls around the old thing are the wrong ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostPlaces(Vec<(PathBuf, Option<Thing>)>);

#[derive(Debug, PartialEq, Eq)]
struct Thing {
    device: u64,
    inode: u64,
    /// Of a file, since what is made of it was made of its content. A directory is shown as it is.
    version: Option<(i64, i64, i64)>,
}

impl HostPlaces {
    pub(super) fn of(spec: &SandboxSpec) -> Self {
        let mut paths: Vec<PathBuf> = Vec::new();
        match &spec.workspace {
            Workspace::Local(path) => paths.push(path.as_path().to_owned()),
            Workspace::Overlay(layers) => paths.push(layers.lower.as_path().to_owned()),
            Workspace::Ephemeral => {}
        }
        match &spec.image {
            Image::Directory(path) | Image::Wasm(path) => paths.push(path.as_path().to_owned()),
            // An archive, or a layout whose index says what is in it.
            Image::Oci(path) => {
                paths.extend([path.as_path().to_owned(), path.as_path().join("index.json")]);
            }
            Image::Host | Image::Named(_) => {}
        }
        paths.extend(spec.all_mounts().map(|mount| mount.source.as_path().to_owned()));
        Self(paths.into_iter().map(Self::look).collect())
    }

    /// Whether everything is still where it was.
    pub(super) fn still_there(&self) -> bool {
        self.0.iter().all(|(path, thing)| thing_at(path) == *thing)
    }

    fn look(path: PathBuf) -> (PathBuf, Option<Thing>) {
        let thing = thing_at(&path);
        (path, thing)
    }
}

fn thing_at(path: &Path) -> Option<Thing> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    // The time of change (ctime) cannot be set by a program, and has nanoseconds of its own.
    let version =
        is_file.then_some((stat.st_size, stat.st_ctime as i64, stat.st_ctime_nsec as i64));
    Some(Thing { device: stat.st_dev, inode: stat.st_ino, version })
}

#[cfg(test)]
mod tests {
    use stockade_core::{
        BackendName, Boundary, Bytes, Capabilities, Feature, HostPath, Mount, Support, admit,
    };

    use super::*;

    fn admit_changed_spec<T>(change: impl FnOnce(&mut SandboxSpec) -> T) -> Admitted {
        let none = Capabilities::none(BackendName::literal("all"), Boundary::SharedKernel);
        let all = Feature::ALL
            .iter()
            .fold(none, |all, feature| all.with(*feature, Support::full("test")));
        let mut spec = SandboxSpec::default();
        change(&mut spec);
        admit(&spec, &all).unwrap()
    }

    fn has_same_walls_after<T>(change: impl FnOnce(&mut SandboxSpec) -> T) -> bool {
        same_walls(&admit_changed_spec(|_| {}), &admit_changed_spec(change))
    }

    #[test]
    fn labels_and_the_words_of_the_choice_may_differ() {
        assert!(has_same_walls_after(|_| {}));
        assert!(has_same_walls_after(|spec| spec.labels.insert("a".into(), "b".into())));
        assert!(has_same_walls_after(|spec| spec.backend = "all".parse().unwrap()));
        assert!(has_same_walls_after(|spec| spec.boundaries.insert(Boundary::SharedKernel)));
    }

    #[test]
    fn whatever_the_walls_depend_on_must_be_the_same() {
        let dir: HostPath = "/srv".parse().unwrap();
        let target = "/data".parse().unwrap();
        let mount = Mount { source: dir.clone(), target, read_only: true };
        assert!(!has_same_walls_after(|spec| spec.tenant = "other".parse().unwrap()));
        assert!(!has_same_walls_after(|spec| spec.image = Image::Directory(dir.clone())));
        assert!(!has_same_walls_after(|spec| spec.root = stockade_core::RootMode::CopyOnWrite));
        assert!(!has_same_walls_after(|spec| spec.workspace = Workspace::Local(dir.clone())));
        assert!(!has_same_walls_after(|spec| spec.read_only = true));
        assert!(!has_same_walls_after(|spec| spec.mounts.push(mount)));
        assert!(!has_same_walls_after(|spec| spec.env.insert("A".parse().unwrap(), "b".into())));
        assert!(!has_same_walls_after(|spec| spec.user = Some("1:1".parse().unwrap())));
        assert!(!has_same_walls_after(|spec| spec.workdir = Some("/tmp".parse().unwrap())));
        assert!(!has_same_walls_after(|spec| spec.network = stockade_core::Network::None));
        assert!(!has_same_walls_after(|spec| spec.deterministic = true));
        assert!(!has_same_walls_after(|spec| spec.limits.memory = Some(Bytes::mib(64))));
        assert!(!has_same_walls_after(|spec| spec.without.insert(Feature::DiskLimit)));
    }

    #[test]
    fn another_directory_under_the_same_path_is_another_place() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("work");
        std::fs::create_dir(&dir).unwrap();
        let workspace = Workspace::Local(HostPath::try_from(dir.clone()).unwrap());
        let spec = SandboxSpec { workspace, ..SandboxSpec::default() };
        let places = HostPlaces::of(&spec);
        std::fs::write(dir.join("file"), "changed").unwrap();
        assert!(places.still_there(), "its content is the workspace's own business");
        std::fs::rename(&dir, base.path().join("moved")).unwrap();
        assert!(!places.still_there());
        std::fs::create_dir(&dir).unwrap();
        assert!(!places.still_there());
    }

    #[test]
    fn an_image_that_was_replaced_or_rewritten_is_another() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("image.tar");
        std::fs::write(&file, "one").unwrap();
        let image = Image::Oci(HostPath::try_from(file.clone()).unwrap());
        let places = HostPlaces::of(&SandboxSpec { image, ..SandboxSpec::default() });
        assert!(places.still_there());
        std::fs::write(&file, "other").unwrap();
        assert!(!places.still_there());
    }
}
