//! A copy-on-write workspace, as root and as an ordinary user, on the real kernel.
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{Owner, directory, failure, for_each_owner, give, launch, local, try_launch};
use serde_json::json;
use stockade_launcher::{LaunchPlan, PlanMount, PlanWorkspace, Wall};

/// A directory to show, and one for the changes.
struct TestLayers {
    base: tempfile::TempDir,
}

impl TestLayers {
    fn new(owner: Owner) -> TestLayers {
        let base = directory(owner);
        let layers = TestLayers { base };
        for name in ["lower", "lower/dir", "upper", "work"] {
            fs::create_dir(layers.path(name)).unwrap();
            give(owner, &layers.path(name));
        }
        for name in ["lower/kept", "lower/changed", "lower/removed", "lower/dir/old"] {
            fs::write(layers.path(name), "lower").unwrap();
            give(owner, &layers.path(name));
        }
        layers
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().canonicalize().unwrap().join(name)
    }

    fn plan(&self) -> LaunchPlan {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| self.path(name));
        LaunchPlan {
            workspace: PlanWorkspace::Overlay { lower, upper, work },
            ..LaunchPlan::default()
        }
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

const CHANGE_SCRIPT: &str = "cd /workspace && echo -n inside > changed && echo -n new > added && \
                       rm removed && rm -r dir && mkdir dir && echo -n new > dir/new";

#[test]
fn changes_show_inside_and_land_in_the_upper_layer_alone() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let mut inside = launch(launcher, &layers.plan());
        inside.run(&["sh", "-c", CHANGE_SCRIPT]);
        assert_eq!(inside.read("/workspace/changed").unwrap(), "inside");
        assert_eq!(inside.read("/workspace/kept").unwrap(), "lower");
        assert_eq!(inside.read("/workspace/removed"), None);
        assert_eq!(inside.list("/workspace/dir").unwrap(), ["new"]);
        inside.ended_by_drop();
        for untouched in ["kept", "changed", "removed", "dir/old"] {
            assert_eq!(text(&layers.path("lower").join(untouched)), "lower", "{untouched}");
        }
        assert!(!layers.path("lower/added").exists());
        assert_eq!(text(&layers.path("upper/changed")), "inside");
        assert_eq!(text(&layers.path("upper/added")), "new");
        assert!(!layers.path("upper/kept").exists(), "what was only read is not copied");
    });
}

#[test]
fn a_removal_is_an_empty_device_and_a_replaced_directory_is_marked_opaque() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let mut inside = launch(launcher, &layers.plan());
        inside.run(&["sh", "-c", CHANGE_SCRIPT]);
        inside.ended_by_drop();
        let gone = fs::symlink_metadata(layers.path("upper/removed")).unwrap();
        assert!(gone.file_type().is_char_device());
        assert_eq!(gone.rdev(), 0);
        let mut mark = [0; 8];
        let length =
            rustix::fs::getxattr(layers.path("upper/dir"), "user.overlay.opaque", &mut mark[..]);
        assert_eq!(mark[..length.unwrap()], *b"y");
    });
}

#[test]
fn the_next_sandbox_finds_what_the_one_before_has_left() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let mut first = launch(launcher, &layers.plan());
        first.run(&["sh", "-c", CHANGE_SCRIPT]);
        first.ended_by_drop();
        for read_only in [false, true] {
            let mut next = launch(launcher, &LaunchPlan { read_only, ..layers.plan() });
            assert_eq!(next.read("/workspace/changed").unwrap(), "inside");
            assert_eq!(next.read("/workspace/kept").unwrap(), "lower");
            assert_eq!(next.read("/workspace/removed"), None);
            assert_eq!(next.list("/workspace/dir").unwrap(), ["new"]);
            next.ended_by_drop();
        }
    });
}

#[test]
fn a_read_only_view_cannot_be_written_to() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let mut inside = launch(launcher, &LaunchPlan { read_only: true, ..layers.plan() });
        assert_eq!(inside.read("/workspace/kept").unwrap(), "lower");
        for refused in ["/workspace/new", "/workspace/kept", "/workspace/dir/new"] {
            assert_eq!(inside.write(refused), i64::from(libc::EROFS), "{refused}");
        }
        assert_eq!(fs::read_dir(layers.path("upper")).unwrap().count(), 0);
    });
}

#[test]
fn the_layers_are_nowhere_else_inside() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let mut inside = launch(launcher, &layers.plan());
        for absent in ["/lower", "/beside"] {
            assert_eq!(inside.list(absent), None, "{absent}");
        }
        let mounts = inside.read("/proc/self/mountinfo").unwrap();
        let names = layers.base.path().file_name().unwrap().to_str().unwrap();
        assert!(!mounts.contains(names), "a path of the host is told: {mounts}");
        let view = mounts.lines().find(|line| line.contains(" /workspace ")).unwrap();
        for option in ["nosuid", "nodev", "overlay", "userxattr"] {
            assert!(view.contains(option), "{option}: {view}");
        }
        let workspace = inside.launched.walls.iter().find(|proof| proof.wall == Wall::Workspace);
        assert!(workspace.unwrap().evidence.contains("overlay"), "{workspace:?}");
    });
}

#[test]
fn layers_inside_of_what_is_shown_cannot_be_reached_through_it() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let [lower, upper, work] = ["", "upper", "work"].map(|name| layers.path(name));
        let lower = lower.components().collect();
        let workspace = PlanWorkspace::Overlay { lower, upper, work };
        let mut inside = launch(launcher, &LaunchPlan { workspace, ..LaunchPlan::default() });
        assert_eq!(inside.read("/workspace/lower/kept").unwrap(), "lower");
        for trapped in ["/workspace/upper", "/workspace/work"] {
            assert_eq!(inside.list(trapped), None, "{trapped}");
            assert_ne!(inside.write(&format!("{trapped}/x")), 0, "{trapped}");
        }
    });
}

#[test]
fn nothing_is_mounted_into_a_view_by_making_a_place_in_it() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let source = directory(owner);
        let source = source.path().canonicalize().unwrap();
        let mount = |target: &str| PlanMount {
            source: source.clone(),
            target: target.into(),
            read_only: true,
        };
        let known = LaunchPlan { mounts: vec![mount("/workspace/dir")], ..layers.plan() };
        assert_eq!(launch(launcher, &known).list("/workspace/dir").unwrap(), Vec::<String>::new());
        let new = LaunchPlan { mounts: vec![mount("/workspace/new")], ..layers.plan() };
        assert_eq!(failure(try_launch(launcher, &new)).wall, Wall::Mounts);
        assert!(!layers.path("upper/new").exists());
    });
}

#[test]
fn layers_that_cannot_be_used_are_refused_by_name() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        std::os::unix::fs::symlink("upper", layers.path("link")).unwrap();
        fs::write(layers.path("file"), "").unwrap();
        fs::create_dir(layers.path("elsewhere")).unwrap();
        for wrong in ["link", "file", "elsewhere/upper", "absent"] {
            let [lower, work] = ["lower", "work"].map(|name| layers.path(name));
            let workspace = PlanWorkspace::Overlay { lower, upper: layers.path(wrong), work };
            let plan = LaunchPlan { workspace, ..LaunchPlan::default() };
            let refused = failure(try_launch(launcher, &plan));
            assert_eq!(refused.wall, Wall::Source, "{wrong}: {refused:?}");
            assert!(refused.detail.contains(wrong), "{wrong}: {refused:?}");
        }
    });
}

#[test]
fn a_local_workspace_is_no_overlay() {
    for_each_owner(|owner, launcher| {
        let layers = TestLayers::new(owner);
        let plan = LaunchPlan { workspace: local(&layers.path("lower")), ..LaunchPlan::default() };
        let mut inside = launch(launcher, &plan);
        assert_eq!(inside.write("/workspace/new"), 0);
        assert!(layers.path("lower/new").exists());
        assert_eq!(inside.ask(json!({ "write": "/workspace/kept" })), json!(0));
    });
}

mod needs_root {
    use super::*;

    #[test]
    fn layers_may_have_any_name_and_lie_where_only_root_gets() {
        let launcher = common::launcher(Owner::Root);
        let layers = TestLayers::new(Owner::Ordinary);
        let place = layers.path("root's:own,\\place");
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let [upper, work] = ["up:per,\\", "wo rk"].map(|name| place.join(name));
        for layer in [&upper, &work] {
            fs::create_dir(layer).unwrap();
            give(Owner::Ordinary, layer);
        }
        for read_only in [false, true] {
            let (upper, work) = (upper.clone(), work.clone());
            let workspace = PlanWorkspace::Overlay { lower: layers.path("lower"), upper, work };
            let ordinary = Some(common::UNPRIVILEGED_UID);
            let plan = LaunchPlan {
                workspace,
                read_only,
                host_uid: ordinary,
                host_gid: ordinary,
                ..LaunchPlan::default()
            };
            let mut inside = launch(&launcher, &plan);
            if !read_only {
                inside.run(&["sh", "-c", CHANGE_SCRIPT]);
            }
            assert_eq!(inside.read("/workspace/changed").unwrap(), "inside");
            inside.ended_by_drop();
        }
        assert_eq!(text(&upper.join("added")), "new");
        assert_eq!(fs::metadata(upper.join("added")).unwrap().uid(), common::UNPRIVILEGED_UID);
    }
}
